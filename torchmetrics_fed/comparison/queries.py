r"""Queries for two models: leaves even on the grid, or where an earlier sum found the scores.

A pilot counts each model by itself. Every other query counts both models together, in a table for
each class: its rows are the leaves of the first model, its columns those of the second.

A placed table has leaves of equal mass. Their number weighs sampling against noise. With the
sampling variance :math:`1/n^+ + 1/n^-` of a difference of areas, and the noise
:math:`v\,(1/(n^+)^2 + 1/(n^-)^2)` that each cell adds to it, there are

.. math:: K = k \left( \frac{1/n^+ + 1/n^-}{v\,(1/(n^+)^2 + 1/(n^-)^2)} \right)^{1/4}

leaves of each model, with :math:`v = 1 / (2 \sinh^2(\varepsilon / 2))` and k =
:data:`~torchmetrics_fed.comparison.tuning.LEAVES_PER_FOURTH_ROOT`. More cells resolve more, and add
more noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchmetrics_fed.comparison import tuning
from torchmetrics_fed.comparison.leaves import mass_of, noisy_leaves
from torchmetrics_fed.counting import ScoreGrid, Table
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.placement import snapped
from torchmetrics_fed.release import Query, Spec, Sum
from torchmetrics_fed.typing import Floats, Places


def pilot_tables(grid: ScoreGrid) -> Query:
    """Return the first query of two: few leaves of each model, even in the grid's coordinate."""
    leaves = tuning.PILOT_LEAVES
    places = snapped(np.linspace(0, 1, leaves + 1), grid).tolist()
    table = Table((leaves, leaves), (*places, *places), joint=False)
    return Query(table, tuning.PILOT_FRACTION)


def even_tables(spec: Spec) -> Query:
    """Return the only query: a table of leaves that are even in the grid's own coordinate.

    A grid of few bins has all of them as leaves.
    """
    leaves = min(tuning.EVEN_LEAVES, spec.grid.bins)
    places = snapped(np.linspace(0, 1, leaves + 1), spec.grid)
    return Query(_table([places, places], spec))


def placed_tables(earlier: Sum, fraction: float) -> Query:
    """Return a table with leaves of equal mass where an earlier sum found the scores.

    The thresholds of both models are among the edges.

    Args:
        earlier: the sum of a pilot, or the last sum of the release before.
        fraction: the fraction of epsilon that the query spends. It decides how many leaves there
        are.
    """
    if not earlier.spec.privacy.charges:
        raise InputError(
            "Expected a private release to place leaves by but got exact counts, whose quantiles "
            "are raw."
        )
    grid = earlier.spec.grid
    models = noisy_leaves(earlier)
    sizes = np.mean([leaves.counts.sum(1) for leaves in models], 0)
    leaves_wanted = _number_of_leaves(
        sizes, earlier.whole_epsilon * earlier.spec.privacy.precision_of(fraction)
    )
    even = np.linspace(0, 1, min(leaves_wanted, grid.bins) + 1)
    axes = []
    for leaves in models:
        mass = mass_of(leaves, grid)
        axes.append(snapped(np.interp(even, mass.below, grid.coordinate), grid))
    return Query(_table(axes, earlier.spec), fraction)


def _number_of_leaves(sizes: Floats, epsilon: float) -> int:
    """Return the number of leaves of each model, given estimated class sizes."""
    sizes = np.maximum(sizes, tuning.LEAST_CLASS_SIZE)
    noise = 0.5 / math.sinh(epsilon / 2) ** 2
    ratio = float((1 / sizes).sum() / (noise * (1 / sizes**2).sum()))
    leaves: int = round(tuning.LEAVES_PER_FOURTH_ROOT * ratio**0.25)
    fewest = tuning.FEWEST_LEAVES
    if sizes.min() * epsilon > tuning.MUCH_DATA:
        fewest = tuning.FEWEST_LEAVES_OF_MUCH_DATA
    return min(max(leaves, fewest), tuning.MOST_LEAVES)


def _table(axes: Sequence[Places], spec: Spec) -> Table:
    """Return the table with these leaves, each model's threshold in place of the nearest edge."""
    grid_edges = spec.grid.edges.numpy()
    places = []
    for axis, threshold in zip(axes, spec.thresholds, strict=True):
        threshold_place = int(np.searchsorted(grid_edges, threshold))
        nearest = 1 + np.abs(axis[1:-1] - threshold_place).argmin()
        with_threshold = axis.copy()
        with_threshold[nearest] = threshold_place
        places += with_threshold.tolist()
    rows, columns = (len(axis) - 1 for axis in axes)
    return Table((rows, columns), tuple(places))
