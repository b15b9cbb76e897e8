"""Noise: how much noise of each law a budget asks for.

Invariants:

- A calibration is about the noise in the *sum* of the honest shares that survive, not in one share.
- The noise is never less than the budget needs, and within 1% of it.
- A :class:`Noise` is a law and a variance, for readers. It cannot draw: the samplers do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive, ndtri

from torchmetrics_fed.errors import InputError, check_int
from torchmetrics_fed.privacy import samplers
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.loss import TAIL, LogMass, delta_bound
from torchmetrics_fed.privacy.sensitivity import Sensitivity
from torchmetrics_fed.typing import Floats

Number = float | Fraction

Mechanism = Literal["polya", "skellam", "discrete_gaussian", "gamma"]

OCTAVE = 512
"""Number of values per octave of the grid on which parameters are tried: their numerators and
denominators are small, which keeps the samplers fast."""

MOST_VARIANCE = 1e9
"""The largest variance. Above it the Bessel function loses the digits that the accounting needs,
and tables grow long."""

MOST_GAP = 0.01
"""The largest gap between the sum of discrete Gaussian shares and a discrete Gaussian that is
charged, as a part of epsilon."""

MOST_SAMPLING_ERROR = 2.0**-20
"""The largest delta for imperfect samplers that is charged. It grows as e^epsilon; beyond this
value, charging it would say nothing."""

MU_MARGIN = 1e-6
"""Relative margin of mu, for the rounding of the masses and of their normal scores."""

TABLE_MARGIN = 30.0
"""How far a table of masses goes on beyond TAIL, in units of log-probability: a sum of masses down
to TAIL then misses less than one part in e^30."""

LARGEST_EXPONENT = 700.0
"""Exponents are cut to this value, so that exp does not overflow in float64."""


@dataclass(frozen=True)
class Noise:
    """The noise of a reply: a law with a variance. It cannot draw."""

    variance: float
    """Variance of a cell of the sum of all shares that the noise is calibrated for."""
    law: Law | None = None
    """Law of a cell of that sum, with the change it hides; None for exact counts."""


NO_NOISE = Noise(variance=0.0)
"""The noise of exact counts."""


def sampling_error(epsilon: float, shares: int, cells: int) -> float:
    r"""Return the delta by which the samplers of all shares together may miss their laws.

    It is :math:`(1 + e^\varepsilon)` times the total variation of all cells of all shares.
    """
    total_variation = samplers.CELL_TOTAL_VARIATION
    return (1 + math.exp(min(epsilon, LARGEST_EXPONENT))) * shares * cells * total_variation


@lru_cache(maxsize=64)
def calibrated_noise(
    mechanism: Mechanism,
    epsilon: Fraction,
    delta: float,
    sensitivity: Sensitivity,
    shares: int,
    cells: int,
) -> Noise:
    """Return the noise with which the sum of the honest shares spends epsilon and delta.

    Cached, because calibrating delta takes a while.

    Args:
        mechanism: the law of the noise.
        epsilon: the epsilon of the reply.
        delta: the delta of the reply.
        sensitivity: the change that the noise hides.
        shares: the number of honest shares in the sum.
        cells: the number of cells of a share.
    """
    if sampling_error(float(epsilon), shares, cells) > MOST_SAMPLING_ERROR:
        raise InputError(
            "Expected an `epsilon` at which noise protects anybody, up to about 40, but got "
            f"{float(epsilon):g}. Use `privacy=None` where no protection is needed."
        )
    if mechanism == "skellam":
        mean = skellam_mean(epsilon, delta, sensitivity)
        variance = float(2 * mean)
        law = Law(mechanism, mean, sensitivity.shifts, shares)
    elif mechanism == "discrete_gaussian":
        sigma2 = discrete_gaussian_sigma2(epsilon, delta, sensitivity, shares)
        variance = float(sigma2)
        law = Law(mechanism, sigma2, sensitivity.shifts, shares)
    else:
        rate = cell_epsilon(epsilon, sensitivity)
        variance = _pure_variance(mechanism, rate)
        law = Law(mechanism, rate, sensitivity.shifts, shares)
    return Noise(variance, law)


def _pure_variance(mechanism: Mechanism, rate: Fraction) -> float:
    r"""Return the variance of Laplace ("gamma") or two-sided geometric ("polya") noise.

    With rate r it is :math:`2 / r^2`, and :math:`2 a / (1 - a)^2` with :math:`a = e^{-r}`.
    """
    if mechanism == "gamma":
        return 2 / float(rate) ** 2
    ratio = math.exp(-rate)
    return 2 * ratio / (1 - ratio) ** 2


def cell_epsilon(epsilon: Number, sensitivity: Sensitivity) -> Fraction:
    r"""Return the epsilon of every cell for pure noise: :math:`\varepsilon / \Delta_1`, exactly.

    Two-sided geometric noise of rate r loses r per unit of shift, whichever cells the units fall
    into.
    """
    return _positive("epsilon", epsilon) / sensitivity.l1


def skellam_mean(epsilon: Number, delta: float, sensitivity: Sensitivity) -> Fraction:
    r"""Return the mean :math:`\mu` of Skellam noise that spends (epsilon, delta).

    The noise of every cell is the difference of two Poisson variables with this mean. Its variance
    is :math:`2\mu`. Shares of :math:`\mu / n` add up to it exactly.
    """
    budget = _epsilon_with_delta(epsilon, delta)
    guess = sensitivity.l2_squared * math.log(1.25 / delta) / budget**2
    delta_of = partial(skellam_delta, budget, sensitivity=sensitivity)
    return _smallest_private(delta_of, delta, guess)


def skellam_delta(epsilon: Number, mean: Number, sensitivity: Sensitivity) -> float:
    r"""Return a delta for which Skellam noise is (epsilon, delta)-private.

    It is the smallest one, or a little more. The mass at x is :math:`e^{-2\mu} I_{|x|}(2\mu)` with
    the modified Bessel function I.
    """
    budget = float(_positive("epsilon", epsilon))
    variance = _variance(2 * _positive("mean", mean), sensitivity)
    log_mass = partial(_skellam_log_mass, variance)
    return delta_bound(budget, log_mass, math.sqrt(variance), sensitivity)


def _skellam_log_mass(variance: float, x: NDArray[np.int64]) -> Floats:
    """Return the logarithm of the mass at x: minus infinity if it is zero in float64."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(ive(np.abs(x), variance)))


