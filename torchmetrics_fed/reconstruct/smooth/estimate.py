r"""Counts on every bin of the grid, estimated from a release whose leaves were placed.

**Estimate.** A release with placed leaves has few of them, so that each stands out from its noise.
Where the smooth model (:mod:`~torchmetrics_fed.reconstruct.smooth.density`) fits the noisy leaves,
it shapes the counts within them:

1. Let :math:`m` be the mass that the leaves were placed by. Each leaf is cut into cells of equal
   mass, and the model's coordinate is :math:`x = \operatorname{logit} m`, rounded off at the ends
   and scaled to [0, 1].
2. The model is fitted to all observations at once: the placed leaves, the pilot, and the release
   before if there is one.
3. With :math:`\mu` the expected count of a leaf, y its noisy count and v the variance of its noise,
   the part of the residual that sampling explains is added back. All cells of the leaf are
   multiplied by

   .. math:: 1 + \frac{y - \mu}{\mu + v}.

4. Between edges, counts are interpolated by :func:`~torchmetrics_fed.reconstruct.leaves.on_bins`.

Where the model does not fit (ties, spikes, so much data that it needs no model), the leaves are
made consistent and non-negative and interpolated, and leaves that hold a tie become steps.

**Observations**, by the kind of release:

- One query: the upper two of its three levels, as a pilot and a second query would be. The leaves
  then get their posterior mean given all levels.
- A pilot and a placed query: the placed leaves, and those of the pilot.
- A query after a release: the placed leaves, and those of the release before, with the variance
  that the new leaves give them (:func:`leaves_of_prior`).
- One of several groups: the leaves of the group, around the shape of all groups together.

**Invariants.**

- Counts are finite and not negative, whatever the noise.
- The estimate depends on the release alone: all metrics that read it get the same bits.
- It is computed once for a release, and kept as long as the release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.consistency import (
    LEAST_DIVISOR,
    least_squares,
    non_negative,
    posterior,
)
from torchmetrics_fed.reconstruct.leaves import (
    NO_TIES,
    EndTies,
    on_bins,
    with_ties,
    without_empty_ends,
)
from torchmetrics_fed.reconstruct.smooth.density import Fit, NoisyLeaves, agree, fit, together
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass, noisy_leaves
from torchmetrics_fed.release import Release, Sum
from torchmetrics_fed.typing import Floats, Places

LEAST_START_MASS = 1e-9
"""Mass of a cell below which a start has no log-density of its own."""

LEAST_CELL_MASS = 1e-12
"""Least mass that a start is divided by."""

LOWEST_START = -8.0
"""Lower limit of the log-densities that a fit starts from."""

HIGHEST_START = 4.0
"""Upper limit of the log-densities that a fit starts from."""

ClassObservations = Sequence[Sequence[NoisyLeaves]]
"""The observations of each class."""

Models = list[Floats | None]
"""Counts on bins by the smooth model, ``(2, bins)`` for each class; None where it does not fit."""


class _Estimate(NamedTuple):
    """The estimate of a release."""

    counts: Tensor
    """Counts on all bins, ``(classes, rows, bins)``."""
    smooth: list[bool]
    """Whether the counts are the smooth model's, for each class."""


_estimates: WeakKeyDictionary[Release, _Estimate] = WeakKeyDictionary()


def bin_counts(release: Release) -> Tensor:
    """Return estimated counts on all bins, ``(classes, rows, bins)``.

    The last query of the release must have placed leaves.
    """
    return _estimate(release).counts


def are_smooth(release: Release) -> list[bool]:
    """Return for each class whether the smooth model fits. If not, scores may be tied in leaves."""
    return _estimate(release).smooth


def _estimate(release: Release) -> _Estimate:
    """Return the estimate of a release; it is computed once, because every metric asks for it."""
    if release not in _estimates:
        counts = []
        smooth = []
        for number, model in enumerate(_models(release)):
            levels = [level[number].double().numpy() for level in release.last.levels]
            if model is not None and len(levels) > 1:
                model = _with_levels(model, levels, release.last)
            smooth.append(model is not None)
            if model is None:
                model = _interpolated(levels, release.last, number)
            counts.append(model)
        _estimates[release] = _Estimate(torch.from_numpy(np.stack(counts)), smooth)
    return _estimates[release]


