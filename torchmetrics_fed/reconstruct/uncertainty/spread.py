r"""Intervals and bands from the values of plausible counts.

Values are given for all sets of counts of
:class:`~torchmetrics_fed.reconstruct.uncertainty.plausible.Plausible`, row by row: the estimate,
the alternatives, then the draws. With g the logit for values from 0 to 1, and the identity for
others, the standard deviation of a value x is

.. math:: \sigma^2 = \operatorname{var}_d\, g(x_d)
    + \kappa^2 \sum_a \big( g(x_a) - g(x) \big)^2

over draws d and alternatives a, and its interval is :math:`g^{-1}(g(x) \pm z \sigma)`. A band has
one factor c in place of z for all of its points: the quantile over draws of the largest deviation
in standard deviations. The alternatives are added to it as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from torchmetrics_fed.reconstruct.consistency import LEAST_DIVISOR
from torchmetrics_fed.reconstruct.uncertainty import tuning
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic
from torchmetrics_fed.typing import Floats

FIRST_DRAW = 3
"""The row of the first draw: the estimate and two alternatives stand before it."""

LEAST_DISTANCE = 1e-6
"""Distance of a value from 0 and from 1 at least, before its logit is taken."""

LEAST_REACH = 1e-9
"""Reach of an interval, in logits, below which no draw has moved its value but by rounding."""

INFLATED = 0.5
"""Errors raise a value if draws exceed the estimate by this many standard deviations."""

NEVER_SEEN = 3.0
"""With n examples of which none was seen to do it, at most 3 / n of all do, with 95%."""

UNSEEN_PART = 0.05
"""Part of the binomial variance that is added to each point of a band.

It matters at the ends of a curve, where no draw has any examples.
"""


class Ends(NamedTuple):
    """Lower and upper ends of intervals."""

    low: Floats
    high: Floats


class BandEnds(NamedTuple):
    """Lower and upper ends of a band at its points."""

    low: Floats
    high: Floats
    factor: float
    """How many standard deviations the band reaches."""


def interval_ends(
    values: Floats,
    value: Floats,
    confidence: float,
    size: Floats,
    is_lost: NDArray[np.bool_],
) -> Ends:
    """Return the ends of the interval of each value.

    Args:
        values: of all sets of counts, ``(sets, values)``.
        value: the values that were read from the release, ``(values,)``; the estimate has fewer
            cells.
        confidence: probability that an interval holds its value.
        size: examples of the smaller class of each value, for values that no draw moves.
        is_lost: which values are lost in the noise: nothing is known of them.
    """
    is_rate = _are_rates(values) and _are_rates(value)
    scaled = _logit(values) if is_rate else values
    centre = _logit(value) if is_rate else value
    estimate = scaled[0]
    alternatives = scaled[1:FIRST_DRAW] - estimate
    variance = np.nanvar(scaled[FIRST_DRAW:], axis=0)
    variance += tuning.ALTERNATIVE_PART**2 * (alternatives**2).sum(0)
    reach = ndtri((1 + confidence) / 2) * np.sqrt(variance)
    low = centre - reach
    high = centre + reach
    if not is_rate:
        return Ends(np.where(is_lost, -np.inf, low), np.where(is_lost, np.inf, high))
    unseen = np.where(reach > LEAST_REACH, 0.0, NEVER_SEEN / np.maximum(size, NEVER_SEEN))
    low = np.minimum(expit(low), value)
    low = np.minimum(low, _low_of_inflated(values, value, confidence))
    high = np.maximum(expit(high), value)
    low = np.where(is_lost, 0.0, np.clip(low - unseen, 0.0, 1.0))
    high = np.where(is_lost, 1.0, np.clip(high + unseen, 0.0, 1.0))
    return Ends(low, high)


def _low_of_inflated(values: Floats, value: Floats, confidence: float) -> Floats:
    """Return the lower end of values that errors raise, and infinity for others.

    Errors raise a maximum, or a sum of absolute values, and they have raised the estimate by about
    as much as they raise the draws on average.
    """
    draws = values[FIRST_DRAW:]
    bias = np.nanmean(draws, axis=0) - values[0]
    deviation = np.nanstd(draws, axis=0)
    low = value - bias - ndtri((1 + confidence) / 2) * deviation
    return np.where(bias > INFLATED * deviation, low, np.inf)


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Return the weighted mean over the last axis, of values that are finite."""
    has_value = np.isfinite(values)
    weights = np.where(has_value, weights, 0.0)
    whole = np.maximum(weights.sum(-1), LEAST_DIVISOR)
    mean: Floats = (np.where(has_value, values, 0.0) * weights).sum(-1) / whole
    return mean


