"""Queries for two models: leaves of both, even on the grid or where an earlier sum found the scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchmetrics_fed.comparison.leaves import mass_of, noisy_leaves
from torchmetrics_fed.counting import ScoreGrid, Table
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.placement import snapped
from torchmetrics_fed.release import Query, Spec, Sum
from torchmetrics_fed.typing import Places

# The fraction of epsilon that finds out where the scores of both models are, and the leaves of each.
_PILOT_FRACTION, _PILOT_LEAVES = 5 / 64, 32
# Leaves of a model in the only query, and per fourth root of (sampling / noise) in a placed one, within limits; no
# fewer than the last where there is so much data that what leaves do not tell apart outweighs noise.
_EVEN, _SIDES, _FEWEST, _MOST, _FEWEST_OF_MUCH = 12, 1.3, 6, 24, 10
_MUCH = 4000.0


def pilot_tables(grid: ScoreGrid) -> Query:
    """Return the first query of two: few leaves of each model, even in the grid's own coordinate."""
    places = snapped(np.linspace(0, 1, _PILOT_LEAVES + 1), grid)
    return Query(
        Table((_PILOT_LEAVES,) * 2, (*places.tolist(), *places.tolist()), joint=False),
        _PILOT_FRACTION,
    )


def even_tables(spec: Spec) -> Query:
    """Return the only query: a table of leaves that are even in the grid's own coordinate, or of all of few bins."""
    even = snapped(np.linspace(0, 1, min(_EVEN, spec.grid.bins) + 1), spec.grid)
    return Query(_table([even, even], spec))


def placed_tables(seen: Sum, fraction: float) -> Query:
    """Return a table with leaves of equal mass where an earlier sum found the scores, and thresholds among their edges.

    With sampling noise b = 1/m + 1/n, and a = 1/m^2 + 1/n^2 times the variance of a cell, there are
    1.3 (b / a)^(1/4) leaves: more cells tell apart more, and add more noise.
    """
    if not seen.spec.privacy.charges:
        raise InputError(
            "Expected a private release to place leaves by but got exact counts, whose quantiles are raw."
        )
    epsilon = seen.whole_epsilon * fraction
    known = noisy_leaves(seen)
    sizes = np.maximum(np.mean([each.counts.sum(1) for each in known], 0), 10.0)
    noise = 0.5 / math.sinh(epsilon / 2) ** 2
    sides = round(_SIDES * float((1 / sizes).sum() / (noise * (1 / sizes**2).sum())) ** 0.25)
    fewest = _FEWEST_OF_MUCH if sizes.min() * epsilon > _MUCH else _FEWEST
    even, grid = (
        np.linspace(0, 1, min(max(sides, fewest), _MOST, seen.spec.grid.bins) + 1),
        seen.spec.grid,
    )
    axes = [
        snapped(np.interp(even, mass_of(each, grid).below, grid.coordinate), grid) for each in known
    ]
    return Query(_table(axes, seen.spec), fraction)


def _table(axes: Sequence[Places], spec: Spec) -> Table:
    """Return the table with these leaves, each model's threshold in place of the nearest edge."""
    places = [axis.copy() for axis in axes]
    for axis, threshold in zip(places, spec.thresholds, strict=True):
        at = int(np.searchsorted(spec.grid.edges.numpy(), threshold))
        axis[1 + np.abs(axis[1:-1] - at).argmin()] = at
    return Table((len(axes[0]) - 1, len(axes[1]) - 1), tuple(np.concatenate(places).tolist()))
