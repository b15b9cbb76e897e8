r"""A smooth model of both classes' densities, fitted to noisy leaves.

With :math:`m` a known mass (a guess of where the scores are) and :math:`x \in [0, 1]` a coordinate, the expected counts
of negatives and positives in a cell are

.. math:: \lambda^- = N^- \, \Delta m \, e^{a(x)}, \qquad \lambda^+ = N^+ \, \Delta m \, e^{a(x) + b(x)},

where a and b are a constant, a line and cosines :math:`\cos \pi j x` whose coefficients have prior variance
:math:`\rho^2 / j^4`. So the classes share what they have in common, and the data sets how rough each of a and b is.
The most probable coefficients are found by Gauss-Newton, :math:`\rho^2` by expectation-maximisation on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchmetrics_fed.typing import Floats, Places

# Terms of a series: its constant, its line, cosines.
_TERMS = 14
# Prior variances of the constant and the line. Cosines: a prior guess of rho, and the coefficients it is worth.
_LEVEL, _LINE, _ROUGHNESS, _WORTH = 9.0, 4.0, 3.0, 4.0
# The same for a class that is like all classes together.
_ALIKE = 4.0, 2.0, 2.0
# Prior variance of what a pilot query finds in the first and in the last cell beyond the series: networks that are sure
# of themselves crowd their scores there.
_END = 4.0
# What a model may be off and still hold: standard deviations, or a part of the counts. Ties exceed both, much smooth
# data the first only.
_MOST_MISFIT, _MOST_EXCESS = 6.0, 0.1
# Gauss-Newton steps, the longest step of a log-density, the step that is small enough, and the first ones, in which the
# fit settles before its roughness is judged.
_STEPS, _LONGEST, _SMALL, _SETTLING = 12, 1.5, 0.03, 2


class NoisyLeaves(NamedTuple):
    """The answer to one query, about both classes."""

    edges: Places
    """Edges of the leaves, as places on the grid."""
    counts: Floats
    """``(2, leaves)``, negatives and positives."""
    variance: float | Floats
    """Variance of the noise in each, of all or ``(2, leaves)``."""


class Fit(NamedTuple):
    """The fitted model."""

    cells: Floats
    """Expected counts in the cells, ``(2, cells)``."""
    bins: Floats
    """Expected counts in the leaves of the first answer, ``(2, leaves)``."""
    terms: Floats
    """Coefficients of both series, ``(2, terms)``."""
    holds: bool
    """Whether the model fits that answer; where it does not, scores have ties or spikes that it does not know."""


def fit(
    answers: Sequence[NoisyLeaves],
    cells: Places,
    x: Floats,
    mass: Floats,
    slope: float,
    start: Floats | None = None,
    centre: Floats | None = None,
) -> Fit:
    """Return the most probable densities.

    Args:
        answers: what is known; the misfit is measured on the first one.
        cells: edges of cells, as places on the grid, all edges of the answers among them.
        x: the coordinate at those edges, ascending from 0 to 1.
        mass: the known mass below those edges, ascending, of both classes or of each.
        slope: prior mean of the slope of b: positives have the higher scores.
        start: log-densities relative to the mass, ``(2, cells)``, to start from. With them counts are taken to vary
            by sampling, too; without, the fit is that of a pilot query, whose noise outweighs that.
        centre: coefficients that fit all of several classes together, which each is like.
    """
    middle, width = (x[1:] + x[:-1]) / 2, np.diff(mass)
    inside = np.concatenate([_inside(answer.edges, cells) for answer in answers])
    noisy = np.concatenate([answer.counts for answer in answers], 1)
    noise = np.concatenate(
        [np.broadcast_to(answer.variance, answer.counts.shape) for answer in answers], 1
    )
    total = _totals(answers)
    power = np.arange(1, _TERMS - 1) ** 4
    cosines = np.cos(np.pi * np.outer(middle, np.arange(1, _TERMS - 1)))
    series = np.c_[np.ones(len(middle)), np.sqrt(12) * (middle - 0.5), cosines]
    level, line, roughness = (_LEVEL, _LINE, _ROUGHNESS) if centre is None else _ALIKE
    precision = np.tile(np.r_[1 / level, 1 / line, power], (2, 1))
    if start is None:
        series = np.c_[series, np.eye(len(middle))[:, [0, -1]]]
        precision = np.c_[precision, np.full((2, 2), 1 / _END)]
    terms = series.shape[1]
    prior = np.zeros((2, terms)) if centre is None else centre
    if centre is None:
        prior[1, 1] = slope / np.sqrt(12)
    at = prior
    if start is not None and centre is None:
        at = _projected(start, series, width.reshape(-1, len(middle)).mean(0), power)
    rough = np.full((2, 1), roughness**2)
    for step in range(_STEPS):
        precision[:, 2:_TERMS] = power / rough
        expected = total * width * np.exp(np.clip(at.cumsum(0) @ series.T, -15, 8))
        in_bins = expected @ inside.T
        weight = 1 / (noise + (in_bins if start is not None else 0.0))
        slopes = inside @ (expected[..., None] * series)
        weighted = (slopes * weight[..., None]).transpose(0, 2, 1)
        square, gradient = weighted @ slopes, (weighted @ (noisy - in_bins)[..., None])[..., 0]
        hessian = np.tile(square[1], (2, 2)) + np.diag(
            precision.ravel()
        )  # positives depend on both series
        hessian[:terms, :terms] += square[0]
        gradient[0] += gradient[1]
        try:
            covariance = np.linalg.inv(hessian)
        except (
            np.linalg.LinAlgError
        ):  # counts beyond what floats can weigh against the prior: no model
            return Fit(expected, in_bins[:, : answers[0].counts.shape[1]], at, False)
        change = (covariance @ (gradient - precision * (at - prior)).ravel()).reshape(2, -1)
        size = float(np.abs(change.cumsum(0) @ series.T).max())
        at = at + change * min(1.0, _LONGEST / max(size, _SMALL))
        if step < _SETTLING:
            continue
        if size < _SMALL:
            break
        spread = (
            (at - prior)[:, 2:_TERMS] ** 2 + np.diag(covariance).reshape(2, -1)[:, 2:_TERMS]
        ) @ power
        rough[:, 0] = (spread + _WORTH * roughness**2) / (len(power) + _WORTH)
    first = answers[0]
    bins = in_bins[:, : first.counts.shape[1]]
    return Fit(expected, bins, at, agree(first.counts, bins, first.variance))


def together(answers: Sequence[Sequence[NoisyLeaves]]) -> list[NoisyLeaves]:
    """Return the answers about all classes added up: what is known best of several that are alike."""
    return [
        NoisyLeaves(
            each[0].edges,
            np.sum([one.counts for one in each], 0),
            sum(one.variance for one in each),
        )
        for each in zip(*answers, strict=True)
    ]


def agree(
    counts: Floats, expected: Floats, noise: float | Floats, most_excess: float = _MOST_EXCESS
) -> bool:
    """Return whether counts, ``(2, leaves)``, differ from what is expected by noise and sampling, or by little."""
    squares, variance = (counts - expected) ** 2, noise + expected
    # a squared Laplace variable of variance 1 has mean 1 and variance 5
    misfit = ((squares / variance).sum(1) - counts.shape[1]) / np.sqrt(5 * counts.shape[1])
    excess = np.maximum((squares - variance).sum(1), 0) / (expected**2).sum(1)
    return bool(misfit.max() < _MOST_MISFIT or excess.max() < most_excess**2)


def _inside(edges: Places, cells: Places) -> Floats:
    """Return which cells each bin is made of, ``(bins, cells)``, as 0 and 1."""
    at, index = np.searchsorted(cells, edges)[:, None], np.arange(len(cells) - 1)
    return ((index >= at[:-1]) & (index < at[1:])).astype(np.float64)


def _totals(answers: Sequence[NoisyLeaves]) -> Floats:
    """Return each class's size, ``(2, 1)``: inverse-variance mean of the answers' sums, no less than its noise."""
    weights = np.stack(
        [1 / np.broadcast_to(each.variance, each.counts.shape).sum(1) for each in answers], 1
    )
    sums = np.stack([answer.counts.sum(1) for answer in answers], 1)
    total = (sums * weights).sum(1) / weights.sum(1)
    floored: Floats = np.maximum(total, np.maximum(1 / np.sqrt(weights.sum(1)), 1.0))[:, None]
    return floored


def _projected(start: Floats, series: Floats, width: Floats, power: Places) -> Floats:
    """Return the coefficients of a and b nearest to log-densities of both classes, rough ones held back a little."""
    weighted = series.T * width
    ridge = 1e-4 * np.diag(np.r_[0, 1, power])
    at: Floats = np.linalg.solve(weighted @ series + ridge, weighted @ start.T).T
    at[1] -= at[0]
    return at