def discrete_gaussian_sigma2(
    epsilon: Number, delta: float, sensitivity: Sensitivity, shares: int = 1
) -> Fraction:
    r"""Return the :math:`\sigma^2` of the sum of n honest shares that spends (epsilon, delta).

    Each share is a discrete Gaussian of parameter :math:`\sigma^2 / n`. One share has no gap. The
    sum of several is only near to a discrete Gaussian: the gap g of :func:`discrete_gaussian_gap`
    turns (epsilon, delta) into (epsilon + g, delta exp(g / 2)), and is subtracted first.
    """
    check_int("shares", shares, 1)
    budget = _epsilon_with_delta(epsilon, delta)
    guess = 2 * sensitivity.l2_squared * math.log(1.25 / delta) / budget**2
    delta_of = partial(discrete_gaussian_delta, budget, sensitivity=sensitivity)
    without_gap = _smallest_private(delta_of, delta, guess)
    gap = discrete_gaussian_gap(without_gap, shares, sensitivity.cells)
    if gap > MOST_GAP * budget:
        raise InputError(
            f"Expected the sum of {shares} discrete Gaussian shares to be near to a discrete "
            f"Gaussian, within {MOST_GAP * budget:.3g} in epsilon, but got a gap of {gap:.3g}: a "
            f"sigma2 of {float(without_gap / shares):.3g} per share is too little. Use "
            '`mechanism="skellam"`, whose shares add up exactly, or fewer clients.'
        )
    if gap == 0:
        return without_gap
    # With more noise the gap is smaller, so the gap that is charged here is at least that of the
    # result.
    delta_of = partial(discrete_gaussian_delta, budget - gap, sensitivity=sensitivity)
    with_gap = _smallest_private(delta_of, delta * math.exp(-gap / 2), guess=float(without_gap))
    return max(without_gap, with_gap)


