"""Cumulative gains and lift: how many of the positives are among the examples with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, bounds_at
from torchmetrics_fed.functional.figures.canvas import plot_areas
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.uncertainty.noise_vectors import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts
from torchmetrics_fed.typing import Floats

# The slope of the curve is that between this much less and this much more of the examples.
_NEAR = 0.01


class CumulativeGains(NamedTuple):
    """Recall (gain) and lift of selecting the highest scores, ``(..., fractions)``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import cumulative_gains
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
        """Recall and lift of the tenth of the examples with the highest scores, or what was asked for nearest to it."""
        tenth = (self.selected - 0.1).abs().argmin()
        return {"recall_top_decile": self.recall[..., tenth], "lift_top_decile": self.lift[..., tenth]}

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw recall against the selected fraction, and return ``(fig, ax)``; arguments as in :meth:`ROCCurve.plot`.

        Example:
            >>> import torch
            >>> from torchmetrics_fed.functional import cumulative_gains
            >>> fig, ax = cumulative_gains(torch.tensor([[3, 1], [1, 3]])).plot()
            >>> ax.get_lines()[-1].get_label()
            'gains (top tenth: lift 1.50)'
        """
        x, *ys = (
            None if values is None else torch.nn.functional.pad(values.expand_as(self.recall), (1, 0))
            for values in (self.selected, self.recall, self.low, self.high)
        )
        band = None if self.low is None else Band(x, *ys[1:])
        score = self.scalars["lift_top_decile"], "top tenth: lift {:.2f}"
        chance, axes = ([0, 1], [0, 1], "at random"), ("Selected, of all examples", "Found, of the positives (recall)")
        return plot_areas((x, ys[0]), score, chance, axes, ax, ("gains", label, labels), band)


def cumulative_gains(
    source: Readable,
    fractions: Sequence[float] | Tensor | None = None,
    confidence: float | None = None,
    population: bool = False,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
) -> CumulativeGains:
    r"""Return the cumulative gains curve: recall of the fraction q of all examples that have the highest scores.

    Lift is recall / q. Within a leaf examples are taken at random.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        fractions: above 0, up to 1; if not given 0.01, 0.02, ... 1.
        confidence: probability that ``low`` and ``high`` hold the curve at all fractions; needs a release.
        population: as in :func:`net_benefit`, and likewise ``edges`` and ``reconstruction``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import cumulative_gains
        >>> cumulative_gains(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5, 1.0]).recall
        tensor([0.3750, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    q = np.linspace(0.01, 1, 100) if fractions is None else np.asarray(fractions, dtype=np.float64).reshape(-1)
    if not (len(q) and ((q > 0) & (q <= 1)).all()):
        raise InputError("Expected argument `fractions` to be above 0, up to 1. Give the top tenth as 0.1.")
    around = np.clip([q, q - _NEAR, q + _NEAR], 0, 1)
    tails = above(histograms.flat)[..., ::-1]
    recall, slope, at = np.empty((3, len(tails), len(q)))
    for index, (negative, positive) in enumerate(tails):
        share = (negative + positive) / max(negative[-1] + positive[-1], 1e-300)
        at[index] = np.interp(q, share, histograms.edges.numpy()[::-1])
        recall[index], *ends = np.interp(around, share, positive / max(positive[-1], 1e-300))
        slope[index] = (ends[1] - ends[0]) / (around[2] - around[1])

    def one(known: UncertainCounts, index: int) -> tuple[Floats, Floats, Floats]:
        # what moves a point along the curve does not matter: the selected fraction is taken off, times the slope
        (_, found), sizes, steep = known.seen[:, 1:], np.maximum(known.seen[:, 0], 1.0), slope[index]
        part, size = found / sizes[1], sizes.sum()
        (false, true), (negative, positive) = known.draws[..., 1:], known.draws[..., :1]
        moved = (true - part * positive) / sizes[1] - steep * (false + true - q * (negative + positive)) / size
        slack = np.abs(1 / sizes[1] - steep / size) * known.slack[1, 1:] + steep / size * known.slack[0, 1:]
        return part - steep * (known.seen[:, 1:].sum(0) / size - q), moved, slack

    low, high = bounds_at(source, at, recall, one, confidence, population)
    ends = [None if end is None else histograms.shaped(end.clip(0, 1)) for end in (low, high)]
    return CumulativeGains(torch.from_numpy(q), *map(histograms.shaped, (recall, recall / q)), *ends)
