"""ScoreMass: where the scores of a sum are, by the smooth model if it fits.

A placed query has leaves of equal mass, and the estimate of a release starts from the mass that its
leaves were placed by. Invariants:

- A mass is computed from a private sum, and nothing else.
- It rises from 0 to 1 over the grid, strictly: an even part is mixed in.
- Several classes have one mass together, because their leaves are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from scipy.interpolate import PchipInterpolator

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, fit, together
from torchmetrics_fed.release import Query, Sum
from torchmetrics_fed.typing import Floats, Places

LEAST_SPREAD = 1e-12
"""Part of its size that every leaf of a class holds, so that an empty class is spread evenly."""


@dataclass(frozen=True)
class ScoreMass:
    """Where the scores of a sum are, one pair of histograms per class."""

    spread: Floats
    """How negatives and positives of each class are spread over leaves, ``(classes, 2, leaves)``.
    """
    sizes: Floats
    """Estimated examples, ``(classes, 2)``."""
    smooth: tuple[bool, ...]
    """Whether the smooth model fits, for each class."""
    places: Places
    """Edges of the leaves, as places on the grid."""
    finest: tuple[NoisyLeaves, ...]
    """The finest leaves that the smooth model is fitted to, of each class; none without a model."""
    grid: ScoreGrid

    @classmethod
    def of(cls, total: Sum) -> ScoreMass:
        """Return the mass of a sum. It is computed once and kept as long as the sum."""
        if total not in _masses:
            levels = non_negative(least_squares(total.levels, total.weights))
            _masses[total] = cls.fitted(
                noisy_leaves(total),
                leaf=levels[-1].numpy(),
                places=total.places,
                grid=total.spec.grid,
            )
        return _masses[total]

    @classmethod
    def fitted(
        cls,
        class_observations: list[list[NoisyLeaves]],
        leaf: Floats,
        places: Places,
        grid: ScoreGrid,
    ) -> ScoreMass:
        """Return the mass by the smooth model, or by the leaves themselves where it does not hold.

        Several classes are fitted together: each of them has too little of a pilot, and their
        leaves are placed together in any case.

        Args:
            class_observations: the leaves that the smooth model is fitted to, of each class; empty
                where there is no model.
            leaf: non-negative counts on the leaves, ``(classes, rows, leaves)``.
            places: the edges of the leaves, as places on the grid.
            grid: the grid.
        """
        smooth = (False,) * len(leaf)
        sizes = np.maximum(leaf.sum(-1), 1.0)
        if class_observations:
            edges = class_observations[0][0].edges
            u = grid.coordinate[edges]
            model = fit(
                together(class_observations),
                cells=edges,
                x=u,
                mass=u,
                slope=tuning.PILOT_SLOPE,
            )
            smooth = (model.holds,) * len(class_observations)
            if model.holds:
                places = edges
                leaf = np.repeat(model.cells[None], len(class_observations), 0)
        spread = leaf + LEAST_SPREAD * np.maximum(leaf.sum(-1, keepdims=True), 1.0)
        return cls(
            spread=spread / spread.sum(-1, keepdims=True),
            sizes=sizes,
            smooth=smooth,
            places=places,
            finest=tuple(observations[0] for observations in class_observations),
            grid=grid,
        )

    def rows_below(self) -> Floats:
        """Return the mass of negatives and of positives below every edge, ``(2, bins + 1)``."""
        u = self.grid.coordinate
        below = np.concatenate([np.zeros((2, 1)), self.spread.mean(0).cumsum(1)], 1)
        rows: Floats = PchipInterpolator(u[self.places], below, axis=1)(u)
        return rows

    @cached_property
    def below(self) -> Floats:
        """The mass of all classes, negatives and positives alike, below every edge, from 0 to 1."""
        u = self.grid.coordinate
        below = np.append(0.0, self.spread.mean((0, 1)).cumsum())
        if all(self.smooth):
            mass = PchipInterpolator(u[self.places], below)(u)
            even = tuning.EVEN_MASS
        else:
            mass = np.interp(u, u[self.places], below)
            even = tuning.EVEN_MASS_OF_ROUGH_SCORES
        result: Floats = (mass / mass[-1] + even * u) / (1 + even)
        return result


_masses: WeakKeyDictionary[Sum, ScoreMass] = WeakKeyDictionary()


def noisy_leaves(total: Sum) -> list[list[NoisyLeaves]]:
    """Return the leaves that the smooth model is fitted to, finest first, of each class.

    For a tree of one level these are its leaves. For a tree of three levels whose top level counts
    an example several times, these are the two upper levels, with the third one added up into the
    second. Other trees have none: two levels are asked for where there is so much data that it
    needs no model.
    """
    levels = [level.double().numpy() for level in total.levels]
    variances = total.variances
    if total.spec.rows != 2:
        return []
    if len(levels) == 1:
        return [[NoisyLeaves(total.places, leaf, variances[0])] for leaf in levels[0]]
    if len(levels) != 3 or not has_heavy_top(total.query):
        return []
    _, middle_branching, leaf_branching = total.query.tree.branching
    summed = levels[2].reshape(*levels[1].shape, leaf_branching).sum(-1)
    precision = 1 / variances[1]
    summed_precision = 1 / _summed_variance(variances[2], leaf_branching)
    whole_precision = precision + summed_precision
    middle = (levels[1] * precision + summed * summed_precision) / whole_precision
    middle_edges = total.places[::leaf_branching]
    top_edges = total.places[:: leaf_branching * middle_branching]
    return [
        [
            NoisyLeaves(middle_edges, middle_counts, 1 / whole_precision),
            NoisyLeaves(top_edges, top_counts, variances[0]),
        ]
        for middle_counts, top_counts in zip(middle, levels[0], strict=True)
    ]


def has_heavy_top(query: Query) -> bool:
    """Return whether the top level counts an example several times as often as the leaves do."""
    return max(query.weights[0].positives) >= 2 * max(query.weights[-1].positives)


def _summed_variance(variance: Floats, branching: int) -> Floats:
    """Return the variance of sums of ``branching`` neighbours, each with its own noise."""
    if variance.shape[-1] == 1:
        return branching * variance
    families = variance.reshape(len(variance), -1, branching)
    return np.asarray(families.sum(-1))
