r"""The smooth model: densities of both classes, fitted to noisy leaves.

**Model.** Let :math:`m` be a known mass, a guess of where the scores are, and :math:`x \in [0, 1]`
a coordinate that ascends with the score. A cell is a run of bins. With :math:`N^\pm` the class
sizes, its expected counts are

.. math:: \lambda^- = N^- \, \Delta m \, e^{a(x)}, \qquad
    \lambda^+ = N^+ \, \Delta m \, e^{a(x) + b(x)}.

So the classes share a(x), what they have in common, and b(x) is the log-ratio of their densities.
Each is a series

.. math:: \theta_0 + \theta_1 \sqrt{12}\, (x - \tfrac12) + \sum_{j=1}^{M} \theta_{j+1} \cos \pi j x,

whose coefficients are independent and normal: the constant and the line with fixed prior variances,
that of the j-th cosine with :math:`\rho^2 / j^4`. The series of a pilot have two more terms, for
the first and for the last cell alone. The prior mean :math:`\bar\theta` is 0, but for the line of
b: positives have the higher scores. For one class of several, it is the fit of all classes.

**Data.** A leaf is a run of cells, with the expected count :math:`\mu = \sum \lambda`. Its noisy
count y has the variance :math:`v + \mu`: v of noise, :math:`\mu` of sampling. A pilot's noise
outweighs sampling, so there it is v.

**Fit.** The most probable coefficients of a and b are found by Gauss-Newton. With :math:`\Lambda`
the precision of the prior, :math:`D = \partial \mu / \partial \theta` and
:math:`W = \operatorname{diag} 1 / (v + \mu)`, a step is

.. math:: C^{-1} = D^\top W D + \Lambda, \qquad
    \delta = C \big( D^\top W (y - \mu) - \Lambda (\theta - \bar\theta) \big).

After the first steps, expectation-maximisation sets :math:`\rho` of a and of b, by their cosines
and by a prior guess :math:`\rho_0` that is worth :math:`\kappa` cosines:

.. math:: \rho^2 = \frac{1}{M + \kappa} \Big( \kappa \rho_0^2
    + \sum_{j=1}^{M} j^4 \big( (\theta_{j+1} - \bar\theta_{j+1})^2 + C_{j+1,j+1} \big) \Big).

**Invariants.**

- The data are read through the sums of cells only, so leaves of several queries can be fitted at
  once, if all of their edges are edges of cells.
- Expected counts are positive and finite, whatever the noise.
- A fit says whether it holds (:func:`agree`). Where it does not, scores have ties or spikes that no
  smooth density has, and no count of the fit may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.typing import Floats, Places

LOWEST_LOG_DENSITY = -15.0
"""Lower limit of log-densities relative to the mass, so that no expected count is 0."""

HIGHEST_LOG_DENSITY = 8.0
"""Upper limit of log-densities relative to the mass, so that a bad step cannot overflow."""

LINE_SCALE = np.sqrt(12)
"""The line of a series has variance 1 over [0, 1]."""

START_RIDGE = 1e-4
"""Penalty of rough terms, relative to the mass, where log-densities to start from are projected."""

LAPLACE_SQUARE_VARIANCE = 5
"""Variance of the square of a Laplace variable of variance 1: its fourth moment 6 minus 1."""


class NoisyLeaves(NamedTuple):
    """Noisy counts of both classes on the leaves of one query."""

    edges: Places
    """Edges of the leaves, as places on the grid."""
    counts: Floats
    """Negatives and positives, ``(2, leaves)``."""
    variance: float | Floats
    """Variance of the noise in each count, one for all or ``(2, leaves)``."""


class Fit(NamedTuple):
    """The fitted model."""

    cells: Floats
    """Expected counts in the cells, ``(2, cells)``."""
    leaves: Floats
    """Expected counts in the leaves of the first observation, ``(2, leaves)``."""
    coefficients: Floats
    """Coefficients of a and b, ``(2, terms)``."""
    holds: bool
    """Whether the model fits the first observation; if not, scores have ties or spikes."""


class _Prior(NamedTuple):
    """Independent normal laws of the coefficients of a and b."""

    mean: Floats
    """``(2, terms)``."""
    constant_variance: float
    line_variance: float
    roughness: float
    """The prior guess of rho."""
    has_end_terms: bool
    """Whether the series have terms for the first and the last cell alone."""

    def precision(self, squared_roughness: Floats) -> Floats:
        """Return the inverse variance of each coefficient, ``(2, terms)``."""
        parts = [
            np.full((2, 1), 1 / self.constant_variance),
            np.full((2, 1), 1 / self.line_variance),
            _cosine_powers() / squared_roughness,
        ]
        if self.has_end_terms:
            parts.append(np.full((2, 2), 1 / tuning.END_CELL_VARIANCE))
        return np.concatenate(parts, 1)

    def squared_roughness(self, coefficients: Floats, covariance: Floats) -> Floats:
        """Return the estimated rho^2 of a and of b, ``(2, 1)``, given coefficients and C."""
        powers = _cosine_powers()
        is_cosine = slice(2, 2 + len(powers))
        squares = (coefficients - self.mean)[:, is_cosine] ** 2
        variances = np.diag(covariance).reshape(2, -1)[:, is_cosine]
        evidence = (squares + variances) @ powers
        worth = tuning.ROUGHNESS_WORTH
        estimate = (evidence + worth * self.roughness**2) / (len(powers) + worth)
        return np.asarray(estimate[:, None])


@dataclass(frozen=True)
class _Problem:
    """The data that a model is fitted to, and what its expected counts are made of."""

    counts: Floats
    """Noisy counts y of all leaves, ``(2, leaves)``."""
    noise: Floats
    """Their variances v, ``(2, leaves)``."""
    is_in_leaf: Floats
    """Which cells each leaf is made of, ``(leaves, cells)``, as 0 and 1."""
    base: Floats
    """The counts N dm of each cell without the series, ``(2, cells)``."""
    series: Floats
    """The terms of a series at the middle of each cell, ``(cells, terms)``."""
    has_sampling: bool
    """Whether counts vary by sampling, too."""

    def cell_counts(self, coefficients: Floats) -> Floats:
        """Return the expected counts of cells, ``(2, cells)``: of a alone, and of a + b."""
        log_densities = coefficients.cumsum(0) @ self.series.T
        limited = np.clip(log_densities, LOWEST_LOG_DENSITY, HIGHEST_LOG_DENSITY)
        return np.asarray(self.base * np.exp(limited))

    def leaf_counts(self, cells: Floats) -> Floats:
        """Return the expected counts of leaves, ``(2, leaves)``."""
        return np.asarray(cells @ self.is_in_leaf.T)

    def normal_equations(
        self, cells: Floats, leaves: Floats, precision: Floats
    ) -> tuple[Floats, Floats]:
        """Return C^-1, ``(2 terms, 2 terms)``, and D' W (y - mu), ``(2, terms)``.

        Negatives depend on the coefficients of a, positives on those of a and b alike.
        """
        terms = self.series.shape[1]
        variance = self.noise
        if self.has_sampling:
            variance = variance + leaves
        weight = 1 / variance
        slopes = self.is_in_leaf @ (cells[..., None] * self.series)
        weighted = (slopes * weight[..., None]).transpose(0, 2, 1)
        of_negatives, of_positives = weighted @ slopes
        gradient = (weighted @ (self.counts - leaves)[..., None])[..., 0]
        hessian = np.tile(of_positives, (2, 2)) + np.diag(precision.ravel())
        hessian[:terms, :terms] += of_negatives
        gradient[0] += gradient[1]
        return hessian, gradient

    def log_density_change(self, change: Floats) -> float:
        """Return by how much a change of coefficients moves a log-density at most."""
        return float(np.abs(change.cumsum(0) @ self.series.T).max())


def fit(
    observations: Sequence[NoisyLeaves],
    cells: Places,
    x: Floats,
    mass: Floats,
    slope: float,
    start: Floats | None = None,
    centre: Floats | None = None,
) -> Fit:
    """Return the most probable densities.

    Args:
        observations: noisy leaves of one or several queries. The misfit is measured on the first
        one.
        cells: edges of cells, as places on the grid. All edges of the observations are among them.
        x: the coordinate at these edges, ascending from 0 to 1.
        mass: the known mass below these edges, ascending: ``(edges,)`` of both classes, or ``(2,
        edges)``.
        slope: prior mean of the slope of b, in log-density over the whole range of x.
        start: log-densities relative to the mass, ``(2, cells)``, to start from. With them, counts
            vary by sampling, too. Without them, the fit is that of a pilot.
        centre: coefficients of the fit of all of several classes, as the prior mean of one class.
    """
    problem = _problem(observations, cells, x, mass, is_pilot=start is None)
    prior = _prior(problem.series.shape[1], slope, centre, is_pilot=start is None)
    coefficients = prior.mean
    if start is not None and centre is None:
        widths = np.diff(mass).reshape(-1, len(problem.series)).mean(0)
        coefficients = _projected(start, problem.series, widths)
    squared_roughness = np.full((2, 1), prior.roughness**2)
    is_solved = True
    for step in range(tuning.NEWTON_STEPS):
        precision = prior.precision(squared_roughness)
        cell_counts = problem.cell_counts(coefficients)
        leaf_counts = problem.leaf_counts(cell_counts)
        hessian, gradient = problem.normal_equations(cell_counts, leaf_counts, precision)
        try:
            covariance = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
        except np.linalg.LinAlgError:  # counts that floats cannot weigh against the prior
            is_solved = False
            break
        pull = precision * (coefficients - prior.mean)
        change = (covariance @ (gradient - pull).ravel()).reshape(2, -1)
        size = problem.log_density_change(change)
        longest = tuning.NEWTON_LONGEST_STEP / max(size, tuning.NEWTON_SMALL_STEP)
        coefficients = coefficients + change * min(1.0, longest)
        if step < tuning.NEWTON_SETTLING_STEPS:
            continue
        if size < tuning.NEWTON_SMALL_STEP:
            break
        squared_roughness = prior.squared_roughness(coefficients, covariance)
    first = observations[0]
    leaves = leaf_counts[:, : first.counts.shape[1]]
    holds = is_solved and agree(first.counts, leaves, first.variance)
    return Fit(cells=cell_counts, leaves=leaves, coefficients=coefficients, holds=holds)


def together(class_observations: Sequence[Sequence[NoisyLeaves]]) -> list[NoisyLeaves]:
    """Return the observations of all classes added up: alike classes are known best together."""
    sums = []
    for observations in zip(*class_observations, strict=True):
        counts = np.sum([leaves.counts for leaves in observations], 0)
        variance = sum(leaves.variance for leaves in observations)
        sums.append(NoisyLeaves(observations[0].edges, counts, variance))
    return sums


def agree(
    counts: Floats, expected: Floats, noise: float | Floats, most_excess: float | None = None
) -> bool:
    r"""Return whether counts differ from expected counts by noise and sampling, or by little.

    With K leaves of count y, expected count :math:`\mu` and noise v, the misfit and the excess of a
    class are

    .. math:: \frac{1}{\sqrt{5 K}} \Big( \sum \frac{(y - \mu)^2}{v + \mu} - K \Big), \qquad
        \frac{\sum \big( (y - \mu)^2 - v - \mu \big)}{\sum \mu^2}.

    The 5 is the variance of the square of a Laplace variable of variance 1. Ties make both large.
    Much smooth data makes only the misfit large, because it shows what the model leaves out.

    Args:
        counts: noisy counts, ``(2, leaves)``.
        expected: expected counts, ``(2, leaves)``.
        noise: variance of the noise.
        most_excess: square root of the largest excess, :data:`tuning.MOST_EXCESS` if not given.
    """
    if most_excess is None:
        most_excess = tuning.MOST_EXCESS
    leaves = counts.shape[1]
    squares = (counts - expected) ** 2
    variance = noise + expected
    chi_square = (squares / variance).sum(1)
    misfit = (chi_square - leaves) / np.sqrt(LAPLACE_SQUARE_VARIANCE * leaves)
    excess = np.maximum((squares - variance).sum(1), 0) / (expected**2).sum(1)
    return bool(misfit.max() < tuning.MOST_MISFIT or excess.max() < most_excess**2)


def _cosine_powers() -> Places:
    """Return j^4 of each cosine: the prior precision of its coefficient, but for rho."""
    return np.arange(1, tuning.SERIES_TERMS - 1) ** 4


def _series(middle: Floats, is_pilot: bool) -> Floats:
    """Return the terms of a series at the middle of each cell, ``(cells, terms)``."""
    frequencies = np.arange(1, tuning.SERIES_TERMS - 1)
    cosines = np.cos(np.pi * np.outer(middle, frequencies))
    series = np.c_[np.ones(len(middle)), LINE_SCALE * (middle - 0.5), cosines]
    if is_pilot:
        end_cells = np.eye(len(middle))[:, [0, -1]]
        series = np.c_[series, end_cells]
    return np.asarray(series)


def _problem(
    observations: Sequence[NoisyLeaves], cells: Places, x: Floats, mass: Floats, is_pilot: bool
) -> _Problem:
    """Return the observations side by side, with what their expected counts are made of."""
    noises = [np.broadcast_to(leaves.variance, leaves.counts.shape) for leaves in observations]
    return _Problem(
        counts=np.concatenate([leaves.counts for leaves in observations], 1),
        noise=np.concatenate(noises, 1),
        is_in_leaf=np.concatenate([_is_in_leaf(leaves.edges, cells) for leaves in observations]),
        base=_class_sizes(observations) * np.diff(mass),
        series=_series((x[1:] + x[:-1]) / 2, is_pilot),
        has_sampling=not is_pilot,
    )


def _prior(terms: int, slope: float, centre: Floats | None, is_pilot: bool) -> _Prior:
    """Return the prior of both series: around 0 and a slope of b, or around a common fit."""
    if centre is not None:
        return _Prior(
            mean=centre,
            constant_variance=tuning.ALIKE_CONSTANT_VARIANCE,
            line_variance=tuning.ALIKE_LINE_VARIANCE,
            roughness=tuning.ALIKE_ROUGHNESS,
            has_end_terms=is_pilot,
        )
    mean = np.zeros((2, terms))
    mean[1, 1] = slope / LINE_SCALE
    return _Prior(
        mean=mean,
        constant_variance=tuning.CONSTANT_VARIANCE,
        line_variance=tuning.LINE_VARIANCE,
        roughness=tuning.ROUGHNESS,
        has_end_terms=is_pilot,
    )


def _is_in_leaf(edges: Places, cells: Places) -> Floats:
    """Return which cells each leaf is made of, ``(leaves, cells)``, as 0 and 1."""
    at = np.searchsorted(cells, edges)[:, None]
    index = np.arange(len(cells) - 1)
    return ((index >= at[:-1]) & (index < at[1:])).astype(np.float64)


def _class_sizes(observations: Sequence[NoisyLeaves]) -> Floats:
    """Return the size N of each class, ``(2, 1)``: the inverse-variance mean of all sums of leaves.

    A size is at least 1, and at least the standard deviation of its noise.
    """
    precisions = []
    sums = []
    for leaves in observations:
        variance = np.broadcast_to(leaves.variance, leaves.counts.shape).sum(1)
        precisions.append(1 / variance)
        sums.append(leaves.counts.sum(1))
    weights = np.stack(precisions, 1)
    whole_weight = weights.sum(1)
    size = (np.stack(sums, 1) * weights).sum(1) / whole_weight
    least = np.maximum(1 / np.sqrt(whole_weight), 1.0)
    sizes: Floats = np.maximum(size, least)[:, None]
    return sizes


def _projected(start: Floats, series: Floats, widths: Floats) -> Floats:
    """Return the coefficients of a and b nearest to log-densities of both classes.

    Least squares, each cell weighted by its mass; rough terms are held back a little.
    """
    weighted = series.T * widths
    ridge = START_RIDGE * np.diag(np.r_[0, 1, _cosine_powers()])
    of_classes: Floats = np.linalg.solve(weighted @ series + ridge, weighted @ start.T).T
    of_classes[1] -= of_classes[0]  # b is the log-ratio of the classes
    return of_classes
