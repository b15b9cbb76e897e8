"""The exact curves of scores, and the errors of an estimate: by area, and point by point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from torch import Tensor

from torchmetrics_fed.functional import (
    PrecisionRecallCurve,
    ROCCurve,
    area_error_pr,
    area_error_roc,
    auroc_from_curve,
    average_precision_from_curve,
)

__all__ = ["KINDS", "MEASURES", "Curves", "Truth"]

_Array = NDArray[np.float64]

KINDS = ("area_error", "summary", "point_absolute", "point_squared")
MEASURES = tuple(f"{kind}_{curve}" for curve in ("roc", "pr") for kind in KINDS)
"""Columns of a result: Area Error, difference of AUROC or average precision, and point errors, for
ROC and then for PR."""


class Curves(NamedTuple):
    """An estimate. ROC is missing where it is the same as another estimate's."""

    roc: ROCCurve | None
    pr: PrecisionRecallCurve


@dataclass(frozen=True)
class Truth:
    """Scores with their labels, and their exact curves and areas."""

    target: NDArray[np.int64]
    score: _Array

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Scores and labels, as tensors for a metric."""
        return torch.from_numpy(self.score), torch.from_numpy(self.target)

    @cached_property
    def roc(self) -> tuple[_Array, _Array]:
        """False and true positive rate, without points on straight lines."""
        return roc_curve(self.target, self.score)[:2]  # type: ignore[no-any-return]

    @cached_property
    def pr(self) -> tuple[_Array, _Array]:
        """Precision and recall, at the highest threshold of each recall: steps read no other."""
        precision, recall, _ = precision_recall_curve(self.target, self.score)
        is_highest = np.append(np.diff(recall) != 0, True)
        return precision[is_highest], recall[is_highest]

    @cached_property
    def areas(self) -> tuple[float, float]:
        """AUROC and average precision."""
        auroc = roc_auc_score(self.target, self.score)
        average_precision = average_precision_score(self.target, self.score)
        return auroc, average_precision

    @cached_property
    def points(self) -> tuple[_Array, _Array, dict[str, _Array]]:
        """Distinct scores, ascending, the fraction of examples at each, and the rates at each.

        The rates are fpr, tpr and precision of the examples with at least that score.
        """
        scores, inverse, size = np.unique(self.score, return_inverse=True, return_counts=True)
        positives = np.bincount(inverse, self.target)
        tp = positives[::-1].cumsum()[::-1]
        selected = size[::-1].cumsum()[::-1]
        rates = {
            "fpr": (selected - tp) / (size.sum() - positives.sum()),
            "tpr": tp / positives.sum(),
            "precision": tp / selected,
        }
        return scores, size / size.sum(), rates

    def errors(self, estimate: Curves) -> dict[str, float]:
        """Return the :data:`MEASURES` of an estimate."""
        roc, pr = estimate
        result = dict.fromkeys(MEASURES, float("nan"))
        if roc is not None:
            result["area_error_roc"] = area_error_roc(roc, self.roc)
            result["summary_roc"] = abs(float(auroc_from_curve(roc)) - self.areas[0])
            curve = {"fpr": roc.fpr.flip(0), "tpr": roc.tpr.flip(0)}
            absolute, squared = self._point_errors(roc.thresholds.flip(0), curve)
            result["point_absolute_roc"] = absolute
            result["point_squared_roc"] = squared
        result["area_error_pr"] = area_error_pr(pr, self.pr)
        result["summary_pr"] = abs(float(average_precision_from_curve(pr)) - self.areas[1])
        curve = {"precision": pr.precision[:-1], "tpr": pr.recall[:-1]}
        absolute, squared = self._point_errors(pr.thresholds, curve)
        result["point_absolute_pr"] = absolute
        result["point_squared_pr"] = squared
        return result

    def _point_errors(self, thresholds: Tensor, curve: dict[str, Tensor]) -> tuple[float, float]:
        """Return the mean distance at the examples' scores, absolute and squared.

        Distances are summed over both coordinates of the curve.
        """
        scores, weight, rates = self.points
        absolute = 0.0
        squared = 0.0
        for name, values in curve.items():
            distance = np.interp(scores, thresholds.numpy(), values.numpy()) - rates[name]
            absolute += float(weight @ abs(distance))
            squared += float(weight @ distance**2)
        return absolute, squared