def discrete_gaussian_delta(epsilon: Number, sigma2: Number, sensitivity: Sensitivity) -> float:
    """Return a delta for which one discrete Gaussian is (epsilon, delta)-private.

    It is the smallest one, or a little more.
    """
    budget = float(_positive("epsilon", epsilon))
    variance = _variance(_positive("sigma2", sigma2), sensitivity)
    deviation = math.sqrt(variance)
    support = np.arange(-int(9 * deviation) - 9, int(9 * deviation) + 10)
    log_norm = math.log(np.exp(-(support**2) / (2 * variance)).sum())
    log_mass = partial(_gaussian_log_mass, variance, log_norm)
    return delta_bound(budget, log_mass, deviation, sensitivity)


def _gaussian_log_mass(variance: float, log_norm: float, x: NDArray[np.int64]) -> Floats:
    return np.asarray(-(x**2) / (2 * variance) - log_norm)


def discrete_gaussian_mu(sigma2: Number) -> float:
    """Return the mu of one discrete Gaussian for a cell that moves by 1."""
    variance = float(_positive("sigma2", sigma2))
    deviation = math.sqrt(variance)
    support = np.arange(-int(9 * deviation) - 9, int(9 * deviation) + 10)
    log_norm = math.log(np.exp(-(support**2) / (2 * variance)).sum())
    return _unit_mu(partial(_gaussian_log_mass, variance, log_norm), deviation)


def skellam_mu(mean: Number) -> float:
    """Return the mu of Skellam noise for a cell that moves by 1."""
    variance = float(2 * _positive("mean", mean))
    return _unit_mu(partial(_skellam_log_mass, variance), math.sqrt(variance))


def _unit_mu(log_mass: LogMass, deviation: float) -> float:
    r"""Return the smallest mu with which noise on one cell hides a change of 1, mu-GDP.

    The best tests between the noise X and X + 1 are thresholds k, because the law is log-concave.
    Their errors are :math:`1 - F(k)` and :math:`F(k - 1)`, with :math:`F(k) = \Pr[X < k]`, and
    :math:`N(0, 1)` against :math:`N(\mu, 1)` is no harder to tell apart at any of them if

    .. math:: \mu = \sup_k\, z(k) - z(k - 1), \qquad z(k) = \Phi^{-1}(F(k)).

    Between two thresholds both trade-off functions are convex, and that of X is a straight line, so
    it stays above. A change by s is then :math:`s \mu`-GDP (group privacy), and cells that move by
    :math:`s_1, s_2, \dots` are :math:`\mu \sqrt{\sum_i s_i^2}`-GDP: only the L2 norm counts.

    Outputs whose probability is below TAIL count as lost: the delta of a run has room for them.
    """
    reach = int(12 * deviation) + 32
    while log_mass(np.array([reach]))[0] > math.log(TAIL) - TABLE_MARGIN:
        reach += reach // 4
    mass = np.exp(log_mass(np.arange(1, reach + 1)))
    upper = np.cumsum(mass[::-1])[::-1]
    score = -ndtri(upper[upper > TAIL])
    # F is symmetric: z(0) = -z(1), so the step at the centre is twice z(1).
    steps = np.append(np.diff(score), 2 * score[0])
    return float(steps.max()) * (1 + MU_MARGIN)


@lru_cache(maxsize=64)
def run_noise(
    mechanism: Mechanism, mu_squared: float, sensitivity: Sensitivity, shares: int, cells: int
) -> Noise:
    """Return the noise of a query in a run of evaluations: with it, the query is mu-GDP.

    Args:
        mechanism: ``"skellam"``, or ``"discrete_gaussian"`` for one share: the sum of several
            discrete Gaussian shares is none.
        mu_squared: the square of mu, the part of the run that the query may spend.
        sensitivity: the change that the noise hides.
        shares: the number of honest shares in the sum.
        cells: the number of cells of a share.
    """
    if mechanism == "discrete_gaussian" and shares > 1:
        raise InputError(
            'Expected mechanism="skellam" for a run with noise of several clients but got '
            f'"discrete_gaussian" of {shares} shares, whose sum is no discrete Gaussian. Leave '
            "`mechanism` out."
        )
    if sampling_error(0.0, shares, cells) > MOST_SAMPLING_ERROR:
        raise InputError(
            f"Expected fewer than {shares} shares of {cells} cells for exact samplers. Use fewer "
            "clients or leaves."
        )
    most_mu = math.sqrt(mu_squared / sensitivity.l2_squared)
    variance_guess = most_mu**-2
    if variance_guess > MOST_VARIANCE:
        raise InputError(
            f"Expected noise of a variance up to {MOST_VARIANCE:.0e} but got "
            f"{variance_guess:.3g}: the budget is too small for the number of evaluations. Raise "
            "`epsilon`, or plan fewer `evaluations`."
        )
    if mechanism == "skellam":
        parameter = _smallest_private(skellam_mu, most_mu, variance_guess / 2)
        variance = float(2 * parameter)
    else:
        parameter = _smallest_private(discrete_gaussian_mu, most_mu, variance_guess)
        variance = float(parameter)
    return Noise(variance, Law(mechanism, parameter, sensitivity.shifts, shares))


