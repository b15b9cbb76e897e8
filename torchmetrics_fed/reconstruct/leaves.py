"""From leaves to bins: what is known of counts between the edges of leaves, without a model.

Invariants:

- The counts on the bins of a leaf are not negative, and add up to the count of the leaf.
- A leaf that holds tied scores has all of its counts in one bin, so that the curve has a step
there.
- Leaves at an end that hold nothing but noise are set to 0. No other leaf is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.consistency import LEAST_DIVISOR
from torchmetrics_fed.typing import Floats, Places

LEAST_RISE = 1e-9
"""Part of the mass below which a leaf is taken to be empty: a cubic needs abscissas that rise."""


class EndTies(NamedTuple):
    """Whether the first and the last leaf are ties: end bins, with scores of exactly 0 or 1."""

    first: bool
    last: bool

    @classmethod
    def of(cls, grid: ScoreGrid, places: Places) -> EndTies:
        """Return the ties among leaves with edges at these places of a grid.

        Only two-sided grids have end bins.
        """
        if grid.kind != "two_sided":
            return NO_TIES
        return cls(first=bool(places[1] == 1), last=bool(places[-2] == grid.bins - 1))

    def others(self, leaves: int) -> int:
        """Return the number of leaves that are no ties, of this many in all."""
        return max(leaves - self.first - self.last, 1)

    def mask(self, leaves: int) -> NDArray[np.bool_]:
        """Return which leaves are ties, of this many in all."""
        tied = np.zeros(leaves, dtype=np.bool_)
        tied[0] = self.first
        tied[-1] = self.last
        return tied


NO_TIES = EndTies(first=False, last=False)


def on_bins(leaf: Floats, places: Places, u: Floats, lines_at_ends: bool = False) -> Floats:
    """Return counts on the bins, ``(2, bins)``, of counts on the leaves.

    The mean of both classes' distributions is a monotone cubic of the coordinate ``u``. Each class
    is a monotone cubic of that mean, not of ``u``. So inside a large leaf at an end, the ratio of
    the classes continues the trend of the leaves before it.

    Args:
        leaf: counts on the leaves, ``(2, leaves)``.
        places: the edges of the leaves.
        u: the grid's own coordinate at all edges.
        lines_at_ends: whether the mean runs evenly through the end leaves, where a cubic of few
            leaves misleads.
    """
    below = np.concatenate([np.zeros((len(leaf), 1)), leaf.cumsum(1)], 1)
    mean = (below / np.maximum(below[:, -1:], LEAST_DIVISOR)).mean(0)
    mean_at_edges = PchipInterpolator(u[places], mean)(u)
    if lines_at_ends:
        index = np.arange(len(u))
        is_in_end_leaf = (index < places[1]) | (index > places[-2])
        line = np.interp(u, u[places], mean)
        mean_at_edges = np.where(is_in_end_leaf, line, mean_at_edges)
    rises = np.r_[True, np.diff(mean) > LEAST_RISE]
    if rises.sum() < 2:  # no examples at all
        return np.zeros((len(leaf), len(u) - 1))
    knots = mean[rises]
    class_of_mean = PchipInterpolator(knots, below[:, rises], axis=1)
    below_edges = class_of_mean(np.minimum(mean_at_edges, knots[-1]))
    return np.maximum(np.diff(below_edges, axis=1), 0)


def are_tied(leaf: Floats, ends: EndTies = NO_TIES) -> NDArray[np.bool_]:
    """Return which leaves hold tied scores.

    Leaves are placed to hold equal parts of both classes' mean mass. A leaf that holds much more
    than its part, or much more than a neighbour, has tied scores. A leaf that is an end bin alone
    was not placed so, and what it holds says nothing of its neighbour.

    Args:
        leaf: counts on the leaves, ``(2, leaves)``.
        ends: which end leaves are end bins alone.
    """
    mass = (leaf / np.maximum(leaf.sum(1, keepdims=True), LEAST_DIVISOR)).mean(0)
    part = 1 / ends.others(leaf.shape[1])
    compared = np.where(ends.mask(len(mass)), np.inf, mass)
    left_mass = np.r_[np.inf, compared[:-1]]
    right_mass = np.r_[compared[1:], np.inf]
    lighter_neighbour = np.minimum(left_mass, right_mass)
    is_heavy = mass > tuning.TIED_LEAF_PARTS * part
    is_lone = mass > tuning.LONE_LEAF_RATIO * lighter_neighbour
    is_lone &= mass > tuning.LONE_LEAF_PARTS * part
    tied: NDArray[np.bool_] = is_heavy | is_lone
    return tied


def with_ties(
    counts: Floats, leaf: Floats, places: Places, u: Floats, ends: EndTies = NO_TIES
) -> Floats:
    """Return the counts on bins with those of each tied leaf in one bin, the middle one.

    The array ``counts`` is changed in place. The other arguments are those of :func:`on_bins` and
    :func:`are_tied`.
    """
    for index in np.flatnonzero(are_tied(leaf, ends)):
        first = places[index]
        after = places[index + 1]
        centre = (u[first] + u[after]) / 2
        middle = np.searchsorted(u[first + 1 : after], centre) + first
        counts[:, first:after] = 0.0
        counts[:, middle] = leaf[:, index]
    return counts


def without_empty_ends(leaf: Floats, variance: float | Floats, placed: bool = True) -> Floats:
    """Return the counts on leaves, ``(2, leaves)``, with 0 at ends that hold nothing but noise.

    Args:
        leaf: noisy counts on the leaves, ``(2, leaves)``.
        variance: the variance of the noise of each leaf, which broadcasts to ``(2, leaves)``.
        placed: whether the leaves were placed by the scores. Then both classes must have an empty
            end, at opposite sides: separated classes look like that.
    """
    noise = np.broadcast_to(variance, leaf.shape)
    least_size = tuning.EMPTY_END_CLASS_DEVIATIONS * np.sqrt(noise.sum(1))
    is_large = leaf.sum(1) >= least_size
    result: Floats = leaf.copy()
    negatives, positives = result
    negative_noise, positive_noise = noise
    lowest = _End(negatives, negative_noise), _End(positives[::-1], positive_noise[::-1])
    highest = _End(negatives[::-1], negative_noise[::-1]), _End(positives, positive_noise)
    _clear_ends(lowest, is_large, in_pairs=placed)
    _clear_ends(highest, is_large, in_pairs=placed)
    return result


class _End(NamedTuple):
    """The leaves of a class, from one end of the range on."""

    counts: Floats
    variance: Floats

    @property
    def empty_length(self) -> int:
        """The number of leaves at the end that hold nothing but noise."""
        is_empty = np.abs(self.counts.cumsum()) < _empty_sums(self.variance)
        return int(is_empty.cumprod().sum())


def _empty_sums(variance: Floats) -> Floats:
    r"""Return the bound of the partial sums of 1 to K leaves that hold nothing but noise.

    A sum of noises has the sum of their variances. The largest of K Laplace noises of scale
    :math:`\sqrt{v / 2}` is expected near :math:`\sqrt{v / 2} \log K`.
    """
    sums = tuning.EMPTY_END_DEVIATIONS * np.sqrt(variance.cumsum())
    scale = np.sqrt(np.maximum.accumulate(variance) / 2)
    largest = scale * (np.log(len(variance)) + tuning.EMPTY_END_SCALES)
    bound: Floats = np.maximum(sums, largest)
    return bound


def _clear_ends(ends: Sequence[_End], is_large: NDArray[np.bool_], in_pairs: bool) -> None:
    """Set the empty end of each class to 0, in place."""
    lengths = []
    for end, large in zip(ends, is_large, strict=True):
        lengths.append(end.empty_length if large else 0)
    shortest = min(lengths)
    for end, length in zip(ends, lengths, strict=True):
        judged = shortest if in_pairs else length
        if judged >= tuning.EMPTY_END_LEAVES * len(end.counts):
            end.counts[:length] = 0.0
