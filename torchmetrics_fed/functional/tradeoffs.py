r"""Tradeoffs in other coordinates: error rates on normal deviates (DET), and precision-recall-gain curves.

With :math:`\pi = n^+ / (n^+ + n^-)`, gain (Flach & Kull, NeurIPS 2015) is :math:`(x - \pi) / ((1 - \pi) x)`: 0 for the
classifier that calls everything positive, 1 for the perfect one. In rates :math:`PG = 1 - F/T`,
:math:`RG = 1 - \frac{n^+}{n^-} (1/T - 1)`. Where FP is linear in TP, PG is linear in RG: straight lines are exact.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.averages import Averaging, checked_average
from torchmetrics_fed.functional.curve import CurveOptions, count, tails_of
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Readable
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
        """The equal error rate, at which the curve, linear between its points, crosses the diagonal."""
        fpr = self.fpr.double()
        gap = fpr - self.fnr.double()
        after = (gap <= 0).int().argmax(-1, keepdim=True).clamp(min=1)
        left, right = gap.gather(-1, after - 1), gap.gather(-1, after)
        step = torch.where(left == right, 0.0, left / (left - right)).clamp(0, 1)
        return {
            "equal_error_rate": torch.lerp(fpr.gather(-1, after - 1), fpr.gather(-1, after), step)[
                ..., 0
            ]
        }

    def plot(
        self, score: Score = None, ax: Any = None, label: str | None = None, labels: Labels = None
    ) -> Any:
        r"""Draw the curve on normal-deviate axes (Martin et al. 1997), and return ``(fig, ax)``.

        Both rates are drawn at :math:`\Phi^{-1}`, so scores that are normal in each class make a straight line. The
        legend shows the equal error rate (EER). Arguments are those of :meth:`ROCCurve.plot`.
        """
        error, curves = self.scalars["equal_error_rate"], (_deviate(self.fpr), _deviate(self.fnr))
        low, high = _view(ax, error)
        axes, names = ("False positive rate (%)", "False negative rate (%)"), ("DET", label, labels)
        chance, shown = (
            ([-6, 6], [6, -6], "chance" if high > 0 else "_nolegend_"),
            (score, error, "EER {:.2%}"),
        )
        fig, ax = plot_curves(
            curves, shown, axes, ax, names, chance, lowest_is_best=True, rates=False
        )
        at = _deviate(torch.tensor(_PERCENT, dtype=torch.float64) / 100).tolist()
        ticks = [
            (place, f"{percent:g}")
            for place, percent in zip(at, _PERCENT, strict=True)
            if low <= place <= high
        ]
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(*zip(*ticks, strict=True))
        ax.set(xlim=(low, high), ylim=(low, high))
        ax.set_aspect("equal", adjustable="box")
        return fig, ax


def det_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
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
    return DETCurve(
        tails.tail[..., 0, :].flip(-1), 1 - tails.tail[..., 1, :].flip(-1), tails.thresholds.flip(0)
    )


def det_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
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


class PrecisionRecallGainCurve(NamedTuple):
    """A PR-gain curve in the unit square and the PR curve's order: thresholds increase, recall gain falls from 1 to 0.

    It ends where recall is pi, at recall gain 0: thresholds above that crossing all stand at it. Precision gain is cut
    off at 0, below which calling everything positive is better. The first three have the same length because the
    PR curve's last point, of no threshold, is not on this curve.

    Example:
        >>> precision_recall_gain_from_counts(torch.tensor([[3, 1], [1, 3]])).area
        tensor(0.5556, dtype=torch.float64)
    """

    precision_gain: Tensor
    recall_gain: Tensor
    thresholds: Tensor
    area: Tensor
    """The area under the curve, as :func:`area_under_gain` has it."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The area under the curve."""
        return {"area_under_gain": self.area}

    def plot(
        self, score: Score = None, ax: Any = None, label: str | None = None, labels: Labels = None
    ) -> Any:
        """Draw the curve, and return ``(fig, ax)``. On the dashed line F1 is that of selecting everything.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        curves, area = (self.recall_gain, self.precision_gain), (score, self.area, "AUPRG {:.4f}")
        axes, chance = ("Recall gain", "Precision gain"), ([0, 1], [1, 0], "F1 of selecting all")
        return plot_curves(curves, area, axes, ax, ("PR gain", label, labels), chance, mean=True)


def precision_recall_gain_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> PrecisionRecallGainCurve:
    """Return the PR-gain curve of a release or of leaf counts; both gains are 0 throughout where a class is empty.

    Arguments are those of :func:`roc_from_counts`; ``average`` is None or ``"micro"``.

    Example:
        >>> precision_recall_gain_from_counts(torch.tensor([[3, 1], [1, 3]]))[:2]
        (tensor([0.0000, 0.6667], dtype=torch.float64), tensor([1.0000, 0.6667], dtype=torch.float64))
    """
    tails = tails_of(source, edges, reconstruction, average)
    precision, recall = _gains(tails)
    # the first threshold selects nothing, as in the PR curve
    shown = (
        precision.clamp(0.0, 1.0)[..., 1:].flip(-1),
        recall[..., 1:].flip(-1),
        tails.thresholds[1:].flip(0),
    )
    negative, positive = tails.total.unbind(-1)
    lowest = torch.where((positive > 0) & (negative > 0), -negative / (2 * positive), 0.0)
    # only rounding can leave the range
    area = torch.maximum(torch.trapezoid(precision, recall), lowest).clamp(max=1.0)
    return PrecisionRecallGainCurve(*shown, area)


def area_under_gain(source: Readable) -> Tensor:
    r"""Return the area under the PR-gain curve (AUPRG) of a release or of leaf counts, in :math:`[-n^-/(2 n^+), 1]`.

    The rule of the authors' software: trapezoids in gain space over recall gain from 0 to 1, the curve entering at
    recall gain 0 by linear interpolation of the counts, and negative precision gains counting negatively. The lower
    end is reached where every negative scores above every positive. It is 0 where a class is empty.

    Example:
        >>> area_under_gain(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.5556, dtype=torch.float64)
    """
    return precision_recall_gain_from_counts(source).area


def _gains(tails: Tails) -> tuple[Tensor, Tensor]:
    """Precision gain, which may be negative, and recall gain in [0, 1], points outside it moved to the crossing."""
    negative, positive = tails.total[..., None].unbind(-2)
    f, t = tails.tail.unbind(-2)
    # the bounds keep 1/T and RG finite where noise left almost nothing of a class
    pi = (positive / (positive + negative)).clamp(1e-300, 1.0)
    odds = (positive / negative).clamp(max=1e300)
    inside = t >= pi
    after = inside.int().argmax(-1, keepdim=True)
    before = (after - 1).clamp(min=0)
    weight = (pi - t.gather(-1, before)) / (t.gather(-1, after) - t.gather(-1, before))
    crossing = torch.lerp(f.gather(-1, before), f.gather(-1, after), weight.clamp(0.0, 1.0))
    f, t = torch.where(inside, f, crossing), torch.where(inside, t, pi)
    precision_gain = 1 - f / t
    recall_gain = torch.where(inside, 1 - odds * (1 / t - 1), 0.0).clamp(0.0, 1.0)
    defined = (positive > 0) & (negative > 0)
    return torch.where(defined, precision_gain, 0.0), torch.where(defined, recall_gain, 0.0)


def precision_recall_gain_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> PrecisionRecallGainCurve:
    """Return the PR-gain curve of binned scores; twin of :class:`~torchmetrics_fed.FederatedPrecisionRecallGain`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> precision_recall_gain_curve(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).area
        tensor(0.2500, dtype=torch.float64)
    """
    average = checked_average(average, ("micro",), task)
    return precision_recall_gain_from_counts(count(preds, target, task, **options), average=average)