def discrete_gaussian_gap(sigma2: Number, shares: int, cells: int) -> float:
    r"""Return what summing n discrete Gaussians of parameter ``sigma2 / n`` adds to epsilon.

    Kairouz, Liu and Steinke 2021: the mass of the sum at every integer is within a factor
    :math:`e^{\pm\tau/2}` of that of the discrete Gaussian of parameter ``sigma2``, where

    .. math:: \tau = 10 \sum_{k=1}^{n-1} e^{-2\pi^2 (\sigma^2 / n)\, k / (k + 1)},
        \qquad \sigma^2 / n \ge 1/4.

    Independent cells multiply: over c cells a likelihood ratio changes by at most
    :math:`e^{c\tau}`, and the probability of an event by at most :math:`e^{c\tau/2}`. Cells that do
    not move have the same law on both sides and drop out, so c need only count the cells that move.

    Args:
        sigma2: the parameter of the sum.
        shares: the number n of shares.
        cells: the number c of cells that move.
    """
    sigma2_of_share = float(_positive("sigma2", sigma2)) / shares
    if shares == 1:
        return 0.0
    if sigma2_of_share < 0.25:
        return math.inf
    k = np.arange(1, shares)
    return float(cells * 10 * np.exp(-2 * math.pi**2 * sigma2_of_share * k / (k + 1)).sum())


def _smallest_private(loss_of: Callable[[Fraction], float], most: float, guess: float) -> Fraction:
    """Return the smallest parameter on the grid whose loss is small enough, by bisection.

    Args:
        loss_of: returns the loss of a parameter; it falls as the parameter grows.
        most: the largest loss that is allowed.
        guess: roughly the result.
    """
    high = math.floor(math.log2(guess) - 1) * OCTAVE
    while not loss_of(_grid_value(high)) <= most:
        high += OCTAVE
    low = high - OCTAVE
    while loss_of(_grid_value(low)) <= most:
        high = low
        low -= OCTAVE
    while high - low > 1:
        middle = (low + high) // 2
        if loss_of(_grid_value(middle)) <= most:
            high = middle
        else:
            low = middle
    return _grid_value(high)


def _grid_value(step: int) -> Fraction:
    octave, place = divmod(step, OCTAVE)
    return Fraction(OCTAVE + place, OCTAVE) * Fraction(2) ** octave


def _variance(variance: Fraction, sensitivity: Sensitivity) -> float:
    if variance > MOST_VARIANCE:
        raise InputError(
            f"Expected noise of a variance up to {MOST_VARIANCE:.0e} but got "
            f"{float(variance):.3g}: the budget is too small for a release of L1 sensitivity "
            f"{sensitivity.l1}. Raise `epsilon` or `delta`, or release fewer levels or classes."
        )
    return float(variance)


def _epsilon_with_delta(epsilon: Number, delta: float) -> float:
    """Return epsilon as a float, for noise that needs a delta."""
    if not 0 < delta < 1:
        raise InputError(
            f"Expected argument `delta` to be between 0 and 1 but got {delta}. "
            "For a delta of 0 use pure noise."
        )
    return float(_positive("epsilon", epsilon))


def _positive(name: str, number: Number) -> Fraction:
    if not 0 < number < math.inf:
        raise InputError(
            f"Expected argument `{name}` to be a positive finite number but got {number}."
        )
    return Fraction(number)