def _interpolated(levels: Sequence[Floats], last: Sum, number: int) -> Floats:
    """Return the counts of a class on bins, ``(rows, bins)``, without a model.

    Args:
        levels: the levels of the class, ``(rows, nodes)``.
        last: the sum that they are from.
        number: the number of the class.
    """
    if len(levels) == 1 and last.spec.rows == 2:
        levels = [without_empty_ends(levels[0], last.variances[0])]
    tensors = [torch.from_numpy(level) for level in levels]
    weights = last.weights
    if last.spec.rows != 2 and not last.query.pools_classes:
        weights = [of_classes[number] for of_classes in weights]
    consistent = non_negative(least_squares(tensors, weights))
    leaf = consistent[-1].numpy()
    u = last.spec.grid.coordinate
    counts = on_bins(leaf, last.places, u, lines_at_ends=True)
    ends = EndTies.of(last.spec.grid, last.places)
    return with_ties(counts, leaf, last.places, u, ends=ends)


def _models(release: Release) -> Models:
    """Return the counts of each class by the smooth model, None where it does not fit."""
    last = release.last
    observations = noisy_leaves(last)
    if not observations:
        return [None] * release.spec.classes
    if release.around is not None:
        return _models_of_group(observations, release.around)
    if len(last.levels) > 1:
        return _models_of_tree(observations, last)
    if release.pilot is not None:
        return _models_after_pilot(observations, last, release.pilot)
    return _models_after_release(observations, last, release.prior)


def _models_of_group(observations: ClassObservations, all_groups: Release) -> Models:
    """Return the models of one group: spread as all groups, unless its own leaves say otherwise."""
    u = all_groups.spec.grid.coordinate
    overall = _estimate(all_groups)
    models: Models = []
    for leaves, counts, is_smooth in zip(observations, overall.counts, overall.smooth, strict=True):
        if not is_smooth:
            models.append(None)
            continue
        below = np.pad(counts.numpy().cumsum(1), ((0, 0), (1, 0)))
        mass = below / np.maximum(below[:, -1:], LEAST_DIVISOR)
        *finer, best = leaves
        models += modelled([[best, *finer]], mass, start=None, u=u, slope=0.0)
    return models


def _models_of_tree(observations: ClassObservations, last: Sum) -> Models:
    """Return the models of a single query: its upper levels are the pilot and the second query."""
    mass = ScoreMass.of(last)
    if not all(mass.smooth):
        return [None] * last.spec.classes
    best_first = _best_first(observations, last, placed=False)
    return modelled(best_first, mass.below, start=mass, u=last.spec.grid.coordinate)


def _models_after_pilot(observations: ClassObservations, last: Sum, pilot: Sum) -> Models:
    """Return the models of a query that a pilot placed."""
    grid = last.spec.grid
    pilots = noisy_leaves(pilot)
    ends = EndTies.of(grid, last.places)
    if ends != NO_TIES and pilots:
        return _models_beside_atoms(observations, pilots, ends, last)
    mass = ScoreMass.of(pilot)
    if not all(mass.smooth):
        return [None] * last.spec.classes
    best_first = _best_first(observations, last, placed=True)
    return _modelled_with_pilots(best_first, pilots, mass)


def _modelled_with_pilots(
    observations: ClassObservations, pilots: ClassObservations, mass: ScoreMass
) -> Models:
    """Return the models with the leaves of a pilot beside those of each class.

    A pilot that adds up several classes is an observation of all of them together.
    """
    u = mass.grid.coordinate
    if len(pilots) < len(observations):
        (pooled,) = pilots
        return modelled(observations, mass.below, start=mass, u=u, pooled=pooled)
    with_pilots = []
    for leaves, pilot_leaves in zip(observations, pilots, strict=True):
        with_pilots.append([*leaves, *pilot_leaves])
    return modelled(with_pilots, mass.below, start=mass, u=u)


