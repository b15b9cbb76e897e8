r"""A warped score, :math:`u = \sqrt s / (\sqrt s + \sqrt{1-s})`: wide at both ends of the range, where scores crowd."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from torchmetrics_fed.typing import Floats, Places

__all__ = ["snapped", "warped_grid"]


@lru_cache(maxsize=16)
def warped_grid(bins: int) -> Floats:
    """Return the warped scores of a grid's edges, from 0 to 1, whatever the range of its scores."""
    score = np.linspace(0, 1, bins + 1)
    low, high = np.sqrt(score), np.sqrt(1 - score)
    grid: Floats = low / (low + high)
    grid.setflags(write=False)
    return grid


def snapped(at: Floats, bins: int) -> Places:
    """Return the places on the grid nearest to warped scores ``at``, moved apart so that every leaf has a bin."""
    grid, index = warped_grid(bins), np.arange(len(at))
    place = np.searchsorted((grid[1:] + grid[:-1]) / 2, at)
    place[0], place[-1] = 0, bins
    place = np.maximum.accumulate(place - index)
    apart: Places = np.minimum.accumulate(np.minimum(place, bins - index[-1])[::-1])[::-1] + index
    return apart
