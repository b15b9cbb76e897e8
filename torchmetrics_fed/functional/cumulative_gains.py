"""Cumulative gains and lift: how many of the positives are among the examples with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Estimate, bounds_at
from torchmetrics_fed.functional.figures.canvas import plot_curves
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct.uncertainty.bands import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts

# The slope of the curve is that between this much less and this much more of the examples.
_NEAR = 0.01


class CumulativeGains(NamedTuple):
    """Recall (gain) and lift of selecting the highest scores, ``(..., fractions)``.

    Example:
        >>> cumulative_gains(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).lift
        tensor([1.5000, 1.5000], dtype=torch.float64)
    """

    selected: Tensor
    """The fraction of all examples that is selected, ``(fractions,)``."""
    recall: Tensor
    """The fraction of the positives that is among them."""
    lift: Tensor
    """How many times more positives these are than among as many examples taken at random."""
    low: Tensor | None = None
    """Bounds of ``recall``, if asked for, that hold at all these fractions at once."""
    high: Tensor | None = None

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Recall and lift of the top tenth of the examples, or of the fraction nearest to it."""
        tenth = (self.selected - 0.1).abs().argmin()
        return {"recall_top_decile": self.recall[..., tenth], "lift_top_decile": self.lift[..., tenth]}

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw recall against the selected fraction with its band, as :meth:`ROCCurve.plot` does."""
        x, y = (pad(each.expand_as(self.recall), (1, 0)) for each in (self.selected, self.recall))
        ends = [pad(end, (1, 0)) for end in (self.low, self.high) if end is not None]
        score = None, self.scalars["lift_top_decile"], "top tenth: lift {:.2f}"
        axes, chance = ("Selected examples", "Positives among them (recall)"), ([0, 1], [0, 1], "at random")
        names, band = ("gains", label, labels), Band(x, *ends) if ends else None
        return plot_curves((x, y), score, axes, ax, names, chance, band=band, mean=True)


def cumulative_gains(
    source: Readable,
    fractions: Sequence[float] | Tensor | None = None,
    confidence: float | None = None,
    population: bool = False,
) -> CumulativeGains:
    """Return the cumulative gains: recall of the fraction q of all examples with the highest scores, and recall / q.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``; within a leaf examples are taken at random.
        fractions: above 0, up to 1; 0.01, 0.02, ... 1 if not given.
        confidence: probability that ``low`` and ``high`` hold the curve at all fractions. It needs a release.
        population: whether the curve of the population that the examples were drawn from is meant.

    Example:
        >>> cumulative_gains(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5, 1.0]).recall
        tensor([0.3750, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source)
    q = np.linspace(0.01, 1, 100) if fractions is None else np.asarray(fractions, dtype=np.float64).reshape(-1)
    if not (len(q) and ((q > 0) & (q <= 1)).all()):
        raise InputError("Expected argument `fractions` to be above 0, up to 1, but not all are. The top tenth is 0.1.")
    before, after = np.maximum(q - _NEAR, 0), np.minimum(q + _NEAR, 1)
    recall, slope, at = np.empty((3, len(histograms.flat), len(q)))
    for number, (negative, positive) in enumerate(above(histograms.flat)[..., ::-1]):
        share, found = (tail / max(tail[-1], 1e-300) for tail in (negative + positive, positive))
        recall[number], ends, start = (np.interp(x, share, found) for x in (q, after, before))
        slope[number] = (ends - start) / (after - before)
        at[number] = np.interp(q, share, histograms.edges.numpy()[::-1])

    def estimate(known: UncertainCounts, number: int) -> Estimate:
        # what moves a point along the curve does not matter: of the selected fraction, slope times what is off
        positives, size, steep = max(known.seen[1, 0], 1.0), max(known.seen[:, 0].sum(), 1.0), slope[number]
        (false, true), (negative, positive) = known.draws[..., 1:], known.draws[..., :1]
        part, off = known.seen[1, 1:] / positives, known.seen[:, 1:].sum(0) / size - q
        moved = (true - part * positive) / positives - steep * (false + true - q * (negative + positive)) / size
        slack = np.abs(1 / positives - steep / size) * known.slack[1, 1:] + steep / size * known.slack[0, 1:]
        return part - steep * off, moved, slack

    ends = bounds_at(source, at, recall, estimate, confidence, population, limits=(0, 1))
    return CumulativeGains(torch.from_numpy(q), histograms.shaped(recall), histograms.shaped(recall / q), *ends)
