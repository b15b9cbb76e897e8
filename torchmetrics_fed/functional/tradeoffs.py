r"""Error rates on normal deviates (DET curves), and precision-recall-gain curves.

With :math:`\pi = n^+ / (n^+ + n^-)`, the gain of x (Flach & Kull, NeurIPS 2015) is
:math:`(x - \pi) / ((1 - \pi) x)`: 0 for the classifier that calls every example positive, 1 for the
perfect one. In rates, precision gain is :math:`PG = 1 - F/T` and recall gain is
:math:`RG = 1 - \frac{n^+}{n^-} (1/T - 1)`. Where FP is linear in TP, PG is linear in RG: straight
lines between the points are exact.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.averages import Averaging, checked_average
from torchmetrics_fed.functional.curve import CurveOptions, count, tails_of
from torchmetrics_fed.functional.figures.canvas import Labels, ReferenceLine, Score, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.roc import roc_from_counts
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.reconstruct.histograms import Edges, Readable
from torchmetrics_fed.typing import Task

DET_TICKS = (0.001, 0.01, 0.1, 1, 5, 20, 50, 80, 95, 99)
"""Ticks of both axes of a DET curve, in percent."""

VISIBLE_RATE = 1e-9
"""Rates of 0 and 1, which lie at infinity, are drawn at this rate, just out of view."""

VIEW_START = -3.3
"""The low end of both axes of a DET curve, in normal deviates; lower for small error rates."""

VIEW_LENGTH = 2.6
"""The axes of a DET curve end this far above the largest equal error rate, in normal deviates."""


class DETCurve(NamedTuple):
    """A DET curve in scikit-learn's order.

    Thresholds increase, fpr falls from 1 to 0, and fnr rises from 0 to 1.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> det_from_counts(counts).fnr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    fnr: Tensor
    thresholds: Tensor

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The equal error rate: the curve, linear between its points, crosses fpr = fnr there."""
        return {"equal_error_rate": _crossing(self.fpr, self.fnr)}

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        r"""Draw the curve on normal-deviate axes (Martin et al. 1997), and return ``(fig, ax)``.

        Both rates are drawn at :math:`\Phi^{-1}`, so scores that are normal in each class make a
        straight line. The legend shows the equal error rate (EER). Arguments are those of
        :meth:`ROCCurve.plot`.
        """
        error_rate = self.scalars["equal_error_rate"]
        low, high = _view(ax, error_rate)
        chance = "_nolegend_"
        if high > 0:
            chance = "chance"
        fig, ax = plot_curves(
            _deviate(self.fpr),
            _deviate(self.fnr),
            ax=ax,
            xlabel="False positive rate (%)",
            ylabel="False negative rate (%)",
            name="DET",
            label=label,
            labels=labels,
            score=score,
            curve_score=error_rate,
            score_format="EER {:.2%}",
            lowest_is_best=True,
            references=[ReferenceLine((-6, 6), (6, -6), chance)],
            rates=False,
            line_kwargs=line_kwargs,
        )
        ticks = [percent for percent in DET_TICKS if low <= _percent_deviate(percent) <= high]
        places = [_percent_deviate(percent) for percent in ticks]
        names = [f"{percent:g}" for percent in ticks]
        ax.xaxis.set_ticks(places, names)
        ax.yaxis.set_ticks(places, names)
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

    All edges are points; scikit-learn leaves out points that repeat fnr = 0 or fpr = 0 at the ends.
    Without positives the true positive rate is set to 0, so fnr is 1 throughout; without negatives
    fpr is 0. Arguments are those of :func:`roc_from_counts`; ``average`` is None or ``"micro"``.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> det_from_counts(counts).fpr
        tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64)
    """
    tails = tails_of(source, edges, reconstruction, average)
    fpr, tpr = tails.tail.flip(-1).unbind(-2)
    return DETCurve(fpr, 1 - tpr, tails.thresholds.flip(0))


