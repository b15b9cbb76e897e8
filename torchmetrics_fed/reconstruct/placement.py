"""Placement: where an earlier sum found the scores, and the leaves that the next query puts there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, fit
from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.sums import Sum
from torchmetrics_fed.typing import Floats, Places

__all__ = ["LEAST_BINS", "MOST_MISFIT", "ScoreMass", "noisy_leaves", "pilot_query", "placed_query", "single_query"]

LEAST_BINS = 256
"""Bins below which there is nothing to place: all of them can be leaves."""

MOST_MISFIT = 6.0
"""Standard deviations from the smooth model, beyond which scores have ties or spikes that it does not know."""

# The fraction of epsilon that finds out where the scores are, and its leaves. A multiple of 1/64, so that the fractions
# add up to 1 exactly. Less loses in ROC where the classes are small, more loses everywhere.
_PILOT_FRACTION, _PILOT_LEAVES = 3 / 64, 24
# The tree of a single query, which has to do for all data: leaves enough for scores that crowd somewhere in the range,
# and so few that most of them stand out from their noise.
_SINGLE = 8, 8, 8
# Leaves per square root of (examples of the smaller class x epsilon), and the fewest; with the smooth model, without.
_LEAVES, _FEWEST = 0.35, 8
_LEAVES_ROUGH, _FEWEST_ROUGH = 0.4, 10
# More leaves than these are two levels: sums over many leaves get cheaper, and so much data needs no model.
_MOST_FLAT = 40
# One leaf with more than this part of the mass says little of where in it the scores are: as many leaves more, on two
# levels, find out.
_CROWDED, _CROWDED_SIDE = 0.4, 16

_SLOPE = 3.0
# Even mass mixed into what was seen, so that no stretch of the range is left without edges; without a model, what
# stands out is sharp and deserves more of them.
_FLOOR, _FLOOR_ROUGH = 0.3, 0.15
# Above this many classes each gets no model of its own.
_MOST_CLASSES = 32


def pilot_query(grid: ScoreGrid) -> Query:
    """Return the first query of two: few leaves, even in the grid's own coordinate."""
    places = _snapped(np.linspace(0, 1, _PILOT_LEAVES + 1), grid)
    return Query(Tree((_PILOT_LEAVES,), tuple(places.tolist())), _PILOT_FRACTION)


def single_query(grid: ScoreGrid) -> Query:
    """Return the only query: three levels of leaves that are even in the grid's own coordinate, or all of few bins."""
    leaves = math.prod(_SINGLE)
    if grid.bins < 2 * leaves:
        return Query(Tree.balanced(grid.bins))
    return Query(Tree(_SINGLE, tuple(_snapped(np.linspace(0, 1, leaves + 1), grid).tolist())))


def placed_query(seen: Sum, fraction: float) -> Query:
    """Return leaves of equal mass where an earlier sum found the scores, and as many as epsilon can feed.

    Args:
        seen: what was released before. It must be private because equal-mass edges of exact counts are quantiles of
            raw data.
        fraction: the fraction of epsilon that the query spends.
    """
    if seen.spec.privacy is None:
        raise InputError(
            "Expected a private release to place leaves by but got exact counts: edges of equal mass are the quantiles "
            "of the raw data. Release it with `privacy`, or use a plan that needs no data."
        )
    mass, grid = ScoreMass.of(seen), seen.spec.grid
    branching = _branching(mass, _whole_epsilon(seen) * fraction)
    even = np.linspace(0, 1, math.prod(branching) + 1)
    places = _snapped(np.interp(even, mass.below, grid.coordinate), grid)
    return Query(Tree(branching, tuple(places.tolist())), fraction)


