"""Functions of scores, of leaf counts and of curves. The classes are these plus a state that can be summed."""

from torchmetrics_fed.functional.area import area_under_pr, area_under_roc
from torchmetrics_fed.functional.area_error import area_error_pr, area_error_roc
from torchmetrics_fed.functional.curve import Quantiles, exact_quantiles
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    Strategy,
    precision_recall_curve,
    precision_recall_from_counts,
    precision_recall_from_levels,
    precision_recall_from_quantiles,
)
from torchmetrics_fed.functional.roc import ROCCurve, roc, roc_from_counts, roc_from_levels, roc_from_quantiles

__all__ = [
    "PrecisionRecallCurve",
    "Quantiles",
    "ROCCurve",
    "Strategy",
    "area_error_pr",
    "area_error_roc",
    "area_under_pr",
    "area_under_roc",
    "exact_quantiles",
    "precision_recall_curve",
    "precision_recall_from_counts",
    "precision_recall_from_levels",
    "precision_recall_from_quantiles",
    "roc",
    "roc_from_counts",
    "roc_from_levels",
    "roc_from_quantiles",
]
