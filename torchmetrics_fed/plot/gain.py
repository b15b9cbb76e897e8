"""Picture of a precision-recall-gain curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve
from torchmetrics_fed.plot.canvas import draw_chance, draw_curves, dress, entries, open_axes, rows

__all__ = ["plot_gain"]


def plot_gain(
    curve: PrecisionRecallGainCurve,
    score: Tensor | float | None = None,
    ax: Any = None,
    label: str = "PR gain",
    labels: Sequence[str] | None = None,
) -> Any:
    """Draw a precision-recall-gain curve (Flach and Kull 2015), and return ``(fig, ax)``.

    On the dashed line F1 is that of selecting everything.

    Args:
        curve: with or without a class axis, as in :func:`plot_roc`.
        score: the area to show (AUPRG); the curve's own if not given.
        ax: axes to draw on; new ones if not given.
        label: legend entry of a curve without class axis.
        labels: those of the classes.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.gain import precision_recall_gain_from_counts
        >>> from torchmetrics_fed.plot import plot_gain
        >>> fig, ax = plot_gain(precision_recall_gain_from_counts(torch.tensor([[3, 1], [1, 3]])))
        >>> ax.get_lines()[-1].get_label()
        'PR gain (AUPRG 0.5556)'
    """
    precision, recall = rows(curve.precision_gain), rows(curve.recall_gain)
    names = entries(len(recall), label, labels, curve.area if score is None else score, "AUPRG {:.4f}")
    fig, ax = open_axes(ax, names)
    draw_chance(ax, [0, 1], [1, 0], "F1 of selecting all")
    draw_curves(ax, recall, precision, names)
    dress(ax, "Recall gain", "Precision gain")
    return fig, ax