def equal_error_rate(source: Readable, average: Averaging = None) -> Tensor:
    """Return the equal error rate ``(...)``, at which as many positives as negatives are wrong.

    It is in [0, 1]: the rate where the curve, linear between its points, crosses fpr = fnr.
    torchmetrics takes the mean of both rates at the threshold where they are nearest.

    Args:
        source: a release, or histograms.
        average: None for a rate of each class, ``"micro"`` for the rate of the scores of all
            classes together, ``"macro"`` for the rate of the mean of the ROC curves, as in
            torchmetrics.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> equal_error_rate(counts)
        tensor(0.2500, dtype=torch.float64)
    """
    curve = roc_from_counts(source, average=average)
    return _crossing(curve.fpr.flip(-1), 1 - curve.tpr.flip(-1))


def _crossing(fpr: Tensor, fnr: Tensor) -> Tensor:
    """Return the rate where fpr, falling, and fnr, rising, are equal."""
    fpr = fpr.double()
    gap = fpr - fnr.double()
    after = (gap <= 0).int().argmax(-1, keepdim=True).clamp(min=1)
    before = after - 1
    gap_before = gap.gather(-1, before)
    gap_after = gap.gather(-1, after)
    step = torch.where(gap_before == gap_after, 0.0, gap_before / (gap_before - gap_after)).clamp(
        0, 1
    )
    rate = torch.lerp(fpr.gather(-1, before), fpr.gather(-1, after), step)
    return rate[..., 0]


def det_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> DETCurve:
    """Return the DET curve of binned scores: :class:`~torchmetrics_fed.FederatedDET` as a function.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> det_curve(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).scalars
        {'equal_error_rate': tensor(0.5000, dtype=torch.float64)}
    """
    average = checked_average(average, ("micro",), task)
    return det_from_counts(count(preds, target, task, **options), average=average)


def _deviate(rate: Tensor) -> Tensor:
    """Return the normal deviate of rates; finite for rates of 0 and 1."""
    deviate: Tensor = torch.special.ndtri(rate.double().clamp(VISIBLE_RATE, 1 - VISIBLE_RATE))
    return deviate


def _percent_deviate(percent: float) -> float:
    return _deviate(torch.tensor(percent, dtype=torch.float64) / 100).item()


def _view(ax: Any, error_rate: Tensor) -> tuple[float, float]:
    """Return the ends of both axes: wide enough for these curves and for curves drawn before."""
    crossing = torch.special.ndtri(error_rate.clamp(1e-4, 0.5))
    low = min(VIEW_START, crossing.min().item() - 1.0)
    high = min(VIEW_LENGTH, crossing.max().item() + VIEW_LENGTH)
    if ax is not None and any(line.get_gid() == "curve" for line in ax.get_lines()):
        low_before, high_before = ax.get_xlim()
        low = min(low, low_before)
        high = max(high, high_before)
    return low, high


