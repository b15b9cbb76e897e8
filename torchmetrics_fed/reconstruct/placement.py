"""Placement: where an earlier sum found the scores, and the leaves that the next query puts there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, fit, together
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

_SLOPE = 3.0
# Even mass mixed into what was seen, so that no stretch of the range is left without edges; without a model, what
# stands out is sharp and deserves more of them.
_FLOOR, _FLOOR_ROUGH = 0.3, 0.15


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
    branching = _branching(mass, whole_epsilon(seen) * fraction, len(seen.spec.groups))
    ends = _crowded_ends(mass)
    if len(branching) == 1:
        branching = (branching[0] + len(ends),)
    even = np.linspace(0, 1, math.prod(branching) + 1 - len(ends))
    inner = np.interp(even, mass.below, grid.coordinate)
    places = snapped(np.sort(np.r_[inner, ends]), grid)
    return Query(Tree(branching, tuple(places.tolist())), fraction)


@dataclass(frozen=True)
class ScoreMass:
    """Where the scores of a sum are, one histogram pair per class."""

    spread: Floats
    """How each class's negatives and positives are spread over the leaves, ``(classes, 2, leaves)``."""
    sizes: Floats
    """Estimated examples, ``(classes, 2)``."""
    smooth: tuple[bool, ...]
    """Whether the smooth model fits, for each class."""
    places: Places
    said: tuple[NoisyLeaves, ...]
    """The finest leaves that the smooth model knows, of each class."""
    grid: ScoreGrid

    @classmethod
    def of(cls, seen: Sum) -> ScoreMass:
        """Return what a sum says. It is computed once and kept with the sum."""
        if seen not in _known:
            leaves = non_negative(least_squares(seen.levels, seen.query.level_weights))[-1].numpy()
            _known[seen] = cls.fitted(noisy_leaves(seen), leaves, seen.places, seen.spec.grid)
        return _known[seen]

    @classmethod
    def fitted(
        cls, answers: list[list[NoisyLeaves]], leaves: Floats, places: Places, grid: ScoreGrid
    ) -> ScoreMass:
        """Return what answers say of each class by the smooth model; where it does not hold, the leaves themselves."""
        smooth = [False] * len(leaves)
        sizes = np.maximum(leaves.sum(-1), 1.0)
        if answers:  # several classes each have too little of a pilot query, and are placed together in any case
            at = answers[0][0].edges
            model = fit(together(answers), at, grid.coordinate[at], grid.coordinate[at], _SLOPE)
            smooth = [model.holds] * len(answers)
            if model.holds:
                places, leaves = at, np.repeat(model.cells[None], len(answers), 0)
        spread = leaves + 1e-12 * np.maximum(
            leaves.sum(-1, keepdims=True), 1.0
        )  # an empty class is spread evenly
        said = tuple(known[0] for known in answers)
        return cls(spread / spread.sum(-1, keepdims=True), sizes, tuple(smooth), places, said, grid)

    def rows_below(self) -> Floats:
        """Return the mass of negatives and of positives below every edge of the grid, ``(2, bins + 1)``."""
        below = np.concatenate([np.zeros((2, 1)), self.spread.mean(0).cumsum(1)], 1)
        rows: Floats = PchipInterpolator(self.grid.coordinate[self.places], below, axis=1)(
            self.grid.coordinate
        )
        return rows

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


def noisy_leaves(seen: Sum) -> list[list[NoisyLeaves]]:
    """Return what the smooth model is fitted to, for each class: leaves, and if there are, the better known above them.

    Those are the only level, or of three the upper two, with the third one added up into the second. Nothing for other
    trees: two levels are asked for where there is so much data that it needs no model.
    """
    tree, levels, variances = (
        seen.query.tree,
        [level.double().numpy() for level in seen.levels],
        seen.variances,
    )
    if len(levels) == 1 and seen.spec.rows == 2:
        return [[NoisyLeaves(seen.places, leaf, variances[0])] for leaf in levels[0]]
    if len(levels) != 3 or seen.query.level_weights[0] == 1 or seen.spec.rows != 2:
        return []
    parts = tree.branching[-1]
    summed = levels[2].reshape(*levels[1].shape, parts).sum(-1)
    known = 1 / variances[1], 1 / (parts * variances[2])
    middle, variance = (levels[1] * known[0] + summed * known[1]) / sum(known), 1 / sum(known)
    edges = seen.places[::parts], seen.places[:: parts * tree.branching[1]]
    return [
        [NoisyLeaves(edges[0], fine, variance), NoisyLeaves(edges[1], coarse, variances[0])]
        for fine, coarse in zip(middle, levels[0], strict=True)
    ]


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


def whole_epsilon(seen: Sum) -> float:
    """Return the epsilon of a whole release whose cells would have as much noise as these really have."""
    cell = 2 * math.asinh(math.sqrt(0.5 / seen.noise_variance))
    return cell * sum(seen.query.level_weights) / seen.query.fraction
