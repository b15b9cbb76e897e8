"""The range-query method of Barczewski et al. 2025, the paper's baseline; not for use."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.errors import Curves
from benchmarks.reproduce.smoothing import Norm, smooth
from torchmetrics_fed.functional import precision_recall_from_counts, read, roc_from_counts

__all__ = ["noisy_ranges", "range_curves"]

SCORES = 10_000
"""Even scores at which the paper reads every curve."""


def noisy_ranges(counts: NDArray[np.int64], epsilon: float) -> NDArray[np.float64]:
    """Return the noisy counts of scores at or above each of N even thresholds: ``(2, N)``.

    The i-th sum carries one Laplace variable of each of L = ceil(log2 N) + 1 levels, shared by the
    2^l sums of its block, each of scale L / epsilon.
    """
    rows, bins = counts.shape
    levels = math.ceil(math.log2(bins)) + 1
    above = counts[:, ::-1].cumsum(1).astype(np.float64)
    generator = np.random.default_rng()
    index = np.arange(bins)
    for level in range(levels):
        block = index >> level
        noise = generator.laplace(scale=levels / epsilon, size=(rows, block[-1] + 1))
        above += noise[:, block]
    return above


def range_curves(above: NDArray[np.float64], norm: Norm) -> Curves:
    """Return both curves of the noisy sums: made monotone, linear between thresholds.

    Class sizes are the largest noisy sum of each row, as in the comparison of the paper.
    """
    total = above.max(1, keepdims=True).clip(min=1.0)
    scores = np.linspace(0, 1, SCORES + 1)
    thresholds = np.linspace(0, 1, above.shape[1] + 1)
    tails = []
    for row in above / total:
        rate = smooth(np.append(0.0, row), norm)
        tail = np.interp(scores, thresholds, rate)
        tail[-1] = 1.0  # if the smoothed rate ends below 1, the rest lies at the lowest score
        tails.append(tail)
    leaves = torch.from_numpy(np.diff(tails)[:, ::-1] * total)
    histograms = read(leaves, edges=torch.from_numpy(scores))
    return Curves(roc_from_counts(histograms), precision_recall_from_counts(histograms))
