"""Calls at a threshold: the confusion matrix, and what a call means where the model will be used."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.figures import canvas
from torchmetrics_fed.reconstruct.histograms import Readable, nearest_edge, read
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts, uncertain_counts


class Confusion(NamedTuple):
    """Counts and the edge at which they were taken.

    Example:
        >>> confusion_at(torch.tensor([[3, 1], [1, 3]]), 0.5).matrix
        tensor([[3, 1],
                [1, 3]])
    """

    matrix: Tensor
    """``(..., 2, 2)``: [[tn, fp], [fn, tp]] as in scikit-learn, of the counts' dtype."""
    threshold: Tensor
    """The edge that was used, a float64 scalar."""


def confusion_at(source: Readable, threshold: float) -> Confusion:
    """Return the confusion matrix of "score >= threshold" at the edge nearest to ``threshold``, the lower of two.

    Nothing is known inside a leaf, so the edge that was used comes with the counts. The highest edge selects nothing,
    not even scores equal to it: these are counted in the last leaf. On a two-sided grid the highest edge is the next
    number above 1, and the threshold 1 selects scores of exactly 1.

    Example:
        >>> confusion_at(torch.tensor([[3, 1], [1, 3]]), 0.4).threshold
        tensor(0.5000, dtype=torch.float64)
    """
    if not math.isfinite(threshold):
        raise InputError(
            f"Expected argument `threshold` to be a finite score but got {threshold!r}. The lowest edge selects "
            "everything, the highest nothing."
        )
    histograms = read(source)
    nearest = nearest_edge(histograms.edges, threshold)
    leaf = histograms.leaf.clamp(min=0)
    below, above = leaf[..., :nearest].sum(-1), leaf[..., nearest:].sum(-1)
    return Confusion(torch.stack([below, above], -1), histograms.edges[nearest])


class PredictiveValues(NamedTuple):
    """The positives' share of the examples called positive, the negatives' share of the others, ``(...)`` each.

    Example:
        >>> predictive_values(torch.tensor([[3, 1], [1, 3]]), 0.5).negative
        tensor(0.7500, dtype=torch.float64)
    """

    positive: Tensor
    negative: Tensor
    threshold: Tensor
    """The edge that was used, a float64 scalar."""
    prevalence: Tensor
    intervals: tuple[Interval, Interval] | None = None
    """Of both values, if asked for."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Both values."""
        return {
            "positive_predictive_value": self.positive,
            "negative_predictive_value": self.negative,
        }

    def plot(self, ax: Any = None, label: str | None = None, labels: canvas.Labels = None) -> Any:
        """Draw both values, with their intervals if there are any, as :meth:`ROCCurve.plot` does."""
        y = canvas.rows(torch.stack([self.positive, self.negative], -1))
        names = canvas.entries(len(y), ("calls", label, labels), y.T, "PPV {:.3f}, NPV {:.3f}")
        fig, ax = canvas.open_axes(ax, names)
        x = torch.linspace(-0.2, 0.2, len(y))[:, None] * (len(y) > 1) + torch.tensor([0.0, 1.0])
        colours = canvas.draw_curves(ax, x, y, names, marker="o", linewidth=0.4)
        for number, ends in enumerate(self.intervals or ()):
            ax.vlines(
                x[:, number],
                *map(torch.flatten, ends),
                colors=colours[: len(y)],
                alpha=0.5,
                linewidth=3,
            )
        ax.set(
            xticks=[0, 1],
            xticklabels=["positive", "negative"],
            xlim=(-0.5, 1.5),
            ylim=(-0.02, 1.02),
        )
        canvas.dress(ax, f"Call at threshold {self.threshold:.3g}", "Predictive value", rates=False)
        return fig, ax


def predictive_values(
    source: Readable,
    threshold: float,
    prevalence: float | None = None,
    confidence: float | None = None,
    population: bool = False,
) -> PredictiveValues:
    r"""Return the predictive values of "score >= threshold"; a call that nobody gets has the value 1.

    :math:`PPV = \frac{\pi T}{\pi T + (1 - \pi) F}`, and NPV likewise with 1 - F and 1 - T. Intervals are Fieller's.

    Args:
        source: as in :func:`confusion_at`, and likewise ``threshold``; for intervals it is a release.
        prevalence: the positives' share :math:`\pi` where the model will be used; that of the counts if not given.
        confidence: probability that an interval holds its value.
        population: whether the values of the population that the examples were drawn from are meant.

    Example:
        >>> predictive_values(torch.tensor([[3, 1], [1, 3]]), 0.5, prevalence=0.1).positive
        tensor(0.2500, dtype=torch.float64)
    """
    if prevalence is not None and not 0 <= prevalence <= 1:
        raise InputError(
            f"Expected argument `prevalence` to be in [0, 1] but got {prevalence!r}. Give a fraction."
        )
    histograms = read(source)
    matrix, edge = confusion_at(histograms, threshold)
    sizes = matrix.double().sum(-1)
    shares = sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-300)
    if prevalence is not None:
        shares = torch.tensor([1 - prevalence, prevalence], dtype=torch.float64).expand_as(sizes)
    weighted = matrix * (shares / sizes.clamp(min=1e-300))[..., None]
    right, called = weighted.diagonal(dim1=-2, dim2=-1).flip(-1), weighted.sum(-2).flip(-1)
    both, intervals = torch.where(called > 0, right / called, 1.0), None
    if confidence is not None:
        release, edges = check_uncertain(source, confidence), histograms.edges.numpy()
        counts = uncertain_counts(release, population, histograms.flat, edges, edge.numpy()[None])
        ends = histograms.shaped(
            np.array([_ends(known, prevalence, confidence) for known in counts])
        )
        low, high = (
            torch.minimum(ends[..., 0], both).unbind(-1),
            torch.maximum(ends[..., 1], both).unbind(-1),
        )
        intervals = Interval(low[0], high[0]), Interval(low[1], high[1])
    return PredictiveValues(both[..., 0], both[..., 1], edge, shares[..., 1], intervals)


def _ends(known: UncertainCounts, prevalence: float | None, confidence: float) -> list[list[float]]:
    """Return Fieller's bounds of PPV and NPV: for which ratios r of right and wrong calls right - r wrong may be 0."""
    if known.empty:
        return [[0.0, 1.0]] * 2
    (total, above), (totals, draws), slack = (
        known.seen.T,
        np.moveaxis(known.draws, -1, 0),
        known.slack[:, 1],
    )
    result = []
    for counts, moved, rows in ((above, draws, [1, 0]), (total - above, totals - draws, [0, 1])):
        weight = np.ones(2)
        if prevalence is not None:
            moved, weight = (
                moved - (counts / total)[:, None] * totals,
                np.array([1 - prevalence, prevalence]) / total,
            )
        (right, wrong), off, reach = (
            (weight * counts)[rows],
            (weight[:, None] * moved)[rows],
            (weight * slack)[rows],
        )
        together = np.abs(max(wrong, 0) * off[0] - max(right, 0) * off[1])
        c = order_statistic(together, confidence) / max(np.sqrt((together**2).mean()), 1e-300)
        a, b = (c * off.std(-1)) ** 2
        ends = []
        for sign in (-1, 1):
            x, y = max(right + sign * reach[0], 0), max(wrong - sign * reach[1], 0)
            middle = x * y + np.sqrt(max(x**2 * b + y**2 * a - a * b, 0))
            over, under = (max(x**2 - a, 0), middle) if sign < 0 else (middle, max(y**2 - b, 0))
            ends.append(over / (over + under) if over + under > 0 else (1 + sign) / 2)
        result.append(ends)
    return result
