"""Scores at the centres of their bins, which is what other libraries are given, and which grid
goes with what."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.functional import Histograms, read
from torchmetrics_fed.typing import GridName

__all__ = ["bin_of", "centred", "even", "grid_for"]


def even(leaf: Tensor) -> Histograms:
    """Leaf counts on even leaves over [0, 1]."""
    return read(leaf, edges=torch.linspace(0, 1, leaf.shape[-1] + 1, dtype=torch.float64))


def bin_of(scores: Tensor, grid: ScoreGrid) -> Tensor:
    """The number of each score's bin, by search among the edges and without the package's
    kernels."""
    return (torch.searchsorted(grid.edges, scores.double(), right=True) - 1).clamp(0, grid.bins - 1)


def centred(scores: Tensor, grid: ScoreGrid) -> Tensor:
    """The centre of each score's bin, float64: the same counts, and every tie that the bins
    make."""
    edges = grid.edges
    return ((edges[:-1] + edges[1:]) / 2)[bin_of(scores, grid)]


def grid_for(choice: object) -> GridName:
    """The paper's bins for the paper's plan or method, those that metrics have by default for
    any other."""
    return "even" if choice in ("paper", "quantile") else "two_sided"
