"""Functions of scores, of releases, of leaf counts, and of curves.

Every result has ``.scalars``, its numbers by name, and ``.plot()``, which draws it; a notebook
shows both. Bands and intervals are drawn with the result that they belong to. Examples assume
``import torch``, and an import of the name that they document.
"""

from torchmetrics_fed.functional.area_error import area_error_pr, area_error_roc
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.calibration import (
    Calibration,
    brier_score,
    calibration,
    calibration_error,
    calibration_from_counts,
    hinge_loss,
    log_loss,
)
from torchmetrics_fed.functional.calls import PredictiveValues, predictive_values
from torchmetrics_fed.functional.confusion import (
    SCORE_NAMES,
    Confusion,
    confusion_at,
    score_at_threshold,
)
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.functional.decisions import (
    CumulativeGains,
    NetBenefit,
    cumulative_gains,
    net_benefit,
)
from torchmetrics_fed.functional.drift import Drift, population_stability_index
from torchmetrics_fed.functional.figures.page import figure_size
from torchmetrics_fed.functional.figures.panels import plot_histograms, small_multiples
from torchmetrics_fed.functional.groups import GroupGaps, group_gaps
from torchmetrics_fed.functional.intervals import (
    auroc_interval,
    average_precision_interval,
    intervals,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.functional.operating import (
    OperatingPoint,
    best_f1,
    kolmogorov_smirnov,
    least_cost,
    precision_at_recall,
    recall_at_precision,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    youden,
)
from torchmetrics_fed.functional.precision_recall import (
    PrecisionRecallCurve,
    average_precision,
    average_precision_from_counts,
    average_precision_from_curve,
    precision_recall_curve,
    precision_recall_from_counts,
    precision_recall_from_quantiles,
)
from torchmetrics_fed.functional.recalibration import (
    CalibrationLine,
    Recalibration,
    calibration_line,
    recalibrate,
)
from torchmetrics_fed.functional.roc import (
    ROCCurve,
    auroc,
    auroc_from_counts,
    auroc_from_curve,
    log_auc,
    mann_whitney_u,
    roc,
    roc_from_counts,
    roc_from_quantiles,
)
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.functional.tradeoffs import (
    DETCurve,
    PrecisionRecallGainCurve,
    area_under_gain,
    det_curve,
    det_from_counts,
    equal_error_rate,
    precision_recall_gain_curve,
    precision_recall_gain_from_counts,
)
from torchmetrics_fed.functional.trend import Trend, trend
from torchmetrics_fed.reconstruct.histograms import Histograms

__all__ = [
    "SCORE_NAMES",
    "Band",
    "Calibration",
    "CalibrationLine",
    "Confusion",
    "CumulativeGains",
    "DETCurve",
    "Drift",
    "GroupGaps",
    "Histograms",
    "Interval",
    "NetBenefit",
    "OperatingPoint",
    "PrecisionRecallCurve",
    "PrecisionRecallGainCurve",
    "PredictiveValues",
    "ROCCurve",
    "Recalibration",
    "Trend",
    "area_error_pr",
    "area_error_roc",
    "area_under_gain",
    "auroc",
    "auroc_from_counts",
    "auroc_from_curve",
    "auroc_interval",
    "average_precision",
    "average_precision_from_counts",
    "average_precision_from_curve",
    "average_precision_interval",
    "best_f1",
    "brier_score",
    "calibration",
    "calibration_error",
    "calibration_from_counts",
    "calibration_line",
    "confusion_at",
    "count",
    "cumulative_gains",
    "det_curve",
    "det_from_counts",
    "equal_error_rate",
    "figure_size",
    "group_gaps",
    "hinge_loss",
    "intervals",
    "kolmogorov_smirnov",
    "least_cost",
    "log_auc",
    "log_loss",
    "mann_whitney_u",
    "net_benefit",
    "plot_histograms",
    "population_stability_index",
    "precision_at_recall",
    "precision_recall_band",
    "precision_recall_curve",
    "precision_recall_from_counts",
    "precision_recall_from_quantiles",
    "precision_recall_gain_curve",
    "precision_recall_gain_from_counts",
    "predictive_values",
    "read",
    "recalibrate",
    "recall_at_precision",
    "roc",
    "roc_band",
    "roc_from_counts",
    "roc_from_quantiles",
    "score_at_threshold",
    "sensitivity_at_specificity",
    "small_multiples",
    "specificity_at_sensitivity",
    "trend",
    "youden",
]
