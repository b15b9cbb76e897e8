"""Placement: the leaves that a query asks for, even on the grid or where an earlier sum found the scores."""

from __future__ import annotations

import math

import numpy as np

from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Query, Sum
from torchmetrics_fed.release.query import LevelWeights
from torchmetrics_fed.typing import Floats, Places

LEAST_BINS = 256
"""Bins below which there is nothing to place: all of them can be leaves."""

# The fraction of epsilon that finds out where the scores are, and its leaves. A multiple of 1/64, so that the fractions
# add up to 1 exactly. Less loses in ROC where the classes are small, more loses everywhere.
_PILOT_FRACTION, _PILOT_LEAVES = 3 / 64, 24
# The tree of a single query, which has to do for all data: a few leaves that are known well, for the smooth model, and
# below them many, for scores that crowd somewhere in the range. Above this epsilon there is no need for a model.
_SINGLE, _SINGLE_WEIGHTS, _SINGLE_PLENTY, _PLENTY = (16, 4, 16), (4, 1, 1), (8, 8, 8), 2.0
# Leaves per square root of (examples of the smaller class x epsilon), and the fewest; with the smooth model, without.
_LEAVES, _FEWEST = 0.35, 8
_LEAVES_ROUGH, _FEWEST_ROUGH = 0.4, 10
# More leaves than these are two levels: sums over many leaves get cheaper, and so much data needs no model.
_MOST_FLAT = 40
# One pilot leaf with more than this part of the mass does not show where in it the scores are. The second query then
# has two levels: their branching per square root as above, and the largest.
_CROWDED, _CROWDED_SIDES, _MOST_SIDES = 0.4, 0.7, 16

_END_CROWDED = 0.1
"""An end leaf of the earlier sum with more than this part of the mass may hold scores of exactly 0, or exactly 1."""


def pilot_query(grid: ScoreGrid, pools_groups: bool = False) -> Query:
    """Return the first query of two: few leaves, even in the grid's own coordinate."""
    places = snapped(np.linspace(0, 1, _PILOT_LEAVES + 1), grid)
    tree = Tree((_PILOT_LEAVES,), tuple(places.tolist()))
    return Query(tree, _PILOT_FRACTION, pools_groups=pools_groups)


def single_query(grid: ScoreGrid, epsilon: float) -> Query:
    """Return the only query: three levels of leaves that are even in the grid's own coordinate, or all of few bins."""
    branching = _SINGLE if epsilon <= _PLENTY else _SINGLE_PLENTY
    weights = _SINGLE_WEIGHTS if epsilon <= _PLENTY else ()
    leaves = math.prod(branching)
    if grid.bins < 2 * leaves:
        return Query(Tree.balanced(grid.bins))
    places = snapped(np.linspace(0, 1, leaves + 1), grid)
    tree = Tree(branching, tuple(places.tolist()))
    return Query(tree, weights=tuple(LevelWeights.of(weight) for weight in weights))


def placed_query(seen: Sum, fraction: float) -> Query:
    """Return leaves of equal mass where an earlier sum found the scores, as many as a fraction of epsilon can feed."""
    if not seen.spec.privacy.charges:
        raise InputError(
            "Expected a private release to place leaves by but got exact counts: edges of equal mass are the quantiles "
            "of the raw data. Release it with `privacy`, or use a plan that needs no data."
        )
    mass, grid = ScoreMass.of(seen.overall), seen.spec.grid
    branching = _branching(mass, seen.whole_epsilon * fraction, len(seen.spec.groups))
    ends = _crowded_ends(mass)
    if len(branching) == 1:
        branching = (branching[0] + len(ends),)
    even = np.linspace(0, 1, math.prod(branching) + 1 - len(ends))
    inner = np.interp(even, mass.below, grid.coordinate)
    places = snapped(np.sort(np.r_[inner, ends]), grid)
    return Query(Tree(branching, tuple(places.tolist())), fraction)


def _branching(mass: ScoreMass, epsilon: float, groups: int) -> tuple[int, ...]:
    """Return the tree over as many leaves as examples of the smaller class, of each group, can feed at this epsilon."""
    size = float(mass.sizes.min())
    if groups:
        # Each is read around the shape of all. Relative to sampling, K leaves of variance v lose about 1 / K because of
        # what they do not tell apart, and 2 K v / n by noise: least at sqrt(n / 2 v), 1 / 2 v = sinh(epsilon / 2)^2.
        leaves = int(math.sqrt(size / groups) * math.sinh(epsilon / 2))
        return (min(max(leaves, _FEWEST), _MOST_FLAT),)
    # above 1 a leaf's noise is less than an example: what is lost is what the leaves do not tell apart
    root = math.sqrt(size * epsilon) * max(epsilon, 1.0) ** 1.5
    leaves, bins = max(int(_LEAVES * root), _FEWEST), mass.grid.bins
    if not all(mass.smooth) or leaves > _MOST_FLAT:
        leaves = max(int(_LEAVES_ROUGH * root), _FEWEST_ROUGH)
    side = min(round(math.sqrt(leaves)), math.isqrt(bins))
    if mass.spread.mean((0, 1)).max() > _CROWDED:
        side = max(side, min(round(_CROWDED_SIDES * root), _MOST_SIDES, math.isqrt(bins)))
    elif leaves <= _MOST_FLAT:
        return (leaves,)
    return side, side


def _crowded_ends(mass: ScoreMass) -> Floats:
    """Return the coordinates of edges that make the end bins leaves of their own, for ends where scores crowd.

    They may be exactly 0 or exactly 1. Then an end bin alone is a tie whose order is known.
    """
    share = mass.spread.mean((0, 1))
    inner = mass.grid.coordinate[[1, -2]]
    crowded = (share[[0, -1]] > _END_CROWDED) & (mass.grid.kind == "two_sided")
    ends: Floats = inner[crowded]
    return ends


def snapped(at: Floats, grid: ScoreGrid) -> Places:
    """Return the places on the grid nearest to coordinates ``at``, moved apart so that every leaf has a bin."""
    u, index = grid.coordinate, np.arange(len(at))
    place = np.searchsorted((u[1:] + u[:-1]) / 2, at)
    place[0], place[-1] = 0, grid.bins
    place = np.maximum.accumulate(place - index)
    apart: Places = (
        np.minimum.accumulate(np.minimum(place, grid.bins - index[-1])[::-1])[::-1] + index
    )
    return apart
