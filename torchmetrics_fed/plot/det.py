"""Picture of a detection error trade-off curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.functional.det import DETCurve
from torchmetrics_fed.plot.canvas import draw_chance, draw_curves, dress, entries, open_axes, rows

__all__ = ["plot_det"]

_PERCENT = (0.001, 0.01, 0.1, 1, 5, 20, 50, 80, 95, 99)
_FINITE = 1e-9  # rates of 0 and 1 lie at infinity; here they are just out of view


def plot_det(curve: DETCurve, ax: Any = None, label: str = "DET", labels: Sequence[str] | None = None) -> Any:
    r"""Draw a DET curve on normal-deviate axes (Martin et al. 1997), and return ``(fig, ax)``.

    Both rates are drawn at :math:`\Phi^{-1}`, so scores that are normal in each class make a straight line. The legend
    shows the equal error rate (EER), where the curve crosses the diagonal.

    Args:
        curve: with or without a class axis, as in :func:`plot_roc`.
        ax: axes to draw on; new ones if not given.
        label: legend entry of a curve without class axis.
        labels: those of the classes.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.det import DETCurve
        >>> from torchmetrics_fed.plot import plot_det
        >>> fpr, fnr, thresholds = torch.tensor([[1, 0.25, 0], [0, 0.25, 1], [0, 0.5, 1]])
        >>> fig, ax = plot_det(DETCurve(fpr, fnr, thresholds))
        >>> ax.get_lines()[-1].get_label()
        'DET (EER 25.00%)'
    """
    fpr, fnr = rows(curve.fpr), rows(curve.fnr)
    error = _equal_error(fpr, fnr)
    names = entries(len(fpr), label, labels, 100 * error, "EER {:.2f}%")
    fig, ax = open_axes(ax, names)
    low, high = _view(ax, error)
    draw_chance(ax, [-6, 6], [6, -6], "chance" if high > 0 else "_nolegend_")
    draw_curves(ax, _deviate(fpr), _deviate(fnr), names)
    at = _deviate(torch.tensor(_PERCENT, dtype=torch.float64) / 100).tolist()
    ticks = [(place, f"{percent:g}") for place, percent in zip(at, _PERCENT, strict=True) if low <= place <= high]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(*zip(*ticks, strict=True))
    ax.set(xlim=(low, high), ylim=(low, high))
    ax.set_aspect("equal", adjustable="box")
    dress(ax, "False positive rate (%)", "False negative rate (%)", rates=False)
    return fig, ax


def _deviate(rate: Tensor) -> Tensor:
    deviate: Tensor = torch.special.ndtri(rate.clamp(_FINITE, 1 - _FINITE))
    return deviate


def _view(ax: Any, error: Tensor) -> tuple[float, float]:
    """Ends of both axes: wide enough for every curve to pass from one end to the other, and for those drawn before."""
    at = torch.special.ndtri(error.clamp(1e-4, 0.5))
    low, high = min(-3.3, at.min().item() - 1.0), min(2.6, at.max().item() + 2.6)
    if any(line.get_gid() == "curve" for line in ax.get_lines()):
        low, high = min(low, ax.get_xlim()[0]), max(high, ax.get_xlim()[1])
    return low, high


def _equal_error(fpr: Tensor, fnr: Tensor) -> Tensor:
    """Rate at which each curve, linear between its points, crosses fpr = fnr."""
    gap = fpr - fnr
    after = (gap <= 0).int().argmax(-1, keepdim=True).clamp(min=1)
    left, right = gap.gather(-1, after - 1), gap.gather(-1, after)
    step = torch.where(left == right, 0.0, left / (left - right)).clamp(0, 1)
    return torch.lerp(fpr.gather(-1, after - 1), fpr.gather(-1, after), step)[:, 0]
