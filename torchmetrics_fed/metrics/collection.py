"""federated_collection: metrics of the same data that make one release; areas: what is logged of one."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchmetrics import Metric, MetricCollection

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.client import SharedClient
from torchmetrics_fed.metrics.areas import AreaMetric
from torchmetrics_fed.metrics.comparison import FederatedModelComparison
from torchmetrics_fed.metrics.curves import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
)
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Release
from torchmetrics_fed.typing import Task

_BY_NAME: tuple[type[FederatedMetric], ...] = (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedDET,
    FederatedCalibration,
)
"""The metrics that a collection knows by their short names."""

# What has to be the same, beside the spec, where one metric counts and pays for others.
_COUNTED_ALIKE = ("ledger", "data")


def federated_collection(
    task: Task = "binary",
    *,
    metrics: Sequence[str] | Mapping[str, type[FederatedMetric]] = (
        "roc",
        "precision_recall_curve",
    ),
    ledger: PrivacyLedger | None = None,
    prefix: str | None = None,
    postfix: str | None = None,
    **options: Any,
) -> MetricCollection:
    """Return a :class:`~torchmetrics.MetricCollection` whose metrics share one release, and spend once for all.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        metrics: their ``short_name``s, for instance ``"roc"``, or classes by the name they are to have.
        ledger: where the release is charged; one in memory if not given.
        prefix: of the metrics' names, as is ``postfix``.
        options: the arguments of all the metrics, for instance ``privacy``; ``confidence`` goes to those with bands.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import CentralDP, federated_collection
        >>> collection = federated_collection(privacy=CentralDP(epsilon=1.0))
        >>> collection.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> sorted(collection.compute())
        ['precision_recall_curve', 'roc']
        >>> collection["roc"].ledger
        PrivacyLedger(epsilon 1, delta ... spent, 1 release)
    """
    known = {kind.short_name: kind for kind in _BY_NAME}
    unknown = [name for name in metrics if not isinstance(metrics, Mapping) and name not in known]
    if unknown or not metrics:
        raise InputError(
            f"Expected argument `metrics` to name some of {list(known)} but got {list(metrics)}."
        )
    classes = metrics if isinstance(metrics, Mapping) else {name: known[name] for name in metrics}
    ledger = PrivacyLedger() if ledger is None else ledger
    shared = SharedClient()
    # only some metrics have bands; the others go without
    bands = {"confidence": options.pop("confidence")} if "confidence" in options else {}
    built: dict[str, Metric | MetricCollection] = {}
    for name, kind in classes.items():
        metric = kind(task, ledger=ledger, **options, **(bands if kind.bands_of else {}))
        metric.shared = shared
        built[name] = metric
    return MetricCollection(built, prefix=prefix, postfix=postfix)


def representative(metric: FederatedMetric | MetricCollection) -> FederatedMetric:
    """Return the metric itself, or the one that counts and releases for a collection whose metrics all count alike."""
    members: list[Any] = (
        list(metric.values(copy_state=False)) if isinstance(metric, MetricCollection) else [metric]
    )
    others = {
        type(member).__name__ for member in members if not isinstance(member, FederatedMetric)
    }
    if others or not members:
        raise InputError(
            f"Expected a federated metric, or a collection of them alone, but got {', '.join(others) or 'none'}. Keep "
            "other metrics in a collection of their own."
        )
    first: FederatedMetric = members[0]
    for member in members[1:]:
        first.spec.check(member.spec)
        if any(getattr(member, name) != getattr(first, name) for name in _COUNTED_ALIKE):
            raise InputError(
                f"Expected metrics that share one release but they differ in one of {_COUNTED_ALIKE}. Build them with "
                "`federated_collection`."
            )
    return first


def areas(release: Release, form: str = "{}") -> dict[str, float]:
    """Return AUROC and average precision by name, means over classes if there are several; "ovo" has the first.

    Of two models, what their comparison has for numbers.
    """
    if release.spec.models:
        found = FederatedModelComparison.from_release(release).compute().scalars
        return {form.format(name): float(value) for name, value in found.items()}
    pairs = release.spec.multi_class == "ovo"
    kinds: list[type[AreaMetric]] = [
        FederatedAUROC,
        *([] if pairs else [FederatedAveragePrecision]),
    ]
    return {
        form.format(kind.short_name): float(kind.from_release(release).compute()) for kind in kinds
    }
