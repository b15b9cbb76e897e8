"""Functions of scores, of releases and leaf counts, and of curves; every result has ``.scalars`` and ``.plot()``.

Examples assume ``import torch``, and an import of the name that they document.
"""

from torchmetrics_fed.functional.area_error import area_error_pr, area_error_roc
from torchmetrics_fed.functional.band import (
    Band,
    Interval,
    auroc_interval,
    average_precision_interval,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.functional.calibration import (
    Calibration,
    calibration,
    calibration_from_counts,
)
from torchmetrics_fed.functional.calls import (
    Confusion,
    PredictiveValues,
    confusion_at,
    predictive_values,
)
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
    mann_whitney_u,
    roc,
    roc_from_counts,
    roc_from_quantiles,
)
from torchmetrics_fed.functional.tradeoffs import (
    DETCurve,
    PrecisionRecallGainCurve,
    area_under_gain,
    det_curve,
    det_from_counts,
    precision_recall_gain_curve,
    precision_recall_gain_from_counts,
)
from torchmetrics_fed.reconstruct.histograms import Histograms, read

__all__ = ["Histograms", "area_error_pr", "area_error_roc", "read"]
__all__ += ["ROCCurve", "roc", "roc_from_counts", "roc_from_quantiles"]
__all__ += ["PrecisionRecallCurve", "precision_recall_curve"]
__all__ += ["precision_recall_from_counts", "precision_recall_from_quantiles"]
__all__ += ["DETCurve", "det_curve", "det_from_counts"]
__all__ += [
    "PrecisionRecallGainCurve",
    "precision_recall_gain_curve",
    "precision_recall_gain_from_counts",
]
__all__ += ["area_under_gain", "auroc", "auroc_from_counts", "auroc_from_curve", "mann_whitney_u"]
__all__ += ["average_precision", "average_precision_from_counts", "average_precision_from_curve"]
__all__ += [
    "Band",
    "Interval",
    "auroc_interval",
    "average_precision_interval",
    "precision_recall_band",
    "roc_band",
]
__all__ += ["Calibration", "calibration", "calibration_from_counts"]
__all__ += ["CalibrationLine", "Recalibration", "calibration_line", "recalibrate"]
__all__ += ["OperatingPoint", "best_f1", "kolmogorov_smirnov", "least_cost", "precision_at_recall"]
__all__ += [
    "recall_at_precision",
    "sensitivity_at_specificity",
    "specificity_at_sensitivity",
    "youden",
]
__all__ += ["Confusion", "PredictiveValues", "confusion_at", "predictive_values"]
__all__ += ["CumulativeGains", "NetBenefit", "cumulative_gains", "net_benefit"]
__all__ += [
    "Drift",
    "GroupGaps",
    "group_gaps",
    "population_stability_index",
]
__all__ += ["figure_size", "plot_histograms", "small_multiples"]
