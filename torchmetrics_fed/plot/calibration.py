"""Reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchmetrics_fed.functional.calibration import Calibration
from torchmetrics_fed.plot.canvas import draw_chance, draw_curves, dress, entries, open_axes, rows

__all__ = ["plot_calibration"]

_AREA = 80.0  # of the fullest bin's marker, in square points


def plot_calibration(
    calibration: Calibration, ax: Any = None, label: str = "scores", labels: Sequence[str] | None = None
) -> Any:
    r"""Draw the positives' share against the mean score of each bin, and return ``(fig, ax)``.

    A marker's area is its bin's count. The legend shows the expected calibration error (ECE) and the Brier score.

    Args:
        calibration: with or without a class axis, as in :func:`plot_roc`.
        ax: axes to draw on; new ones if not given.
        label: legend entry of a curve without class axis.
        labels: those of the classes.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.calibration import calibration_from_counts
        >>> from torchmetrics_fed.plot import plot_calibration
        >>> fig, ax = plot_calibration(calibration_from_counts(torch.tensor([[3, 1], [1, 3]])))
        >>> ax.get_lines()[-1].get_label()
        'scores (ECE 0.0000,\nBrier 0.1875)'
    """
    predicted, observed, count = rows(calibration.predicted), rows(calibration.observed), rows(calibration.examples)
    observed = torch.where(count > 0, observed, torch.nan)  # an empty bin has no share of positives
    scores = torch.stack([calibration.expected_calibration_error, calibration.brier_score])
    form = "ECE {:.3f}, Brier {:.3f}" if 1 < len(count) <= 10 else "ECE {:.4f},\nBrier {:.4f}"
    names = entries(len(count), label, labels, scores, form)
    fig, ax = open_axes(ax, names)
    draw_chance(ax, [0, 1], [0, 1], "calibrated")
    each = len(names) == len(count)
    colours = draw_curves(ax, predicted, observed, names, **({"linewidth": 0.9} if each else {}))
    if each:
        area = _AREA * count / count.amax(-1, keepdim=True).clamp(min=1e-9)
        for x, y, size, colour in zip(predicted, observed, area, colours, strict=True):
            ax.scatter(x[size > 0], y[size > 0], s=size[size > 0], color=colour, alpha=0.8, linewidth=0, zorder=2.5)
    dress(ax, "Mean score", "Share of positives")
    return fig, ax
