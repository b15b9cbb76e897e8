"""Pictures of curves that are already there: nothing is released here, and matplotlib is imported only when drawing."""

from torchmetrics_fed.plot.calibration import plot_calibration
from torchmetrics_fed.plot.det import plot_det
from torchmetrics_fed.plot.gain import plot_gain
from torchmetrics_fed.plot.histogram import plot_histograms
from torchmetrics_fed.plot.precision_recall import plot_precision_recall
from torchmetrics_fed.plot.roc import plot_roc
from torchmetrics_fed.plot.sheet import draw_sheet, evaluation_sheet

__all__ = [
    "draw_sheet",
    "evaluation_sheet",
    "plot_calibration",
    "plot_det",
    "plot_gain",
    "plot_histograms",
    "plot_precision_recall",
    "plot_roc",
]
