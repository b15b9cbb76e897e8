"""federated_collection: metrics of the same data that make one release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torchmetrics import Metric, MetricCollection
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.confusion import SCORE_NAMES
from torchmetrics_fed.metrics.counts import CountsMetric, share_client, terms_of
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
from torchmetrics_fed.metrics.operating import FederatedConfusionMatrix
from torchmetrics_fed.metrics.options import CollectionOptions
from torchmetrics_fed.metrics.scalars import (
    FederatedBrierScore,
    FederatedCalibrationError,
    FederatedEER,
    FederatedHingeLoss,
    FederatedLogAUC,
    FederatedLogLoss,
    FederatedScoreAtThreshold,
)
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.typing import Task

KINDS: tuple[type[FederatedMetric], ...] = (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedDET,
    FederatedCalibration,
    FederatedConfusionMatrix,
    FederatedEER,
    FederatedLogAUC,
    FederatedCalibrationError,
    FederatedLogLoss,
    FederatedBrierScore,
    FederatedHingeLoss,
)
"""The metrics that a collection knows by their names, beside the scores at a threshold."""

Builder: TypeAlias = type[FederatedMetric] | partial[Any]
"""A class of metrics, or a class with some of its arguments."""


def federated_collection(
    task: Task = "binary",
    *,
    metrics: Sequence[str] | Mapping[str, Builder] = (
        "roc",
        "precision_recall_curve",
    ),
    ledger: PrivacyLedger | None = None,
    confidence: float | None = None,
    prefix: str | None = None,
    postfix: str | None = None,
    **options: Unpack[CollectionOptions],
) -> MetricCollection:
    """Return a collection whose metrics share one release, and spend once for all.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        metrics: their names, for instance ``"roc"`` or ``"f1"``, or classes by the name they are to
            have. ``functools.partial`` gives a class arguments of its own:
            ``{"recall": partial(FederatedRecallAtFixedPrecision, 0.9)}``.
        ledger: where the release is charged; one in memory if not given.
        confidence: as in :class:`~torchmetrics_fed.FederatedMetric`.
        prefix: of the metrics' names, as is ``postfix``.
        postfix: of the metrics' names.
        options: the arguments of all the metrics, for instance ``privacy``.

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
    ledger = PrivacyLedger() if ledger is None else ledger
    built: dict[str, FederatedMetric] = {}
    for name, builder in _builders(metrics).items():
        built[name] = builder(task=task, ledger=ledger, confidence=confidence, **options)
    share_client(built.values())
    members: dict[str, Metric | MetricCollection] = {**built}
    return MetricCollection(members, prefix=prefix, postfix=postfix)


def _kind(builder: Builder) -> Any:
    """Return the class that a builder makes metrics of."""
    if isinstance(builder, partial):
        return builder.func
    return builder


def _builders(metrics: Sequence[str] | Mapping[str, Builder]) -> Mapping[str, Builder]:
    """Return the builders of the metrics that are asked for, by the names they are to have."""
    if isinstance(metrics, Mapping) and metrics:
        for builder in metrics.values():
            kind = _kind(builder)
            if not isinstance(kind, type) or not issubclass(kind, FederatedMetric):
                raise InputError(
                    "Expected argument `metrics` to be classes of curves and numbers but got "
                    f"{getattr(kind, '__name__', kind)}. Keep it by itself: it counts something "
                    "else."
                )
        return metrics
    by_name: dict[str, Builder] = {kind.definition.name: kind for kind in KINDS}
    for score in SCORE_NAMES:
        if score != "fbeta":
            by_name[score] = partial(FederatedScoreAtThreshold, score)
    if not metrics or any(name not in by_name for name in metrics):
        raise InputError(
            f"Expected argument `metrics` to name some of {list(by_name)} but got {list(metrics)}. "
            "Pass metrics with arguments of their own as `functools.partial`, by name."
        )
    return {name: by_name[name] for name in metrics}


def representative(metric: CountsMetric | MetricCollection) -> CountsMetric:
    """Return the metric that counts and releases, for itself or for its whole collection."""
    members: list[Any] = [metric]
    if isinstance(metric, MetricCollection):
        members = list(metric.values(copy_state=False))
    strangers = {
        type(member).__name__ for member in members if not isinstance(member, CountsMetric)
    }
    if strangers or not members:
        raise InputError(
            "Expected a federated metric, or a collection of them alone, but got "
            f"{', '.join(strangers) or 'none'}. Keep other metrics in a collection of their own."
        )
    first: CountsMetric = members[0]
    for member in members[1:]:
        first.spec.check(member.spec)
        if not terms_of(first).pays_as(terms_of(member)):
            raise InputError(
                "Expected metrics that share one release but they differ in `ledger` or `data`. "
                "Build them with `federated_collection`."
            )
    return first