def _models_after_release(observations: ClassObservations, last: Sum, prior: Sum | None) -> Models:
    """Return the models of a query without a pilot, with the release before as data."""
    u = last.spec.grid.coordinate
    best_first = _best_first(observations, last, placed=True)
    if prior is not None and not prior.query.pools_classes:
        mass = ScoreMass.of(prior)
        with_prior = []
        for number, leaves in enumerate(best_first):
            prior_leaves = leaves_of_prior(leaves[0], mass, number)
            if prior_leaves is not None:
                with_prior.append([*leaves, prior_leaves])
        if len(with_prior) == len(best_first):
            return modelled(with_prior, mass.below, start=mass, u=u)
        # The model has jumped: the release before only placed the leaves.
    return modelled(best_first, even_mass(last.places, u), start=None, u=u)


def _best_first(
    observations: ClassObservations, last: Sum, placed: bool
) -> list[list[NoisyLeaves]]:
    """Return the observations with the best known leaves first, 0 at their empty ends."""
    result = []
    for *finer, best in observations:
        counts = without_empty_ends(best.counts, last.variances[0], placed)
        result.append([best._replace(counts=counts), *finer])
    return result


def _atoms(observations: ClassObservations, ends: EndTies) -> Floats:
    """Return the counts of scores of exactly 0 and of exactly 1, ``(classes, 2, ends)``.

    An end bin that is a leaf is known without a model, and no smooth model could follow it. Its
    counts are 0 where neither class stands out from noise.
    """
    end_leaves = [0, -1]
    counts = []
    variances = []
    for *_, best in observations:
        variance = np.broadcast_to(best.variance, best.counts.shape)
        counts.append(best.counts[:, end_leaves])
        variances.append(variance[:, end_leaves])
    noise = np.sqrt(np.stack(variances))
    stands_out = np.stack(counts) > tuning.ATOM_DEVIATIONS * noise
    is_atom = stands_out.any(1, keepdims=True) & np.array(ends)
    atoms: Floats = np.where(is_atom, np.maximum(np.stack(counts), 0.0), 0.0)
    return atoms


def _models_beside_atoms(
    observations: ClassObservations, pilots: ClassObservations, ends: EndTies, last: Sum
) -> Models:
    """Return the models with atoms in the end bins, and all other scores by the smooth model.

    The pilot without the atoms says where the other scores are.
    """
    grid = last.spec.grid
    atoms = _atoms(observations, ends)
    between = slice(int(ends.first), -1 if ends.last else None)
    all_between = []
    noise_of_ends = []
    for *finer, best in observations:
        variance = np.broadcast_to(best.variance, best.counts.shape)
        noise_of_ends.append(variance[:, [0, -1]])
        counts = without_empty_ends(best.counts[:, between], variance[:, between])
        leaves = NoisyLeaves(best.edges[between], counts, variance[:, between])
        all_between.append([leaves, *finer])
    noise = np.where(atoms.any(1, keepdims=True), np.stack(noise_of_ends), 0.0)
    if len(pilots) < len(atoms):
        atoms_of_pilots = atoms.sum(0, keepdims=True)
        noise = noise.sum(0, keepdims=True)
    else:
        atoms_of_pilots = atoms
    pilots_between = []
    for number, pilot in enumerate(pilots):
        parts = [_without_atoms(part, atoms_of_pilots[number], noise[number]) for part in pilot]
        pilots_between.append(parts)
    spread = np.stack([np.maximum(pilot[0].counts, 0.0) for pilot in pilots_between])
    mass = ScoreMass.fitted(
        pilots_between, leaf=spread, places=pilots_between[0][0].edges, grid=grid
    )
    if not all(mass.smooth):
        return [None] * len(observations)
    models = _modelled_with_pilots(all_between, pilots_between, mass)
    for model, class_atoms in zip(models, atoms, strict=True):
        if model is not None:
            model[:, [0, -1]] += class_atoms
    return models


