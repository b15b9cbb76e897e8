"""The exact curves of scores, and how far an estimate is from them: by area, and by the errors it is compared with."""

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
"""Columns of a result: Area Error, difference of AUROC or average precision, point errors; of ROC, then of PR."""


class Curves(NamedTuple):
    """An estimate. ROC is missing where it is the same as another estimate's."""

    roc: ROCCurve | None
    pr: PrecisionRecallCurve


@dataclass(frozen=True)
class Truth:
    """Scores with their labels, and what follows from them exactly."""

    target: NDArray[np.int64]
    score: _Array

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Scores and labels, as metrics want them."""
        return torch.from_numpy(self.score), torch.from_numpy(self.target)

    @cached_property
    def roc(self) -> tuple[_Array, _Array]:
        """False and true positive rate, without points on straight lines."""
        return roc_curve(self.target, self.score)[:2]  # type: ignore[no-any-return]

    @cached_property
    def pr(self) -> tuple[_Array, _Array]:
        """Precision and recall, of each recall the highest threshold alone: the step reads no other."""
        precision, recall, _ = precision_recall_curve(self.target, self.score)
        kept = np.append(np.diff(recall) != 0, True)
        return precision[kept], recall[kept]

    @cached_property
    def areas(self) -> tuple[float, float]:
        """AUROC and average precision."""
        return roc_auc_score(self.target, self.score), average_precision_score(
            self.target, self.score
        )

    @cached_property
    def points(self) -> tuple[_Array, _Array, dict[str, _Array]]:
        """Distinct scores, ascending, the fraction of examples at each, and the rates of what scores at least it."""
        at, inverse, size = np.unique(self.score, return_inverse=True, return_counts=True)
        positive = np.bincount(inverse, self.target)
        true, selected = (row[::-1].cumsum()[::-1] for row in (positive, size))
        rates = {
            "fpr": (selected - true) / (size.sum() - positive.sum()),
            "tpr": true / positive.sum(),
        }
        return at, size / size.sum(), rates | {"precision": true / selected}

    def errors(self, estimate: Curves) -> dict[str, float]:
        """Return the :data:`MEASURES` of an estimate."""
        roc, pr = estimate
        result = dict.fromkeys(MEASURES, float("nan"))
        if roc is not None:
            result["area_error_roc"] = area_error_roc(roc, self.roc)
            result["summary_roc"] = abs(float(auroc_from_curve(roc)) - self.areas[0])
            curve = {"fpr": roc.fpr.flip(0), "tpr": roc.tpr.flip(0)}
            result["point_absolute_roc"], result["point_squared_roc"] = self._points(
                roc.thresholds.flip(0), curve
            )
        result["area_error_pr"] = area_error_pr(pr, self.pr)
        result["summary_pr"] = abs(float(average_precision_from_curve(pr)) - self.areas[1])
        curve = {"precision": pr.precision[:-1], "tpr": pr.recall[:-1]}
        result["point_absolute_pr"], result["point_squared_pr"] = self._points(pr.thresholds, curve)
        return result

    def _points(self, thresholds: Tensor, curve: dict[str, Tensor]) -> tuple[float, float]:
        """Mean over examples of the distance at their scores, absolute and squared, summed over both coordinates."""
        at, weight, rates = self.points
        absolute = squared = 0.0
        for name, values in curve.items():
            distance = np.interp(at, thresholds.numpy(), values.numpy()) - rates[name]
            absolute += float(weight @ abs(distance))
            squared += float(weight @ distance**2)
        return absolute, squared
