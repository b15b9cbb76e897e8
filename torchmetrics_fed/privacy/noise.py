"""Noise: how much of each law a budget asks for, the noise of one share, and what a release with it costs.

What a budget asks for is the parameter of the noise in the *sum*, of the honest survivors' shares alone. It is never
less than what the budget needs, and within 1% of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import ive

from torchmetrics_fed.errors import InputError, check_int
from torchmetrics_fed.privacy import samplers
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.loss import delta_bound
from torchmetrics_fed.privacy.sensitivity import Sensitivity

Number = float | Fraction
Mechanism = Literal["polya", "skellam", "discrete_gaussian", "gamma"]

# Parameters are tried on a grid of this many values per octave: numerators and denominators that samplers like.
OCTAVE = 512
# Above this variance the Bessel function loses the digits that the accounting needs, and tables grow long.
MOST_VARIANCE = 1e9
# A gap between the sum of discrete Gaussian shares and a discrete Gaussian is charged up to this part of epsilon.
MOST_GAP = 0.01
# The samplers' distance from their laws counts e^epsilon-fold; beyond this, charging it would say nothing.
_MOST_SAMPLING_ERROR = 2.0**-20


@dataclass(frozen=True)
class Noise:
    """The noise of a reply. It is a law with a variance, and cannot draw."""

    variance: float
    """Of a cell of the sum of all shares that the noise is calibrated for."""
    law: Law | None = None
    """Of a cell of that sum, with the change it hides; None for exact counts."""


NO_NOISE = Noise(variance=0.0)
"""The noise of exact counts."""


def sampling_error(epsilon: float, shares: int, cells: int) -> float:
    """Return the delta by which the samplers of all shares together may miss their laws."""
    return (1 + math.exp(min(epsilon, 700.0))) * shares * cells * samplers.CELL_TOTAL_VARIATION


@lru_cache(maxsize=64)
def calibrated_noise(
    mechanism: Mechanism,
    epsilon: Fraction,
    delta: float,
    sensitivity: Sensitivity,
    shares: int,
    cells: int,
) -> Noise:
    """Return the noise of one of ``shares`` honest shares of ``cells`` cells, whose sum spends epsilon and delta.

    Cached, because calibrating delta takes a while.
    """
    if sampling_error(float(epsilon), shares, cells) > _MOST_SAMPLING_ERROR:
        raise InputError(
            f"Expected an `epsilon` at which noise protects anybody, up to about 40, but got {float(epsilon):g}. Use "
            "`privacy=None` where none is needed."
        )
    if mechanism == "skellam":
        mean = skellam_mean(epsilon, delta, sensitivity)
        return Noise(
            variance=float(2 * mean),
            law=Law(mechanism, mean, sensitivity.shifts, shares),
        )
    if mechanism == "discrete_gaussian":
        sigma2 = discrete_gaussian_sigma2(epsilon, delta, sensitivity, shares)
        return Noise(
            variance=float(sigma2),
            law=Law(mechanism, sigma2, sensitivity.shifts, shares),
        )
    rate = cell_epsilon(epsilon, sensitivity)
    law = Law(mechanism, rate, sensitivity.shifts, shares)
    if mechanism == "gamma":
        return Noise(
            variance=2 / float(rate) ** 2,
            law=law,
        )
    ratio = math.exp(-rate)
    return Noise(
        variance=2 * ratio / (1 - ratio) ** 2,
        law=law,
    )


def cell_epsilon(epsilon: Number, sensitivity: Sensitivity) -> Fraction:
    r"""Return the epsilon of every cell for pure noise: :math:`\varepsilon / \Delta_1`, exactly.

    Two-sided geometric noise of parameter e loses e per unit of shift, whichever cells the units fall into.
    """
    return _positive("epsilon", epsilon) / sensitivity.l1


def skellam_mean(epsilon: Number, delta: float, sensitivity: Sensitivity) -> Fraction:
    r"""Return the mean :math:`\mu` of the two Poisson laws whose difference, on every cell, spends (epsilon, delta).

    Its variance is :math:`2\mu`. Shares of :math:`\mu / n` add up to it exactly.
    """
    budget = _budget(epsilon, delta)
    guess = sensitivity.l2_squared * math.log(1.25 / delta) / budget**2
    return _least(lambda mean: skellam_delta(budget, mean, sensitivity) <= delta, guess)


def skellam_delta(epsilon: Number, mean: Number, sensitivity: Sensitivity) -> float:
    """Return a delta for which Skellam noise is (epsilon, delta)-private: the least one, or a little more."""
    budget, variance = (
        float(_positive("epsilon", epsilon)),
        _variance(2 * _positive("mean", mean), sensitivity),
    )
    with np.errstate(divide="ignore"):
        return delta_bound(
            budget, lambda x: np.log(ive(np.abs(x), variance)), math.sqrt(variance), sensitivity
        )


def discrete_gaussian_sigma2(
    epsilon: Number, delta: float, sensitivity: Sensitivity, shares: int = 1
) -> Fraction:
    r"""Return the :math:`\sigma^2` of which each of n honest shares takes the n-th part, to spend (epsilon, delta).

    One share is a discrete Gaussian and has no gap. The sum of several is only near to one: the gap g of
    :func:`discrete_gaussian_gap` turns (epsilon, delta) into (epsilon + g, delta exp(g / 2)), and is taken off first.
    """
    check_int("shares", shares, 1)
    budget = _budget(epsilon, delta)
    guess = 2 * sensitivity.l2_squared * math.log(1.25 / delta) / budget**2
    alone = _least(
        lambda sigma2: discrete_gaussian_delta(budget, sigma2, sensitivity) <= delta, guess
    )
    gap = discrete_gaussian_gap(alone, shares, sensitivity.cells)
    if gap > MOST_GAP * budget:
        raise InputError(
            f"Expected the sum of {shares} discrete Gaussian shares to be near to a discrete Gaussian, within "
            f"{MOST_GAP * budget:.3g} in epsilon, but got a gap of {gap:.3g}: a sigma2 of {float(alone / shares):.3g} "
            'per share is too little. Use `mechanism="skellam"`, whose shares add up exactly, or fewer clients.'
        )
    if gap == 0:
        return alone
    left, rest = budget - gap, delta * math.exp(-gap / 2)
    # More noise than `alone`: the gap charged here is at least that of the result.
    return max(
        alone,
        _least(
            lambda sigma2: discrete_gaussian_delta(left, sigma2, sensitivity) <= rest, float(alone)
        ),
    )


def discrete_gaussian_delta(epsilon: Number, sigma2: Number, sensitivity: Sensitivity) -> float:
    """Return a delta for which one discrete Gaussian is (epsilon, delta)-private: the least one, or a little more."""
    budget, variance = (
        float(_positive("epsilon", epsilon)),
        _variance(_positive("sigma2", sigma2), sensitivity),
    )
    support = np.arange(-int(9 * math.sqrt(variance)) - 9, int(9 * math.sqrt(variance)) + 10)
    norm = math.log(np.exp(-(support**2) / (2 * variance)).sum())
    return delta_bound(
        budget, lambda x: -(x**2) / (2 * variance) - norm, math.sqrt(variance), sensitivity
    )


def discrete_gaussian_gap(sigma2: Number, shares: int, cells: int) -> float:
    r"""Return what summing ``shares`` discrete Gaussians of parameter ``sigma2 / shares`` adds to epsilon.

    Kairouz, Liu and Steinke 2021: the sum's mass at every integer is within a factor :math:`e^{\pm\tau/2}` of that of
    the discrete Gaussian of parameter ``sigma2``, where

    .. math:: \tau = 10 \sum_{k=1}^{n-1} e^{-2\pi^2 (\sigma^2 / n)\, k / (k + 1)}, \qquad \sigma^2 / n \ge 1/4.

    Independent cells multiply: over c cells a likelihood ratio changes by at most :math:`e^{c\tau}`, and the
    probability of an event by at most :math:`e^{c\tau/2}`. Cells that do not move have the same law on both sides and
    drop out, so c need only count those that do.
    """
    share = float(_positive("sigma2", sigma2)) / shares
    if shares == 1:
        return 0.0
    if share < 0.25:
        return math.inf
    k = np.arange(1, shares)
    return float(cells * 10 * np.exp(-2 * math.pi**2 * share * k / (k + 1)).sum())


def _least(private: Callable[[Fraction], bool], guess: float) -> Fraction:
    """Return the least value of the grid that is private, by bisection around ``guess``."""

    def value(step: int) -> Fraction:
        return Fraction(OCTAVE + step % OCTAVE, OCTAVE) * Fraction(2) ** (step // OCTAVE)

    high = math.floor(math.log2(guess) - 1) * OCTAVE
    while not private(value(high)):
        high += OCTAVE
    low = high - OCTAVE
    while private(value(low)):
        low, high = low - OCTAVE, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if private(value(middle)) else (middle, high)
    return value(high)


def _variance(variance: Fraction, sensitivity: Sensitivity) -> float:
    if variance > MOST_VARIANCE:
        raise InputError(
            f"Expected noise of a variance up to {MOST_VARIANCE:.0e} but got {float(variance):.3g}: the budget is too "
            f"small for a release of L1 sensitivity {sensitivity.l1}. Raise `epsilon` or `delta`, or release fewer "
            "levels or classes."
        )
    return float(variance)


def _budget(epsilon: Number, delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(
            f"Expected argument `delta` to be between 0 and 1 but got {delta}. For 0 use pure noise."
        )
    return float(_positive("epsilon", epsilon))


def _positive(name: str, number: Number) -> Fraction:
    if not 0 < number < math.inf:
        raise InputError(
            f"Expected argument `{name}` to be a positive finite number but got {number}."
        )
    return Fraction(number)