def _without_atoms(leaves: NoisyLeaves, atoms: Floats, noise: Floats) -> NoisyLeaves:
    """Return leaves without the atoms in their end leaves, and with the noise of the atoms.

    Args:
        leaves: the leaves.
        atoms: counts in the end bins, ``(2, ends)``.
        noise: the variance of their noise, ``(2, ends)``.
    """
    counts = leaves.counts.copy()
    counts[:, [0, -1]] -= atoms
    variance = np.broadcast_to(leaves.variance, counts.shape).copy()
    variance[:, [0, -1]] += noise
    return NoisyLeaves(leaves.edges, counts, variance)


def leaves_of_prior(leaves: NoisyLeaves, mass: ScoreMass, number: int) -> NoisyLeaves | None:
    r"""Return the release before as an observation, with the variance that the new leaves give it.

    Scaled to the new class sizes, the release before predicts :math:`\lambda` for the new leaves y.
    The difference has four causes: noise v of the new leaves, noise w of the release before,
    sampling in both, and the change of the model since. The change relative to the counts is
    :math:`\tau`, with

    .. math:: \tau^2 = \frac{\sum \big( (y - \lambda)^2 - v - w - 2 \lambda \big)}{\sum \lambda^2},

    and :math:`\tau^2 \lambda^2` is added to the variance.

    Args:
        leaves: the new leaves of a class.
        mass: where the scores of the release before are.
        number: the number of the class.

    Returns:
        None if a model has jumped, or if the smooth model did not fit the release before.
    """
    if not mass.finest or not all(mass.smooth):
        return None
    before = mass.finest[number]
    sizes = np.maximum(leaves.counts.sum(1, keepdims=True), 1.0)
    scale = sizes / mass.sizes[number][:, None]
    predicted = np.diff(mass.rows_below()[:, leaves.edges], axis=1) * sizes
    before_noise = np.broadcast_to(before.variance, before.counts.shape).mean(1, keepdims=True)
    noise = scale**2 * before_noise * before.counts.shape[1] / predicted.shape[1]
    sampling = predicted * (1 + scale)
    excess = (leaves.counts - predicted) ** 2 - leaves.variance - noise - sampling
    change = excess.sum(1, keepdims=True) / (predicted**2).sum(1, keepdims=True)
    squared_change = np.maximum(change, 0.0)
    if squared_change.max() > tuning.JUMP**2:
        return None
    counts = before.counts * scale
    size = np.maximum(counts, 0)
    variance = scale**2 * before.variance + size * scale + squared_change * size**2
    return NoisyLeaves(before.edges, counts, variance)


def even_mass(places: Places, u: Floats) -> Floats:
    """Return the mass below every edge that leaves stand for if each holds as much as any other."""
    mass: Floats = PchipInterpolator(u[places], np.linspace(0, 1, len(places)))(u)
    return mass


def modelled(
    observations: ClassObservations,
    mass: Floats,
    start: ScoreMass | None,
    u: Floats,
    slope: float | None = None,
    pooled: Sequence[NoisyLeaves] = (),
) -> Models:
    """Return the counts of each class on bins by the smooth model; None where it does not fit.

    Several classes are fitted together first, and each of them around the common fit.

    Args:
        observations: for each class, the best known leaves first, then all other observations.
        mass: the mass below every edge of the grid, of both classes, or ``(2, bins + 1)`` of each.
        start: where an earlier sum found the scores, if there was one.
        u: the grid's own coordinate at every edge.
        slope: prior mean of the slope of b, :data:`tuning.SLOPE` if not given.
        pooled: observations of all classes together.
    """
    if slope is None:
        slope = tuning.SLOPE
    mean = mass.reshape(-1, len(u)).mean(0)
    cells = _cells([*observations[0], *pooled], mean)
    mean_at_cells = mean[cells]
    mass_at_cells = mass[..., cells]
    x = _logit_coordinate(mean_at_cells)
    start_densities = np.zeros((2, len(cells) - 1))
    if start is not None:
        start_densities = _start_densities(start, cells, mean_at_cells)
    common = fit(
        [*together(observations), *pooled],
        cells=cells,
        x=x,
        mass=mass_at_cells,
        slope=slope,
        start=start_densities,
    )
    fits = [common]
    if len(observations) > 1:
        fits = [
            fit(
                class_observations,
                cells=cells,
                x=x,
                mass=mass_at_cells,
                slope=slope,
                start=start_densities,
                centre=common.coefficients,
            )
            for class_observations in observations
        ]
    cell_counts = [
        _with_residuals(model, class_observations[0], cells)
        for model, class_observations in zip(fits, observations, strict=True)
    ]
    if len(fits) > 1 and common.holds and all(model.holds for model in fits):
        whole = _with_residuals(common, together(observations)[0], cells)
        cell_counts = _adding_up(cell_counts, whole)
    models: Models = []
    for model, counts in zip(fits, cell_counts, strict=True):
        models.append(on_bins(counts, cells, u) if model.holds else None)
    return models


