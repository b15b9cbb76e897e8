"""Counts on every bin of the grid, from a release whose leaves were placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative, posterior
from torchmetrics_fed.reconstruct.leaves import (
    NO_TIES,
    EndTies,
    on_bins,
    with_ties,
    without_empty_ends,
)
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, agree, fit, together
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass, noisy_leaves
from torchmetrics_fed.release import Release, Sum
from torchmetrics_fed.typing import Floats, Places

# Cells of a leaf in the smooth model.
_PARTS = 3
# The model's coordinate is the logit of the mass, whose ends are rounded off by this.
_LOGIT = 0.01
_SLOPE = 6.0
# How far the many small leaves of a tree may be off, relative to their counts.
_MOST_EXCESS = 0.6
# A model that changed more than this, relative to its counts, has jumped. Training moves it by 0.1 to 0.5.
_JUMP = 0.55
_ATOM = 3.0
"""An end bin that exceeds this many standard deviations of its noise holds scores of exactly 0, or of exactly 1."""


def bin_counts(release: Release) -> Tensor:
    """Return estimated counts on all bins, ``(classes, rows, bins)``, of a release whose last query has its own edges.

    Where the smooth model fits what is known, it shapes the counts inside of leaves, and of what a leaf holds beyond
    the model as much is added as sampling explains. Elsewhere (ties, spikes, so much data that it needs no model) the
    leaves, made consistent and non-negative, are interpolated, and those that hold a tie are steps.
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


_known: WeakKeyDictionary[Release, tuple[Tensor, list[bool]]] = (
    WeakKeyDictionary()
)  # every metric of a collection asks


def _estimated(release: Release) -> Iterator[tuple[Floats, bool]]:
    """Yield the counts of each class, ``(rows, bins)``, and whether they are the smooth model's."""
    last, u = release.last, release.spec.grid.coordinate
    models = _models(release, u)
    for number, model in enumerate(models):
        levels = [level[number].double().numpy() for level in last.levels]
        if model is not None and len(levels) > 1:
            model = _with_levels(model, levels, last)
        if model is not None:
            yield model, True
            continue
        if len(levels) == 1 and release.spec.rows == 2:
            levels = [without_empty_ends(levels[0], last.variances[0])]
        tensors = [torch.from_numpy(level) for level in levels]
        leaf = non_negative(least_squares(tensors, last.query.level_weights))[-1].numpy()
        ends = EndTies.of(release.spec.grid, last.places)
        counts = on_bins(leaf, last.places, u, lines_at_ends=True)
        yield with_ties(counts, leaf, last.places, u, ends), False


def _models(release: Release, u: Floats) -> list[Floats | None]:
    """Return each class's counts by the smooth model, None where there is none that fits."""
    last, pilot = release.last, release.pilot
    none: list[Floats | None] = [None] * release.spec.classes
    answers = noisy_leaves(last)
    if not answers:
        return none
    if release.around is not None:
        whole = zip(answers, *_all(release.around), strict=True)
        return [_alike(known, counts, smooth, u) for known, counts, smooth in whole]
    tree = (
        len(last.levels) > 1
    )  # the upper levels of one query tell what a pilot query and a second one would
    if pilot is not None and not tree:
        ends = EndTies.of(release.spec.grid, last.places)
        pilots = noisy_leaves(pilot)
        if ends != NO_TIES and pilots:
            return _beside_atoms(answers, pilots, ends, last)
    first = last if tree else pilot or release.prior
    seen = None if first is None else ScoreMass.of(first)
    carried = seen is not None and first is release.prior
    if seen is not None and not carried and not all(seen.smooth):
        return none
    pilots = [[] for _ in answers] if pilot is None or tree else noisy_leaves(pilot)
    known = []
    for number, (*fine, best) in enumerate(answers):
        best = best._replace(counts=without_empty_ends(best.counts, last.variances[0], not tree))
        known.append([best, *fine, *pilots[number]])
    if carried and seen is not None:
        before = [weighed(leaves[0], seen, number) for number, leaves in enumerate(known)]
        said = [each for each in before if each is not None]
        if len(said) == len(known):
            known = [[*leaves, each] for leaves, each in zip(known, said, strict=True)]
        else:  # the model has jumped
            seen = None
    return modelled(known, even_mass(last.places, u) if seen is None else seen.below, seen, u)