@dataclass(frozen=True)
class ScoreMass:
    """Where the scores of a sum are, one histogram pair per class.

    Args:
        spread: how each class's negatives and positives are spread over the leaves, ``(classes, 2, leaves)``.
        sizes: estimated examples, ``(classes, 2)``.
        smooth: whether the smooth model fits, for each class.
        places: edges of the leaves on the grid.
        grid: the bins.
    """

    spread: Floats
    sizes: Floats
    smooth: tuple[bool, ...]
    places: Places
    grid: ScoreGrid

    @classmethod
    def of(cls, seen: Sum) -> ScoreMass:
        """Return what a sum says. It is computed once and kept with the sum."""
        if seen not in _known:
            _known[seen] = cls._estimated(seen)
        return _known[seen]

    @classmethod
    def _estimated(cls, seen: Sum) -> ScoreMass:
        grid, places = seen.spec.grid, seen.places
        u = grid.coordinate[places]
        leaves = non_negative(least_squares(seen.levels))[-1].numpy().copy()
        smooth = []
        flat = len(seen.query.tree.branching) == 1 and seen.spec.rows == 2 and len(leaves) <= _MOST_CLASSES
        for leaf, noisy in zip(leaves, noisy_leaves(seen), strict=True):
            model = fit([noisy], places, u, u, _SLOPE) if flat else None
            smooth.append(model is not None and model.misfit < MOST_MISFIT)
            if model is not None and smooth[-1]:
                leaf[:] = model.cells
        sizes = np.maximum(leaves.sum(-1), 1.0)
        spread = leaves + 1e-12 * sizes[..., None]  # an empty class is spread evenly
        return cls(spread / spread.sum(-1, keepdims=True), sizes, tuple(smooth), places, grid)

    @cached_property
    def below(self) -> Floats:
        """The mass of both classes, and of all of several, below every edge of the grid, from 0 to 1."""
        u, smooth = self.grid.coordinate, all(self.smooth)
        below = np.append(0.0, self.spread.mean((0, 1)).cumsum())
        at = u[self.places]
        mass = PchipInterpolator(at, below)(u) if smooth else np.interp(u, at, below)
        floor = _FLOOR if smooth else _FLOOR_ROUGH
        result: Floats = (mass / mass[-1] + floor * u) / (1 + floor)
        return result


_known: WeakKeyDictionary[Sum, ScoreMass] = WeakKeyDictionary()


def noisy_leaves(seen: Sum) -> list[NoisyLeaves]:
    """Return the leaves of a sum with the variance of their noise, for each class."""
    places, variance = seen.places, seen.noise_variance
    return [NoisyLeaves(places, leaf.double().numpy(), variance) for leaf in seen.levels[-1]]


def _branching(mass: ScoreMass, epsilon: float) -> tuple[int, ...]:
    """Return the tree over as many leaves as examples of the smaller class can feed at this epsilon."""
    # above 1 a leaf's noise is less than an example: what is lost is what the leaves do not tell apart
    root = math.sqrt(float(mass.sizes.min()) * epsilon) * max(epsilon, 1.0) ** 1.5
    leaves, bins = max(int(_LEAVES * root), _FEWEST), mass.grid.bins
    if not all(mass.smooth) or leaves > _MOST_FLAT:
        leaves = max(int(_LEAVES_ROUGH * root), _FEWEST_ROUGH)
    side = min(round(math.sqrt(leaves)), math.isqrt(bins))
    if mass.spread.mean((0, 1)).max() > _CROWDED:
        side = max(side, min(_CROWDED_SIDE, math.isqrt(bins)))
    elif leaves <= _MOST_FLAT:
        return (leaves,)
    return side, side


def _snapped(at: Floats, grid: ScoreGrid) -> Places:
    """Return the places on the grid nearest to coordinates ``at``, moved apart so that every leaf has a bin."""
    u, index = grid.coordinate, np.arange(len(at))
    place = np.searchsorted((u[1:] + u[:-1]) / 2, at)
    place[0], place[-1] = 0, grid.bins
    place = np.maximum.accumulate(place - index)
    apart: Places = np.minimum.accumulate(np.minimum(place, grid.bins - index[-1])[::-1])[::-1] + index
    return apart


def _whole_epsilon(seen: Sum) -> float:
    """Return the epsilon of a whole release whose cells would have as much noise as these really have."""
    level = 2 * math.asinh(math.sqrt(0.5 / seen.noise_variance))
    return level * len(seen.query.tree.branching) / seen.query.fraction