def _adding_up(class_counts: Sequence[Floats], whole: Floats) -> list[Floats]:
    """Return the counts of classes in cells, times one factor for each cell.

    The factor makes the classes add up to the counts of all of them together, which are known far
    better. It takes away the part of an error that all classes have in common: each class is drawn
    towards the prior in the same way.
    """
    total = np.maximum(np.sum(class_counts, 0), LEAST_DIVISOR)
    factor = whole / total
    return [counts * factor for counts in class_counts]


def _cells(observations: Sequence[NoisyLeaves], mean: Floats) -> Places:
    """Return the edges of cells: all edges of leaves, and equal parts of the best known leaves."""
    places = observations[0].edges
    parts = np.arange(1, tuning.CELLS_PER_LEAF)[:, None]
    inner = mean[places[:-1]] + np.diff(mean[places]) * parts / tuning.CELLS_PER_LEAF
    inner_places = np.searchsorted(mean, inner.ravel())
    edges = np.concatenate([leaves.edges for leaves in observations])
    return np.unique(np.r_[edges, 0, len(mean) - 1, inner_places])


def _logit_coordinate(mass: Floats) -> Floats:
    """Return the coordinate x of the smooth model at edges with this mass below them."""
    rounding = tuning.LOGIT_ROUNDING
    logit = np.log((mass + rounding) / (1 + rounding - mass))
    x: Floats = (logit - logit[0]) / (logit[-1] - logit[0])
    return x


def _start_densities(start: ScoreMass, cells: Places, mean: Floats) -> Floats:
    """Return the log-densities of both classes relative to the mean mass, ``(2, cells)``."""
    masses = np.diff(start.rows_below()[:, cells], axis=1)
    numerator = np.maximum(masses, LEAST_START_MASS)
    denominator = np.maximum(np.diff(mean), LEAST_CELL_MASS)
    return np.asarray(np.clip(np.log(numerator / denominator), LOWEST_START, HIGHEST_START))


def _with_residuals(model: Fit, leaves: NoisyLeaves, cells: Places) -> Floats:
    """Return the model's counts in cells, times one factor for each leaf.

    The factor adds the part of the leaf's residual that sampling explains, as sampling has the
    variance of the expected count.
    """
    residual = (leaves.counts - model.leaves) / (model.leaves + leaves.variance)
    leaf_factor = np.maximum(1 + residual, 0)
    bounds = np.searchsorted(cells, leaves.edges)
    factor = np.ones_like(model.cells)
    factor[:, bounds[0] : bounds[-1]] = np.repeat(leaf_factor, np.diff(bounds), axis=1)
    return np.asarray(model.cells * factor)


def _with_levels(model: Floats, levels: Sequence[Floats], last: Sum) -> Floats | None:
    """Return the model's counts with leaves at their posterior mean given all levels of a tree.

    None if the leaves show that the model is off.
    """
    places = last.places
    leaf = np.add.reduceat(model, places[:-1], axis=1)
    if not agree(levels[-1], leaf, last.variances[-1], tuning.TREE_MOST_EXCESS):
        return None
    mean = np.maximum(posterior(levels, last.variances, leaf), 0)
    ratio = np.divide(mean, leaf, out=np.zeros_like(leaf), where=leaf > 0)
    counts: Floats = model * np.repeat(ratio, np.diff(places), axis=1)
    return counts
