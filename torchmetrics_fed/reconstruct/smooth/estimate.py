"""Counts on every bin of the grid, from a release whose leaves were placed."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.leaves import on_bins, with_ties, without_empty_ends
from torchmetrics_fed.reconstruct.placement import ScoreMass, noisy_leaves
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, fit
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, Places

__all__ = ["are_smooth", "bin_counts"]

# Cells of a leaf in the smooth model.
_PARTS = 3
# The model's coordinate is the logit of the mass, whose ends are rounded off by this.
_LOGIT = 0.01
_SLOPE = 6.0
# Standard deviations from the model: more than for a pilot query, because here what leaves hold beyond it is added.
_MOST_MISFIT = 15.0


def bin_counts(release: Release) -> Tensor:
    """Return estimated counts on all bins, ``(classes, rows, bins)``, non-negative.

    Where the leaves are one level and the smooth model fits the answers to all queries, the model shapes the counts
    inside of leaves, and of what a leaf holds beyond the model as much is added as sampling explains. Elsewhere (ties,
    spikes, so much data that it needs no model) the leaves, made consistent and non-negative, are interpolated.

    Args:
        release: one whose last query has edges of its own.
    """
    return _all(release)[0]


def are_smooth(release: Release) -> list[bool]:
    """Return for each class whether the smooth model fits; where it does not, scores may be tied within leaves."""
    return _all(release)[1]


def _all(release: Release) -> tuple[Tensor, list[bool]]:
    if release not in _known:
        counts, smooth = zip(*_estimated(release), strict=True)
        _known[release] = torch.from_numpy(np.stack(counts)), list(smooth)
    return _known[release]


_known: WeakKeyDictionary[Release, tuple[Tensor, list[bool]]] = WeakKeyDictionary()  # every metric of a collection asks


def _estimated(release: Release) -> Iterator[tuple[Floats, bool]]:
    """Yield the counts of each class, ``(rows, bins)``, and whether they are the smooth model's."""
    last, pilot, u = release.last, release.pilot, release.spec.grid.coordinate
    seen = None if pilot is None else ScoreMass.of(pilot)
    modelled: list[Floats | None] = [None] * release.spec.classes
    if len(last.query.tree.branching) == 1 and release.spec.rows == 2 and (seen is None or all(seen.smooth)):
        firsts = [] if pilot is None else noisy_leaves(pilot)
        mass = _even_mass(last.places, u) if seen is None else seen.below
        for number, second in enumerate(noisy_leaves(last)):
            second = second._replace(counts=without_empty_ends(second.counts, second.variance))
            spread = np.ones((2, 1)) if seen is None else seen.spread[number]
            modelled[number] = _modelled([second, *firsts[number : number + 1]], mass, spread, u)
    for number, model in enumerate(modelled):
        if model is not None:
            yield model, True
            continue
        levels = [level[number].double() for level in last.levels]
        if len(levels) == 1 and release.spec.rows == 2:
            levels = [torch.from_numpy(without_empty_ends(levels[0].numpy(), last.noise_variance))]
        leaf = non_negative(least_squares(levels))[-1].numpy()
        yield with_ties(on_bins(leaf, last.places, u, lines_at_ends=True), leaf, last.places, u), False


def _even_mass(places: Places, u: Floats) -> Floats:
    """Return the mass that leaves carried over from an earlier release stand for: as much in each."""
    mass: Floats = PchipInterpolator(u[places], np.linspace(0, 1, len(places)))(u)
    return mass


def _modelled(known: list[NoisyLeaves], mass: Floats, spread: Floats, u: Floats) -> Floats | None:
    """Return one class's counts by the smooth model; None where it does not fit.

    Args:
        known: the answer to the last query, and that to the pilot query if there was one.
        mass: the mass below every edge of the grid.
        spread: how the pilot query saw both classes spread over its leaves; one leaf if there was none.
        u: the grid's own coordinate at every edge.
    """
    leaves, places = known[0], known[0].edges
    seen_at = known[1].edges if len(known) > 1 else np.array([0, len(u) - 1])
    parts = mass[places[:-1]] + np.diff(mass[places]) * np.arange(1, _PARTS)[:, None] / _PARTS
    cells = np.unique(np.r_[seen_at, places, np.searchsorted(mass, parts.ravel())])
    at = mass[cells]
    x = np.log((at + _LOGIT) / (1 + _LOGIT - at))
    start = np.zeros((2, len(cells) - 1))
    if len(known) > 1:
        seen = np.diff(PchipInterpolator(u[seen_at], _below(spread), axis=1)(u[cells]), axis=1)
        start = np.clip(np.log(np.maximum(seen, 1e-9) / np.diff(at)), -8, 4)
    model = fit(known, cells, (x - x[0]) / (x[-1] - x[0]), at, _SLOPE, start)
    if not model.misfit < _MOST_MISFIT:
        return None
    # of what a leaf holds beyond the model, the part that sampling (variance = expected count) explains beside noise
    beyond = (leaves.counts - model.bins) / (model.bins + leaves.variance)
    factor = np.repeat(np.maximum(1 + beyond, 0), np.diff(np.searchsorted(cells, places)), axis=1)
    return on_bins(model.cells * factor, cells, u)


def _below(cells: Floats) -> Floats:
    """Return the counts below each edge, with a leading 0."""
    return np.concatenate([np.zeros((len(cells), 1)), cells.cumsum(1)], 1)
