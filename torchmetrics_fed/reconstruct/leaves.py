"""From leaves to bins: what is known of counts between the edges of leaves, without a model."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.typing import Floats, Places

# Leaves are placed to hold equal parts. One that holds more than the first times its part, or more than the second
# times what a neighbour holds, has tied scores.
_TIED, _ALONE = 2.0, 4.0
# An end is empty while its partial sums stay below the first in standard deviations of their noise, or below the noise
# that the largest of all leaves is expected to have, plus the second in scales of the noise.
_DEVIATIONS, _SCALES = 2.5, 4.0
# A class smaller than this, in standard deviations of its noisy size, is too small: what looks empty may be all of it.
_PLENTY = 100.0


class EndTies(NamedTuple):
    """Whether the first and the last leaf are ties: an end bin alone, whose scores are all exactly 0, or exactly 1."""

    first: bool
    last: bool

    @classmethod
    def of(cls, grid: ScoreGrid, places: Places) -> "EndTies":
        """Return those of leaves with edges at these places of a grid. Only two-sided grids have end bins."""
        if grid.kind != "two_sided":
            return cls(False, False)
        return cls(bool(places[1] == 1), bool(places[-2] == grid.bins - 1))

    def others(self, leaves: int) -> int:
        """Return the number of leaves that are no ties, of this many in all."""
        return max(leaves - self.first - self.last, 1)

    def mask(self, leaves: int) -> NDArray[np.bool_]:
        """Return which leaves are ties, of this many in all."""
        tied = np.zeros(leaves, dtype=np.bool_)
        tied[0] = self.first
        tied[-1] = self.last
        return tied


NO_TIES = EndTies(False, False)


def on_bins(leaf: Floats, places: Places, u: Floats, lines_at_ends: bool = False) -> Floats:
    """Return counts on the bins, ``(2, bins)``: the mean of both classes by a monotone cubic of the coordinate ``u``.

    Each class is a monotone cubic of that mean, not of the coordinate. So inside a large leaf at an end the ratio of
    the classes continues the trend of the leaves before it. With ``lines_at_ends`` the mean runs through the end leaves
    evenly, where a cubic of few leaves misleads. ``places`` are the edges of the leaves, ``leaf`` ``(2, leaves)``.
    """
    below = np.concatenate([np.zeros((len(leaf), 1)), leaf.cumsum(1)], 1)
    mean = (below / np.maximum(below[:, -1:], 1e-300)).mean(0)
    at = PchipInterpolator(u[places], mean)(u)
    if lines_at_ends:
        index = np.arange(len(u))
        at = np.where((index < places[1]) | (index > places[-2]), np.interp(u, u[places], mean), at)
    rises = np.r_[True, np.diff(mean) > 1e-9]
    if rises.sum() < 2:  # nobody at all
        return np.zeros((len(leaf), len(u) - 1))
    each = PchipInterpolator(mean[rises], below[:, rises], axis=1)(np.minimum(at, mean[rises][-1]))
    return np.maximum(np.diff(each, axis=1), 0)


def are_tied(leaf: Floats, ends: EndTies = NO_TIES) -> NDArray[np.bool_]:
    """Return which leaves hold tied scores, of leaves that were placed to hold equal parts of both classes' mean.

    A leaf that is an end bin alone was not placed so. What it holds says nothing of its neighbour.
    """
    share = (leaf / np.maximum(leaf.sum(1, keepdims=True), 1e-300)).mean(0)
    part = 1 / ends.others(leaf.shape[1])
    compared = np.where(ends.mask(len(share)), np.inf, share)
    beside = np.minimum(np.r_[np.inf, compared[:-1]], np.r_[compared[1:], np.inf])
    tied: NDArray[np.bool_] = (share > _TIED * part) | (
        (share > _ALONE * beside) & (share > part / 2)
    )
    return tied


def with_ties(
    counts: Floats, leaf: Floats, places: Places, u: Floats, ends: EndTies = NO_TIES
) -> Floats:
    """Return the counts with those of each tied leaf in one bin, the middle one: a tie is a step of the curve."""
    for index in np.flatnonzero(are_tied(leaf, ends)):
        first, after = places[index], places[index + 1]
        middle = np.searchsorted(u[first + 1 : after], (u[first] + u[after]) / 2) + first
        counts[:, first:after] = 0.0
        counts[:, middle] = leaf[:, index]
    return counts


def without_empty_ends(leaf: Floats, variance: float, placed: bool = True) -> Floats:
    """Return the leaves of each class, ``(2, leaves)``, with 0 at ends that hold nothing but noise.

    An end is a quarter of the leaves or more, because a shorter one may be empty by chance. Where leaves were placed by
    the scores, both classes must have an empty end, at opposite sides: that is what separated classes look like.
    """
    size = leaf.shape[1]
    sums = _DEVIATIONS * np.sqrt(variance * np.arange(1, size + 1))
    bound = np.maximum(sums, np.sqrt(variance / 2) * (np.log(size) + _SCALES))
    result: Floats = leaf.copy()
    plenty = leaf.sum(1) >= _PLENTY * np.sqrt(variance * size)
    for ends in ((result[0], result[1, ::-1]), (result[0, ::-1], result[1])):
        empty = [int((np.abs(end.cumsum()) < bound).cumprod().sum()) for end in ends]
        runs = [many * run for many, run in zip(plenty, empty, strict=True)]
        for end, run in zip(ends, runs, strict=True):
            if (min(runs) if placed else run) >= size / 4:
                end[:run] = 0.0
    return result
