"""Areas under curves: the scalars to log in place of a curve."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve
from torchmetrics_fed.functional.roc import ROCCurve

__all__ = ["area_under_pr", "area_under_roc"]


def area_under_roc(curve: ROCCurve) -> Tensor:
    """Return the area under a ROC curve by the trapezoidal rule: its AUROC, ties counted half.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import area_under_roc, roc_from_counts
        >>> area_under_roc(roc_from_counts(torch.tensor([[3, 1], [1, 3]])))
        tensor(0.7500, dtype=torch.float64)
    """
    return torch.trapezoid(curve.tpr, curve.fpr)


def area_under_pr(curve: PrecisionRecallCurve) -> Tensor:
    """Return the area under a PR curve read as a step: the average precision.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import area_under_pr, precision_recall_from_counts
        >>> area_under_pr(precision_recall_from_counts(torch.tensor([[3, 1], [1, 3]])))
        tensor(0.6875, dtype=torch.float64)
    """
    return -(curve.recall.diff() * curve.precision[..., :-1]).sum(-1)
