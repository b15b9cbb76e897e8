"""Pictures of curves. matplotlib is imported inside."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.area import area_under_pr, area_under_roc
from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve
from torchmetrics_fed.functional.roc import ROCCurve

__all__ = ["plot_precision_recall", "plot_roc"]


def plot_roc(curve: ROCCurve, score: Tensor | float | None = None, ax: Any = None, label: str = "ROC") -> Any:
    """Draw a ROC curve with the chance line and its AUROC (``score``, or the area under the curve)."""
    fig, ax = _axes(ax)
    fpr, tpr = (values.detach().cpu().double() for values in curve[:2])
    area = area_under_roc(curve) if score is None else score
    ax.plot([0, 1], [0, 1], color="0.7", linestyle="--", linewidth=1)
    ax.plot(fpr, tpr, linewidth=1.6, label=f"{label} (AUROC {float(area):.4f})")
    return _finish(fig, ax, "False positive rate", "True positive rate", "lower right")


def plot_precision_recall(
    curve: PrecisionRecallCurve, score: Tensor | float | None = None, ax: Any = None, label: str = "PR"
) -> Any:
    """Draw a PR curve with the positives' share as chance line and its average precision."""
    fig, ax = _axes(ax)
    precision, recall = (values.detach().cpu().double() for values in curve[:2])
    area = area_under_pr(curve) if score is None else score
    ax.axhline(float(precision[0]), color="0.7", linestyle="--", linewidth=1)
    ax.plot(recall, precision, linewidth=1.6, drawstyle="steps-post", label=f"{label} (AP {float(area):.4f})")
    return _finish(fig, ax, "Recall", "Precision", "lower left")


def _axes(ax: Any) -> tuple[Any, Any]:
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected matplotlib for plots but it is not installed: pip install torchmetrics-fed[plot]"
        ) from error
    if ax is not None:
        return ax.figure, ax
    fig, ax = plt.subplots(figsize=(4.5, 4.2), layout="constrained")
    return fig, ax


def _finish(fig: Any, ax: Any, x: str, y: str, legend: str) -> tuple[Any, Any]:
    ax.set(xlabel=x, ylabel=y, xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    ax.grid(color="0.9", linewidth=0.6)
    ax.legend(loc=legend, frameon=False)
    return fig, ax
