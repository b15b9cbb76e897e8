"""Picture of a precision-recall curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.average_precision import average_precision_from_curve
from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve
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

__all__ = ["plot_precision_recall"]


def plot_precision_recall(
    curve: PrecisionRecallCurve,
    score: Tensor | float | None = None,
    ax: Any = None,
    label: str = "PR",
    labels: Sequence[str] | None = None,
    band: Band | None = None,
    interval: Interval | None = None,
) -> Any:
    """Draw a PR curve as the step that its average precision is the area of, and return ``(fig, ax)``.

    The chance line is the positives' share, the precision where everything is selected; the mean of the classes'.

    Args:
        curve: with or without a class axis, as in :func:`plot_roc`.
        score: the average precision to show; that of the curve if not given.
        ax: axes to draw on; new ones if not given.
        label: legend entry of a curve without class axis.
        labels: those of the classes.
        band: shaded behind the curve, if given.
        interval: of the average precision, shown behind it, if given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import precision_recall_from_counts
        >>> from torchmetrics_fed.plot import plot_precision_recall
        >>> fig, ax = plot_precision_recall(precision_recall_from_counts(torch.tensor([[3, 1], [1, 3]])))
        >>> [line.get_label() for line in ax.get_lines()]
        ['chance (0.5)', 'PR (AP 0.6875)']
    """
    precision, recall = rows(curve.precision), rows(curve.recall)
    shown, form = with_interval(average_precision_from_curve(curve) if score is None else score, interval, "AP {:.4f}")
    names = entries(len(recall), label, labels, shown, form)
    fig, ax = open_axes(ax, names)
    share = float(precision[:, 0].mean())
    draw_chance(ax, [0, 1], [share, share], f"{'chance' if len(recall) == 1 else 'mean chance'} ({share:.2g})")
    draw_bands(ax, draw_curves(ax, recall, precision, names, drawstyle="steps-post"), band)
    dress(ax, "Recall", "Precision")
    return fig, ax
