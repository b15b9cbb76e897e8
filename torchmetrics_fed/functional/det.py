"""Detection error tradeoff: the two error rates against each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.curve import CurveOptions, count, tails_of
from torchmetrics_fed.functional.figures import canvas
from torchmetrics_fed.functional.source import Averaging, Edges, Readable, checked_average
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.typing import Task

_PERCENT = (0.001, 0.01, 0.1, 1, 5, 20, 50, 80, 95, 99)
_FINITE = 1e-9  # rates of 0 and 1 lie at infinity; here they are just out of view


class DETCurve(NamedTuple):
    """A DET curve in scikit-learn's order: thresholds increase, fpr falls from 1 to 0, fnr rises from 0 to 1.

    Example:
        >>> det_from_counts(torch.tensor([[3, 1], [1, 3]])).fnr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    fnr: Tensor
    thresholds: Tensor

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The equal error rate, where the curve crosses the diagonal."""
        rate = _equal_error(canvas.rows(self.fpr), canvas.rows(self.fnr))
        return {"equal_error_rate": rate[0] if self.fpr.ndim == 1 else rate}

    def plot(
        self, score: canvas.Score = None, ax: Any = None, label: str | None = None, labels: canvas.Labels = None
    ) -> Any:
        r"""Draw the curve on normal-deviate axes (Martin et al. 1997), and return ``(fig, ax)``.

        Both rates are drawn at :math:`\Phi^{-1}`, so scores that are normal in each class make a straight line. The
        legend shows the equal error rate (EER). Arguments are those of :meth:`ROCCurve.plot`.
        """
        error, curves = self.scalars["equal_error_rate"], (_deviate(self.fpr), _deviate(self.fnr))
        low, high = _view(ax, error)
        axes, names = ("False positive rate (%)", "False negative rate (%)"), ("DET", label, labels)
        chance, shown = ([-6, 6], [6, -6], "chance" if high > 0 else "_nolegend_"), (score, error, "EER {:.2%}")
        fig, ax = canvas.plot_curves(curves, shown, axes, ax, names, chance, lowest_is_best=True, rates=False)
        at = _deviate(torch.tensor(_PERCENT, dtype=torch.float64) / 100).tolist()
        ticks = [(place, f"{percent:g}") for place, percent in zip(at, _PERCENT, strict=True) if low <= place <= high]
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(*zip(*ticks, strict=True))
        ax.set(xlim=(low, high), ylim=(low, high))
        ax.set_aspect("equal", adjustable="box")
        return fig, ax


def det_from_counts(
    source: Readable, edges: Edges = None, reconstruction: Reconstruction | None = None, average: Averaging = None
) -> DETCurve:
    r"""Return the DET curve of a release or of leaf counts: :math:`1 - T` against F.

    All edges are points; scikit-learn leaves out those that repeat fnr = 0 or fpr = 0 at the ends. Without positives
    the true positive rate is set to 0, so fnr is 1 throughout; without negatives fpr is 0. Arguments are those of
    :func:`roc_from_counts`; ``average`` is None or ``"micro"``.

    Example:
        >>> det_from_counts(torch.tensor([[3, 1], [1, 3]])).fpr
        tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64)
    """
    tails = tails_of(source, edges, reconstruction, average)
    return DETCurve(tails.tail[..., 0, :].flip(-1), 1 - tails.tail[..., 1, :].flip(-1), tails.thresholds.flip(0))


def det_curve(
    preds: Tensor, target: Tensor, task: Task = "binary", *, average: Averaging = None, **options: Unpack[CurveOptions]
) -> DETCurve:
    """Return the DET curve of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedDET`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> det_curve(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).scalars
        {'equal_error_rate': tensor(0.5000, dtype=torch.float64)}
    """
    average = checked_average(average, ("micro",), task)
    return det_from_counts(count(preds, target, task, **options), average=average)


def _deviate(rate: Tensor) -> Tensor:
    deviate: Tensor = torch.special.ndtri(rate.double().clamp(_FINITE, 1 - _FINITE))
    return deviate


def _view(ax: Any, error: Tensor) -> tuple[float, float]:
    """Ends of both axes: wide enough for every curve to pass from one end to the other, and for those drawn before."""
    at = torch.special.ndtri(error.clamp(1e-4, 0.5))
    low, high = min(-3.3, at.min().item() - 1.0), min(2.6, at.max().item() + 2.6)
    if ax is not None and any(line.get_gid() == "curve" for line in ax.get_lines()):
        low, high = min(low, ax.get_xlim()[0]), max(high, ax.get_xlim()[1])
    return low, high


def _equal_error(fpr: Tensor, fnr: Tensor) -> Tensor:
    """Rate at which each curve, linear between its points, crosses fpr = fnr."""
    gap = fpr - fnr
    after = (gap <= 0).int().argmax(-1, keepdim=True).clamp(min=1)
    left, right = gap.gather(-1, after - 1), gap.gather(-1, after)
    step = torch.where(left == right, 0.0, left / (left - right)).clamp(0, 1)
    return torch.lerp(fpr.gather(-1, after - 1), fpr.gather(-1, after), step)[:, 0]