class PrecisionRecallGainCurve(NamedTuple):
    """A PR-gain curve in the unit square, in the order of the PR curve.

    Thresholds increase, and recall gain falls from 1 to 0. The curve ends where recall is pi, at
    recall gain 0: thresholds above that crossing all stand at it. Precision gain is cut off at 0,
    below which calling every example positive is better. The first three fields have the same
    length because the last point of the PR curve, which has no threshold, is not on this curve.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> precision_recall_gain_from_counts(counts).area
        tensor(0.5556, dtype=torch.float64)
    """

    precision_gain: Tensor
    recall_gain: Tensor
    thresholds: Tensor
    area: Tensor
    """The area under the curve, as in :func:`area_under_gain`."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The area under the curve."""
        return {"area_under_gain": self.area}

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the curve, and return ``(fig, ax)``.

        On the dashed line F1 is that of selecting every example. Arguments are those of
        :meth:`ROCCurve.plot`.
        """
        return plot_curves(
            self.recall_gain,
            self.precision_gain,
            ax=ax,
            xlabel="Recall gain",
            ylabel="Precision gain",
            name="PR gain",
            label=label,
            labels=labels,
            score=score,
            curve_score=self.area,
            score_format="AUPRG {:.4f}",
            references=[ReferenceLine((0, 1), (1, 0), "F1 of selecting all")],
            has_mean=True,
            line_kwargs=line_kwargs,
        )


def precision_recall_gain_from_counts(
    source: Readable,
    edges: Edges = None,
    reconstruction: Reconstruction | None = None,
    average: Averaging = None,
) -> PrecisionRecallGainCurve:
    """Return the PR-gain curve of a release or of leaf counts.

    Both gains are 0 throughout where a class is empty. Arguments are those of
    :func:`roc_from_counts`; ``average`` is None or ``"micro"``.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> precision_recall_gain_from_counts(counts).precision_gain
        tensor([0.0000, 0.6667], dtype=torch.float64)
    """
    tails = tails_of(source, edges, reconstruction, average)
    precision_gain, recall_gain = _gains(tails)
    negatives, positives = tails.total.unbind(-1)
    has_both = (positives > 0) & (negatives > 0)
    lowest = torch.where(has_both, -negatives / (2 * positives), 0.0)
    # rounding alone can leave the range
    area = torch.maximum(torch.trapezoid(precision_gain, recall_gain), lowest).clamp(max=1.0)
    # the highest threshold, which selects no example, is left out as in the PR curve
    return PrecisionRecallGainCurve(
        precision_gain=precision_gain.clamp(0.0, 1.0)[..., 1:].flip(-1),
        recall_gain=recall_gain[..., 1:].flip(-1),
        thresholds=tails.thresholds[1:].flip(0),
        area=area,
    )


def area_under_gain(source: Readable) -> Tensor:
    r"""Return the area under the PR-gain curve (AUPRG), in :math:`[-n^-/(2 n^+), 1]`.

    The rule is that of the authors' software: trapezoids in gain space over recall gain from 0 to
    1. The curve enters at recall gain 0 by linear interpolation of the counts, and negative
    precision gains count negatively. The lower end is reached where every negative scores above
    every positive. The area is 0 where a class is empty.

    Example:
        >>> from torchmetrics_fed.functional import read
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> area_under_gain(counts)
        tensor(0.5556, dtype=torch.float64)
    """
    return precision_recall_gain_from_counts(source).area


def _gains(tails: Tails) -> tuple[Tensor, Tensor]:
    """Return precision gain, which may be negative, and recall gain in [0, 1].

    Points whose recall is below pi are moved to the crossing, where recall is pi.
    """
    negatives, positives = tails.total[..., None].unbind(-2)
    fpr, tpr = tails.tail.unbind(-2)
    # the bounds keep 1/T and RG finite where noise left almost nothing of a class
    pi = (positives / (positives + negatives)).clamp(1e-300, 1.0)
    odds = (positives / negatives).clamp(max=1e300)
    is_inside = tpr >= pi
    after = is_inside.int().argmax(-1, keepdim=True)
    before = (after - 1).clamp(min=0)
    tpr_before = tpr.gather(-1, before)
    tpr_after = tpr.gather(-1, after)
    weight = (pi - tpr_before) / (tpr_after - tpr_before)
    fpr_crossing = torch.lerp(fpr.gather(-1, before), fpr.gather(-1, after), weight.clamp(0.0, 1.0))
    fpr = torch.where(is_inside, fpr, fpr_crossing)
    tpr = torch.where(is_inside, tpr, pi)
    precision_gain = 1 - fpr / tpr
    recall_gain = torch.where(is_inside, 1 - odds * (1 / tpr - 1), 0.0).clamp(0.0, 1.0)
    has_both = (positives > 0) & (negatives > 0)
    return torch.where(has_both, precision_gain, 0.0), torch.where(has_both, recall_gain, 0.0)


def precision_recall_gain_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Averaging = None,
    **options: Unpack[CurveOptions],
) -> PrecisionRecallGainCurve:
    """Return the PR-gain curve of binned scores.

    It is :class:`~torchmetrics_fed.FederatedPrecisionRecallGain` as a function. Other arguments are
    those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> preds = torch.tensor([0.1, 0.4, 0.6, 0.9])
        >>> precision_recall_gain_curve(preds, torch.tensor([0, 1, 0, 1])).area
        tensor(0.2500, dtype=torch.float64)
    """
    average = checked_average(average, ("micro",), task)
    return precision_recall_gain_from_counts(count(preds, target, task, **options), average=average)
