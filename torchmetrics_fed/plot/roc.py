"""Picture of a ROC curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.auroc import auroc_from_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.roc import ROCCurve
from torchmetrics_fed.plot.canvas import (
    draw_bands,
    draw_chance,
    draw_curves,
    dress,
    entries,
    open_axes,
    rows,
    with_interval,
)

__all__ = ["plot_roc"]


def plot_roc(
    curve: ROCCurve,
    score: Tensor | float | None = None,
    ax: Any = None,
    label: str = "ROC",
    labels: Sequence[str] | None = None,
    band: Band | None = None,
    interval: Interval | None = None,
) -> Any:
    """Draw a ROC curve with the chance line, and return ``(fig, ax)``.

    Args:
        curve: with or without a class axis: one line per class, all of them in grey where they are more than ten.
        score: the AUROC to show; the area under the curve if not given.
        ax: axes to draw on; new ones if not given.
        label: legend entry of a curve without class axis.
        labels: those of the classes.
        band: shaded behind the curve, if given.
        interval: of the AUROC, shown behind it, if given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> from torchmetrics_fed.plot import plot_roc
        >>> fig, ax = plot_roc(roc_from_counts(torch.tensor([[3, 1], [1, 3]])))
        >>> ax.get_lines()[-1].get_label()
        'ROC (AUROC 0.7500)'
    """
    fpr, tpr = rows(curve.fpr), rows(curve.tpr)
    shown, form = with_interval(auroc_from_curve(curve) if score is None else score, interval, "AUROC {:.4f}")
    names = entries(len(fpr), label, labels, shown, form)
    fig, ax = open_axes(ax, names)
    draw_chance(ax, [0, 1], [0, 1], "chance")
    draw_bands(ax, draw_curves(ax, fpr, tpr, names), band)
    dress(ax, "False positive rate", "True positive rate")
    return fig, ax
