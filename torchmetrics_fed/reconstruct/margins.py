"""Tables of two models' scores: where their leaves are placed, and what they say of each model by itself."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from torchmetrics_fed.counting import ScoreGrid, Table
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.consistency import non_negative
from torchmetrics_fed.reconstruct.leaves import on_bins, with_ties
from torchmetrics_fed.reconstruct.placement import ScoreMass, snapped, whole_epsilon
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.estimate import even_mass, modelled
from torchmetrics_fed.release import Query, Release, Spec, Sum
from torchmetrics_fed.typing import Floats, Places

# The fraction of epsilon that finds out where the scores of both models are, and the leaves of each.
_PILOT_FRACTION, _PILOT_LEAVES = 5 / 64, 32
# Leaves of a model in the only query, and per fourth root of (sampling / noise) in a placed one, within limits; no
# fewer than the last where there is so much data that what leaves do not tell apart outweighs noise.
_EVEN, _SIDES, _FEWEST, _MOST, _FEWEST_OF_MUCH = 12, 1.3, 6, 24, 10
_MUCH = 4000.0


class Margin(NamedTuple):
    """What a table says of one model."""

    leaves: Floats
    """Negatives and positives on its leaves, ``(2, leaves)``, noise and all."""
    bins: Floats
    """The same on all bins, ``(2, bins)``, by the smooth model if it holds."""
    places: Places
    smooth: bool


def pilot_tables(grid: ScoreGrid) -> Query:
    """Return the first query of two: few leaves of each model, even in the grid's own coordinate."""
    places = snapped(np.linspace(0, 1, _PILOT_LEAVES + 1), grid)
    return Query(Table((_PILOT_LEAVES,) * 2, (*places.tolist(), *places.tolist()), joint=False), _PILOT_FRACTION)


def even_tables(spec: Spec) -> Query:
    """Return the only query: a table of leaves that are even in the grid's own coordinate, or of all of few bins."""
    even = snapped(np.linspace(0, 1, min(_EVEN, spec.grid.bins) + 1), spec.grid)
    return Query(_table([even, even], spec))


def placed_tables(seen: Sum, fraction: float) -> Query:
    """Return a table with leaves of equal mass where an earlier sum found the scores, and thresholds among their edges.

    With sampling noise b = 1/m + 1/n, and a = 1/m^2 + 1/n^2 times the variance of a cell, there are
    1.3 (b / a)^(1/4) leaves: more cells tell apart more, and add more noise.
    """
    if seen.spec.privacy is None:
        raise InputError("Expected a private release to place leaves by but got exact counts, whose quantiles are raw.")
    epsilon = whole_epsilon(seen) * fraction
    known = _noisy(seen)
    sizes = np.maximum(np.mean([each.counts.sum(1) for each in known], 0), 10.0)
    noise = 0.5 / math.sinh(epsilon / 2) ** 2
    sides = round(_SIDES * float((1 / sizes).sum() / (noise * (1 / sizes**2).sum())) ** 0.25)
    fewest = _FEWEST_OF_MUCH if sizes.min() * epsilon > _MUCH else _FEWEST
    even, grid = np.linspace(0, 1, min(max(sides, fewest), _MOST, seen.spec.grid.bins) + 1), seen.spec.grid
    axes = [snapped(np.interp(even, _mass(each, grid).below, grid.coordinate), grid) for each in known]
    return Query(_table(axes, seen.spec), fraction)


def tables_of(release: Release) -> Floats:
    """Return the table of negatives and that of positives, ``(2, leaves, leaves)``."""
    tables: Floats = release.last.levels[-1][0].double().numpy().reshape(2, *release.last.query.tree.branching)
    return tables


def margins(release: Release) -> list[Margin]:
    """Return what a release of two models says of each."""
    grid, last, pilot = release.spec.grid, release.last, release.pilot
    if release.spec.privacy is None:
        tables, places = tables_of(release), np.arange(grid.bins + 1)
        return [Margin(each, each, places, True) for each in (tables.sum(2), tables.sum(1))]
    before = [None, None] if pilot is None else _noisy(pilot)
    found = []
    for best, first in zip(_noisy(last), before, strict=True):
        u, model, seen = grid.coordinate, None, None if first is None else _mass(first, grid)
        mass = even_mass(best.edges, u) if seen is None else seen.below
        if seen is None or all(seen.smooth):
            model = modelled([[best] if first is None else [best, first]], mass, seen, u)[0]
        bins = model
        if bins is None:
            leaf = non_negative([torch.from_numpy(best.counts)])[0].numpy()
            bins = with_ties(on_bins(leaf, best.edges, u, lines_at_ends=True), leaf, best.edges, u)
        found.append(Margin(best.counts, bins, best.edges, model is not None))
    return found


def _noisy(seen: Sum) -> list[NoisyLeaves]:
    """Return the leaves of each model; those of a joint table are sums of cells, and hold the noise of each."""
    table = seen.query.tree
    assert isinstance(table, Table)
    levels, variance = [level[0].double().numpy() for level in seen.levels], seen.noise_variance
    if table.joint:
        pairs = levels[0].reshape(2, *table.branching)
        levels = [pairs.sum(2), pairs.sum(1)]
    times = reversed(table.branching) if table.joint else (1, 1)
    each = zip(table.axes, levels, times, strict=True)
    return [NoisyLeaves(np.array(axis), leaf, variance * many) for axis, leaf, many in each]


def _mass(known: NoisyLeaves, grid: ScoreGrid) -> ScoreMass:
    leaves = non_negative([torch.from_numpy(known.counts[None])])[0].numpy()
    return ScoreMass.fitted([[known]], leaves, known.edges, grid)


def _table(axes: Sequence[Places], spec: Spec) -> Table:
    """Return the table with these leaves, each model's threshold in place of the nearest edge."""
    places = [axis.copy() for axis in axes]
    for axis, threshold in zip(places, spec.thresholds, strict=True):
        at = int(np.searchsorted(spec.grid.edges.numpy(), threshold))
        axis[1 + np.abs(axis[1:-1] - at).argmin()] = at
    return Table((len(axes[0]) - 1, len(axes[1]) - 1), tuple(np.concatenate(places).tolist()))