def correlated_mean(values: Floats, weights: Floats) -> Floats:
    r"""Return the mean of the values of all classes, ``(sets,)``, as if their errors correlated.

    Draws are independent between classes. The errors are not: every example is in the counts of all
    classes, and all classes are read by one model. With correlation :math:`\rho` the mean has the
    variance :math:`(1 - \rho) v + \rho \bar\sigma^2`, where v is that of independent classes and
    :math:`\bar\sigma` the mean of their standard deviations.

    Args:
        values: of all sets of counts, ``(sets, classes)``.
        weights: of the classes, ``(sets, classes)``.
    """
    means = weighted_mean(values, weights)
    deviations = np.nanstd(values[FIRST_DRAW:], axis=0)
    mean_deviation = weighted_mean(deviations[None], weights[:1])[0]
    variance = float(means[FIRST_DRAW:].var())
    correlation = tuning.CLASS_CORRELATION
    target = (1 - correlation) * variance + correlation * mean_deviation**2
    scale = np.sqrt(target / max(variance, LEAST_DIVISOR))
    moved: Floats = means[0] + scale * (means - means[0])
    if _are_rates(values):
        return np.clip(moved, 0.0, 1.0)
    return moved


def curve_ends(values: Floats, value: Floats, confidence: float) -> Ends:
    """Return the ends of a band of any curve, that holds all of its points at once.

    Args:
        values: the points of the curves of all sets of counts, ``(sets, points)``.
        value: the points of the curve that was read from the release, ``(points,)``.
        confidence: probability that the band holds all points.
    """
    estimate = values[0]
    alternatives = np.abs(values[1:FIRST_DRAW] - estimate).max(0)
    deviations = values[FIRST_DRAW:] - estimate
    deviation = np.sqrt((deviations**2).mean(0))
    scale = np.where(deviation > 0, deviation, np.inf)
    factor = order_statistic(np.abs(deviations / scale).max(-1), confidence)
    reach = factor * deviation + alternatives
    return Ends(value - reach, value + reach)


def band_ends(
    values: Floats,
    confidence: float,
    size: float | Floats,
    floor: Floats,
    is_steady: NDArray[np.bool_] | None = None,
) -> BandEnds:
    r"""Return the ends of a band that holds all points of a curve of rates at once.

    A rate p of n examples is taken as :math:`(n p + 1/2) / (n + 1)`, so that its logit is finite.

    Args:
        values: the points of the curves of all sets of counts, ``(sets, points)``, from 0 to 1.
        confidence: probability that the band holds all points.
        size: the examples n that each point is a rate of, ``(points,)``.
        floor: least standard deviation of each point, ``(points,)``.
        is_steady: which points make the factor, ``(points,)``; all if not given. A point at a jump
            is no such point: it is far off in few draws.
    """
    rates = (size * values + 0.5) / (size + 1)
    scaled = logit(rates)
    estimate = scaled[0]
    alternatives = np.abs(scaled[1:FIRST_DRAW] - estimate).max(0)
    deviations = scaled[FIRST_DRAW:] - estimate
    binomial = rates[0] * (1 - rates[0])
    variance = (deviations**2).mean(0)
    variance += UNSEEN_PART / (size * binomial) + (floor / binomial) ** 2
    deviation = np.sqrt(variance)
    if is_steady is None:
        is_steady = np.ones_like(deviation, dtype=np.bool_)
    furthest = np.abs(deviations / deviation)[:, is_steady].max(-1)
    factor = order_statistic(furthest, confidence)
    reach = factor * deviation + alternatives
    low = (expit(estimate - reach) * (size + 1) - 0.5) / size
    high = (expit(estimate + reach) * (size + 1) - 0.5) / size
    return BandEnds(np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0), factor)


def _are_rates(values: Floats) -> bool:
    return bool(np.nanmin(values) >= 0.0 and np.nanmax(values) <= 1.0)


def _logit(values: Floats) -> Floats:
    inside: Floats = logit(np.clip(values, LEAST_DISTANCE, 1 - LEAST_DISTANCE))
    return inside