def _atoms(answers: Sequence[Sequence[NoisyLeaves]], ends: EndTies) -> Floats:
    """Return the counts of scores of exactly 0 and of exactly 1, ``(classes, 2, ends)``, where leaves show any.

    An end bin that is a leaf of its own is known without a model, and no smooth model could follow it.
    """
    leaves = [known[-1] for known in answers]
    counts = np.stack([known.counts[:, [0, -1]] for known in leaves])
    variance = np.stack(
        [np.broadcast_to(known.variance, known.counts.shape)[:, [0, -1]] for known in leaves]
    )
    sure = (counts > _ATOM * np.sqrt(variance)).any(1, keepdims=True) & np.array(ends)
    atoms: Floats = np.where(sure, np.maximum(counts, 0.0), 0.0)
    return atoms


def _beside_atoms(
    answers: Sequence[Sequence[NoisyLeaves]],
    pilots: Sequence[Sequence[NoisyLeaves]],
    ends: EndTies,
    last: Sum,
) -> list[Floats | None]:
    """Return each class's counts: atoms in the end bins, and all other scores by the smooth model.

    Without the atoms, the pilot says where the other scores are.
    """
    grid = last.spec.grid
    variance = last.variances[0]
    atoms = _atoms(answers, ends)
    between = slice(int(ends.first), -1 if ends.last else None)
    known = []
    pilots_between = []
    for number, (*fine, best) in enumerate(answers):
        counts = without_empty_ends(best.counts[:, between], variance)
        leaves = NoisyLeaves(best.edges[between], counts, variance)
        pilot = [_less(seen, atoms[number], variance) for seen in pilots[number]]
        known.append([leaves, *fine, *pilot])
        pilots_between.append(pilot)
    spread = np.stack([np.maximum(pilot[0].counts, 0.0) for pilot in pilots_between])
    mass = ScoreMass.fitted(pilots_between, spread, pilots_between[0][0].edges, grid)
    if not all(mass.smooth):
        return [None] * len(answers)
    models = modelled(known, mass.below, mass, grid.coordinate)
    for model, exact in zip(models, atoms, strict=True):
        if model is not None:
            model[:, [0, -1]] += exact
    return models


def _less(leaves: NoisyLeaves, atoms: Floats, variance: float) -> NoisyLeaves:
    """Return leaves without the atoms in their end leaves, which take over the noise of the atoms."""
    counts = leaves.counts.copy()
    counts[:, [0, -1]] -= atoms
    noise = np.broadcast_to(leaves.variance, counts.shape).copy()
    noise[:, [0, -1]] += variance * atoms.any(0)
    return NoisyLeaves(leaves.edges, counts, noise)


def weighed(leaves: NoisyLeaves, before: ScoreMass, number: int) -> NoisyLeaves | None:
    r"""Return what the release before said of a class, as an answer with the variance that the new leaves give it.

    Scaled to the new class sizes, its leaves hold :math:`\lambda`. The new leaves y differ from what it predicts for
    them by their own noise v, by sampling in both, by its noise w, and by what the model has changed since. That last
    part is :math:`\tau^2 \lambda^2` with :math:`\tau^2 = \sum ((y - \lambda)^2 - v - w - 2\lambda) / \sum \lambda^2`. A
    model that jumped has nothing in common with it: None.
    """
    if not before.said or not all(before.smooth):
        return None
    said = before.said[number]
    sizes = np.maximum(leaves.counts.sum(1, keepdims=True), 1.0)
    scale = sizes / before.sizes[number][:, None]
    predicted = np.diff(before.rows_below()[:, leaves.edges], axis=1) * sizes
    noise = scale**2 * said.variance * said.counts.shape[1] / predicted.shape[1]
    beyond = (leaves.counts - predicted) ** 2 - leaves.variance - noise - predicted * (1 + scale)
    changed = np.maximum(beyond.sum(1, keepdims=True) / (predicted**2).sum(1, keepdims=True), 0.0)
    if changed.max() > _JUMP**2:
        return None
    counts = said.counts * scale
    size = np.maximum(counts, 0)
    return NoisyLeaves(
        said.edges, counts, scale**2 * said.variance + size * scale + changed * size**2
    )


