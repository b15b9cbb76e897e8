"""ScoreMass: where the scores of a sum are, by the smooth model where it holds.

The next query is placed by it, and the estimate of a release begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, fit, together
from torchmetrics_fed.release import Sum
from torchmetrics_fed.typing import Floats, Places

_SLOPE = 3.0
# Even mass mixed into what was seen, so that no stretch of the range is left without edges; without a model, what
# stands out is sharp and deserves more of them.
_FLOOR, _FLOOR_ROUGH = 0.3, 0.15


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
