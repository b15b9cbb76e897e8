"""Binning: the bin of every score, exact to the bit in every floating dtype, on every device.

The operations here never wait for a device. :mod:`torchmetrics_fed.counting.fast` finds the same
bins in less time for most batches in the memory of the machine.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.edges import two_sided_edges
from torchmetrics_fed.typing import Floats

NUMPY_DTYPES: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
"""The dtypes of scores that are counted; others are converted to float32 first, which is exact."""


class Binning:
    """Bins between any ascending edges, float64.

    The bin of a score is the number of inner edges at or below it.
    """

    def __init__(self, edges: Floats, score_range: tuple[float, float]) -> None:
        self.edges = edges
        self.bins = len(edges) - 1
        self.score_range = score_range

    def ends(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the lowest and the highest score, as the dtype of the scores has them."""
        low, high = self.score_range
        near_low, near_high = np.asarray(self.score_range).astype(NUMPY_DTYPES[dtype])
        return float(min(low, near_low)), float(max(high, near_high))

    def holds(self, scores: Tensor) -> Tensor:
        """Return which scores can be counted; NaN cannot."""
        low, high = self.ends(scores.dtype)
        return (scores >= low) & (scores <= high)

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        """Return the bin of each score, int64; some bin for a score that cannot be counted.

        ``complement`` is one minus each score, where it is known better than that difference says.
        """
        inner = _inner_edges(self, scores.dtype, scores.device)
        return torch.searchsorted(inner, scores.contiguous(), right=True)


class EvenBinning(Binning):
    """Even bins on [0, 1], a power of two of them.

    The product of a score with a power of two is exact: only its exponent changes.
    """

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        """Return the bin of each score."""
        return (scores * self.bins).long().clamp_(0, self.bins - 1)


class TwoSidedBinning(Binning):
    """Two-sided bins on [0, 1], found by the distance of a score from the nearer end.

    The lower half of the bins is closed on the side of 0. The upper half is its mirror image, with
    the complement in place of the score; closed on the left, it is open on the side of 1.
    """

    def __init__(self, bins: int) -> None:
        super().__init__(two_sided_edges(bins), (0.0, 1.0))

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        """Return the bin of each score, from the complement where the score is at least a half."""
        if complement is None:
            complement = 1 - scores
        edges = _distances(self.bins, scores.dtype, scores.device)
        distance = torch.minimum(scores, complement).contiguous()
        edges_at_or_below = torch.searchsorted(edges.lower, distance, right=True)
        edges_below = torch.searchsorted(edges.upper, distance, right=False)
        return torch.where(scores < 0.5, edges_at_or_below, self.bins - 1 - edges_below)


class _Distances:
    """The inner edges of the lower half, and those of the upper half as distances from 1."""

    def __init__(self, bins: int, dtype: torch.dtype, device: torch.device) -> None:
        lower = rounded_up(two_sided_edges(bins)[1 : bins // 2], NUMPY_DTYPES[dtype])
        upper = lower.copy()
        upper[:1] = 0.0  # only a complement of exactly 0 is in the last bin
        self.lower = torch.from_numpy(lower).to(device)
        self.upper = torch.from_numpy(upper).to(device)


@lru_cache(maxsize=16)
def _distances(bins: int, dtype: torch.dtype, device: torch.device) -> _Distances:
    return _Distances(bins, dtype, device)


@lru_cache(maxsize=16)
def _inner_edges(binning: Binning, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(rounded_up(binning.edges[1:-1], NUMPY_DTYPES[dtype])).to(device)


def rounded_up(edges: Floats, numpy_dtype: Any) -> NDArray[Any]:
    """Return the edges in another dtype: a score of that dtype is at or above the same edges."""
    nearest: NDArray[Any] = edges.astype(numpy_dtype)
    return np.where(nearest < edges, np.nextafter(nearest, numpy_dtype(np.inf)), nearest)