def _alike(answers: Sequence[NoisyLeaves], whole: Tensor, smooth: bool, u: Floats) -> Floats | None:
    """Return one group's counts: spread as everybody's, ``whole``, as far as its own leaves do not say otherwise."""
    if not smooth:
        return None
    below = np.pad(whole.numpy().cumsum(1), ((0, 0), (1, 0)))
    *fine, best = answers
    return modelled([[best, *fine]], below / np.maximum(below[:, -1:], 1e-300), None, u, 0.0)[0]


def even_mass(places: Places, u: Floats) -> Floats:
    """Return the mass that leaves carried over from an earlier release stand for: as much in each."""
    mass: Floats = PchipInterpolator(u[places], np.linspace(0, 1, len(places)))(u)
    return mass


def modelled(
    answers: Sequence[Sequence[NoisyLeaves]],
    mass: Floats,
    seen: ScoreMass | None,
    u: Floats,
    slope: float = _SLOPE,
) -> list[Floats | None]:
    """Return each class's counts by the smooth model; None where it does not fit.

    Args:
        answers: of each class, the leaves that are known best, and what else is known.
        mass: the mass below every edge of the grid, of both classes, or ``(2, bins + 1)`` of each.
        seen: where an earlier answer found the scores, if there was one.
        u: the grid's own coordinate at every edge.
        slope: prior mean of how fast positives take over.
    """
    places, mean = answers[0][0].edges, mass.reshape(-1, len(u)).mean(0)
    edges = np.concatenate([each.edges for each in answers[0]])
    parts = mean[places[:-1]] + np.diff(mean[places]) * np.arange(1, _PARTS)[:, None] / _PARTS
    cells = np.unique(np.r_[edges, 0, len(u) - 1, np.searchsorted(mean, parts.ravel())])
    at, mass = mean[cells], mass[..., cells]
    x = np.log((at + _LOGIT) / (1 + _LOGIT - at))
    x = (x - x[0]) / (x[-1] - x[0])
    start = np.zeros((2, len(cells) - 1))
    if seen is not None:
        before = np.diff(seen.rows_below()[:, cells], axis=1)
        start = np.clip(np.log(np.maximum(before, 1e-9) / np.maximum(np.diff(at), 1e-12)), -8, 4)
    every = fit(together(answers), cells, x, mass, slope, start)
    models: list[Floats | None] = []
    for known in answers:
        model = (
            every if len(answers) == 1 else fit(known, cells, x, mass, slope, start, every.terms)
        )
        if not model.holds:
            models.append(None)
            continue
        # of what a leaf holds beyond the model, the part that sampling (variance: expected count) explains beside noise
        beyond = (known[0].counts - model.bins) / (model.bins + known[0].variance)
        inside = np.searchsorted(cells, places)
        factor = np.ones_like(model.cells)
        factor[:, inside[0] : inside[-1]] = np.repeat(
            np.maximum(1 + beyond, 0), np.diff(inside), axis=1
        )
        models.append(on_bins(model.cells * factor, cells, u))
    return models


def _with_levels(model: Floats, levels: Sequence[Floats], last: Sum) -> Floats | None:
    """Return the model's counts with what a tree's levels hold beyond it; None if its leaves show that it is off."""
    places = last.places
    leaf = np.add.reduceat(model, places[:-1], axis=1)
    if not agree(levels[-1], leaf, last.variances[-1], _MOST_EXCESS):
        return None
    known = np.maximum(posterior(levels, last.variances, leaf), 0)
    ratio = np.divide(known, leaf, out=np.zeros_like(leaf), where=leaf > 0)
    counts: Floats = model * np.repeat(ratio, np.diff(places), axis=1)
    return counts
