"""federated: torchmetrics' metrics as federated ones, and why some have no federated twin.

Two histograms of each class, of its negatives and of its positives, hold every number that depends
on the scores of one class at a time. They do not hold what compares several scores of an example:
the arg-max over classes, the order of labels, or an exact match of all labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, overload

import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers.abstract import WrapperMetric
from typing_extensions import Unpack

from torchmetrics_fed.counting.edges import ABOVE_ONE
from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics.collection import Builder
from torchmetrics_fed.metrics.counts import CountsMetric, share_client
from torchmetrics_fed.metrics.curves import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedPrecisionRecallCurve,
    FederatedROC,
)
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.metrics.operating import (
    FederatedConfusionMatrix,
    FederatedPrecisionAtFixedRecall,
    FederatedRecallAtFixedPrecision,
    FederatedSensitivityAtSpecificity,
    FederatedSpecificityAtSensitivity,
)
from torchmetrics_fed.metrics.options import MetricOptions
from torchmetrics_fed.metrics.scalars import (
    FederatedCalibrationError,
    FederatedEER,
    FederatedHingeLoss,
    FederatedLogAUC,
    FederatedScoreAtThreshold,
)
from torchmetrics_fed.privacy import PrivacyLedger

_CURVES: dict[str, Builder] = {
    "ROC": FederatedROC,
    "PrecisionRecallCurve": FederatedPrecisionRecallCurve,
    "AUROC": FederatedAUROC,
    "AveragePrecision": FederatedAveragePrecision,
    "EER": FederatedEER,
    "LogAUC": FederatedLogAUC,
    "RecallAtFixedPrecision": FederatedRecallAtFixedPrecision,
    "PrecisionAtFixedRecall": FederatedPrecisionAtFixedRecall,
    "SensitivityAtSpecificity": FederatedSensitivityAtSpecificity,
    "SpecificityAtSensitivity": FederatedSpecificityAtSensitivity,
}
"""By the name of torchmetrics without its task: every task has them."""

_CALLS: dict[str, Builder] = {
    "ConfusionMatrix": FederatedConfusionMatrix,
    "Accuracy": partial(FederatedScoreAtThreshold, "accuracy"),
    "Precision": partial(FederatedScoreAtThreshold, "precision"),
    "Recall": partial(FederatedScoreAtThreshold, "recall"),
    "Specificity": partial(FederatedScoreAtThreshold, "specificity"),
    "NegativePredictiveValue": partial(FederatedScoreAtThreshold, "negative_predictive_value"),
    "F1Score": partial(FederatedScoreAtThreshold, "f1"),
    "FBetaScore": partial(FederatedScoreAtThreshold, "fbeta"),
    "JaccardIndex": partial(FederatedScoreAtThreshold, "jaccard_index"),
    "MatthewsCorrCoef": partial(FederatedScoreAtThreshold, "matthews_corrcoef"),
    "HammingDistance": partial(FederatedScoreAtThreshold, "hamming_distance"),
}
"""Scores of calls at a threshold: those of several classes are of the arg-max in torchmetrics."""

TWINS: dict[str, Builder] = {
    **{
        f"{task}{name}": twin for name, twin in _CURVES.items() for task in ("Binary", "Multiclass")
    },
    **{f"Multilabel{name}": twin for name, twin in {**_CURVES, **_CALLS}.items()},
    **{f"Binary{name}": twin for name, twin in _CALLS.items()},
    "BinaryCohenKappa": partial(FederatedScoreAtThreshold, "cohen_kappa"),
    "BinaryCalibrationError": FederatedCalibrationError,
    "BinaryHingeLoss": FederatedHingeLoss,
}
"""The federated twin of each class of ``torchmetrics.classification`` that has one."""

_ARG_MAX = (
    "it compares the scores of all classes, and histograms hold one class at a time. "
    "FederatedConfusionMatrix and FederatedScoreAtThreshold call each class by its own score"
)
"""The reason against metrics that call the class with the largest score."""

_ORDER = "it is the order of an example's labels, and histograms hold one label at a time"
"""The reason against rankings."""

_EXACT_MATCH = "it needs all labels of an example at once, and histograms hold one at a time"
"""The reason against matches of several labels."""

_COUNTS = "FederatedConfusionMatrix has the same counts, in another shape"
"""The reason against counts of calls as one vector."""

_GROUPS = (
    "FederatedConfusionMatrix(groups=...) has the rates of each group in `by_group()`, and "
    "`functional.group_gaps` has the gaps between them"
)
"""The reason against rates of groups."""

WITHOUT_TWIN: dict[str, str] = {
    **{f"Multiclass{name}": _ARG_MAX for name in _CALLS},
    "MulticlassCohenKappa": _ARG_MAX,
    "MulticlassStatScores": _ARG_MAX,
    "MulticlassExactMatch": _EXACT_MATCH,
    "MulticlassCalibrationError": (
        "it is that of the top label, and histograms hold one class at a time. "
        "FederatedCalibrationError has the error of each class"
    ),
    "MulticlassHingeLoss": (
        "it is the margin between two classes, and histograms hold one class at a time"
    ),
    "BinaryStatScores": _COUNTS,
    "MultilabelStatScores": _COUNTS,
    "MultilabelExactMatch": _EXACT_MATCH,
    "MultilabelCoverageError": _ORDER,
    "MultilabelRankingAveragePrecision": _ORDER,
    "MultilabelRankingLoss": _ORDER,
    "BinaryFairness": _GROUPS,
    "BinaryGroupStatRates": _GROUPS,
}
"""Why a class of ``torchmetrics.classification`` has no federated twin."""

_SAME_ARGUMENTS = (
    "ignore_index",
    "threshold",
    "beta",
    "max_fpr",
    "min_precision",
    "min_recall",
    "min_specificity",
    "min_sensitivity",
    "fpr_range",
    "n_bins",
    "norm",
    "squared",
)
"""Arguments that have the same name and meaning here."""

_TORCHMETRICS_ARGUMENTS = (
    "compute_on_cpu",
    "dist_sync_on_step",
    "process_group",
    "dist_sync_fn",
    "sync_on_compute",
)
"""Arguments of every metric of torchmetrics."""


@overload
def federated(metric: MetricCollection, **options: Unpack[MetricOptions]) -> MetricCollection: ...


@overload
def federated(metric: Metric, **options: Unpack[MetricOptions]) -> FederatedMetric: ...


def federated(
    metric: Metric | MetricCollection, **options: Unpack[MetricOptions]
) -> FederatedMetric | MetricCollection:
    """Return the federated twin of a metric, or of a collection, of torchmetrics.

    It has the same task, classes, average, ``ignore_index``, thresholds and names. A collection
    keeps its prefix and postfix, and its metrics share one release and one charge. Data that was
    counted already stays behind. Scores that are logits need ``normalization``, which torchmetrics
    guesses and a federated metric does not.

    Args:
        metric: a metric or a collection of ``torchmetrics.classification``.
        options: what torchmetrics does not have, for instance ``privacy``, ``ledger`` and
            ``normalization``, as in :class:`~torchmetrics_fed.FederatedMetric`. They win over the
            metric's own.

    Raises:
        InputError: if a metric has no twin. The error names all that have none, and the reason.

    Example:
        >>> from torchmetrics import MetricCollection
        >>> from torchmetrics.classification import BinaryAUROC, BinaryF1Score
        >>> from torchmetrics_fed import CentralDP, federated
        >>> metrics = MetricCollection([BinaryAUROC(), BinaryF1Score()], prefix="val_")
        >>> private = federated(metrics, privacy=CentralDP(epsilon=1.0))
        >>> sorted(private.keys())
        ['val_BinaryAUROC', 'val_BinaryF1Score']
    """
    if isinstance(metric, MetricCollection):
        return _federated_collection(metric, options)
    _refuse_without_twin({type(metric).__name__: metric})
    return _twin(metric, options)


def _federated_collection(collection: MetricCollection, options: MetricOptions) -> MetricCollection:
    """Return the twin of a collection; its metrics share one client if they count alike."""
    members: dict[str, Any] = dict(collection.items(keep_base=True, copy_state=False))
    _refuse_without_twin(members)
    ledger = options.get("ledger")
    shared_options: MetricOptions = {
        **options,
        "ledger": PrivacyLedger() if ledger is None else ledger,
    }
    twins = {name: _twin(member, shared_options) for name, member in members.items()}
    if _count_alike(twins.values()):
        share_client(twins.values())
    metrics: dict[str, Metric | MetricCollection] = {**twins}
    return MetricCollection(metrics, prefix=collection.prefix, postfix=collection.postfix)


def _count_alike(twins: Iterable[FederatedMetric]) -> bool:
    """Whether metrics have one spec. Private metrics that have not are refused."""
    specs = [twin.spec for twin in twins]
    if all(spec.digest == specs[0].digest for spec in specs):
        return True
    if any(spec.privacy.charges for spec in specs):
        raise InputError(
            "Expected metrics that can share one private release but they differ in `thresholds`, "
            "`ignore_index` or their classes. Pass `grid=` for all of them, or convert them in "
            "several collections, each with a charge of its own."
        )
    return False


def _refuse_without_twin(members: Mapping[str, Any]) -> None:
    """Raise, with all names and reasons, if a metric has no federated twin."""
    reasons = {name: _reason_against(member) for name, member in members.items()}
    lines = [
        f"{name} ({type(members[name]).__name__}): {reason}."
        for name, reason in reasons.items()
        if reason
    ]
    if lines:
        raise InputError(
            "Expected metrics that have a federated twin but these have none. Leave them out, and "
            "keep them at each client.\n- " + "\n- ".join(lines)
        )


def _reason_against(metric: Any) -> str:
    """Return why a metric has no federated twin; empty if it has one."""
    name = type(metric).__name__
    if isinstance(metric, CountsMetric):
        return "it is federated already"
    if isinstance(metric, WrapperMetric):
        return "it is a wrapper. Wrap the twin of the metric inside it"
    is_torchmetrics = type(metric).__module__.startswith("torchmetrics.")
    if is_torchmetrics and name in WITHOUT_TWIN:
        return WITHOUT_TWIN[name]
    if not is_torchmetrics or name not in TWINS:
        return "it is not a metric of torchmetrics.classification"
    if getattr(metric, "multidim_average", "global") != "global":
        return (
            'multidim_average="samplewise" is a value of each example, which never leaves a client'
        )
    if getattr(metric, "normalize", None) not in (None, "none"):
        return "`normalize` is a division of FederatedConfusionMatrix's counts, left to the caller"
    if getattr(metric, "zero_division", 0) != 0:
        return "`zero_division` is 0 here"
    return ""


def _twin(metric: Any, options: MetricOptions) -> FederatedMetric:
    arguments = {**_arguments(metric), **options}
    twin: FederatedMetric = TWINS[type(metric).__name__](**arguments)
    return twin


def _arguments(metric: Any) -> dict[str, Any]:
    """Return the arguments of the twin that torchmetrics' metric determines."""
    name = type(metric).__name__
    arguments: dict[str, Any] = {}
    for argument in (*_SAME_ARGUMENTS, *_TORCHMETRICS_ARGUMENTS):
        if getattr(metric, argument, None) is not None:
            arguments[argument] = getattr(metric, argument)
    if name.endswith("F1Score"):
        del arguments["beta"]
    if name.startswith("Multiclass"):
        arguments |= {"task": "multiclass", "num_classes": metric.num_classes}
        arguments["average"] = _average(metric)
    elif name.startswith("Multilabel"):
        arguments |= {"task": "multilabel", "num_labels": metric.num_labels}
        arguments["average"] = _average(metric)
    thresholds = getattr(metric, "thresholds", None)
    if thresholds is not None:
        arguments["grid"] = _grid(thresholds)
    return arguments


def _average(metric: Any) -> Any:
    """Return the average over classes or labels."""
    if type(metric).__name__ == "MultilabelMatthewsCorrCoef":
        return "micro"  # torchmetrics sums the matrices of all labels
    # torchmetrics' LogAUC has the average of its curve in `average`, and its own in `average2`
    return getattr(metric, "average2", getattr(metric, "average", None))


def _grid(thresholds: torch.Tensor) -> ScoreGrid:
    """Return the grid on [0, 1] whose inner edges are these thresholds."""
    inner = set(thresholds.detach().cpu().double().tolist())
    return ScoreGrid.from_edges(sorted({0.0, *inner, ABOVE_ONE}))
