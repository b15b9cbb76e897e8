r"""Precision-recall-gain curves (Flach & Kull, NeurIPS 2015) and the area under them.

With :math:`\pi = n^+ / (n^+ + n^-)`, gain is :math:`(x - \pi) / ((1 - \pi) x)`: 0 for the classifier that calls
everything positive, 1 for the perfect one. In rates :math:`PG = 1 - F/T`, :math:`RG = 1 - \frac{n^+}{n^-} (1/T - 1)`.
Where FP is linear in TP, PG is linear in RG: straight lines between points are exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.curve import CurveOptions, count, tails_of
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves
from torchmetrics_fed.functional.source import Averaging, Edges, Readable, checked_average
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.typing import Task


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

    def plot(self, score: Score = None, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw the curve, and return ``(fig, ax)``. On the dashed line F1 is that of selecting everything.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        curves, area = (self.recall_gain, self.precision_gain), (score, self.area, "AUPRG {:.4f}")
        axes, chance = ("Recall gain", "Precision gain"), ([0, 1], [1, 0], "F1 of selecting all")
        return plot_curves(curves, area, axes, ax, ("PR gain", label, labels), chance, mean=True)


def precision_recall_gain_from_counts(
    source: Readable, edges: Edges = None, reconstruction: Reconstruction | None = None, average: Averaging = None
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
    shown = precision.clamp(0.0, 1.0)[..., 1:].flip(-1), recall[..., 1:].flip(-1), tails.thresholds[1:].flip(0)
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
    preds: Tensor, target: Tensor, task: Task = "binary", *, average: Averaging = None, **options: Unpack[CurveOptions]
) -> PrecisionRecallGainCurve:
    """Return the PR-gain curve of binned scores; twin of :class:`~torchmetrics_fed.FederatedPrecisionRecallGain`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> precision_recall_gain_curve(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])).area
        tensor(0.2500, dtype=torch.float64)
    """
    average = checked_average(average, ("micro",), task)
    return precision_recall_gain_from_counts(count(preds, target, task, **options), average=average)
