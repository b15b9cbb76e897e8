"""Integer noise from the operating system's randomness, exact up to `CELL_TOTAL_VARIATION`.

| sampler | law of a cell | sum of the shares of n clients |
|---|---|---|
| `polya` | difference of two NB(1/n, 1 - exp(-epsilon)) | exactly exp(-epsilon abs(k)), scaled |
| `skellam` | difference of two Poisson(mean) | of shares of mean / n, exactly this law |
| `discrete_gaussian` | proportional to exp(-k^2 / (2 sigma2)) | only nearly this law |
| `gamma_difference` | continuous, in floats | for comparison only |
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import draws
from torchmetrics_fed.privacy.draws import NEGLIGIBLE, UNIT, Table
from torchmetrics_fed.privacy.law import Law

CELL_TOTAL_VARIATION = 2.0**-100
"""Bound on the total variation between a cell of integer noise and its law in the table above.

A cell takes fewer than 2^10 table draws on average, each within `TABLE_TOTAL_VARIATION` = 2^-110
of its ideal; all other steps are exact. Coupled draw by draw with ideal draws, a run differs with
a probability of at most the product of the two, rejected proposals included.

To charge it: the shares of n clients over c cells are within tau = n c 2^-100 of their ideal. If
the ideal is (epsilon, delta)-private, the shares are (epsilon, delta + (1 + exp(epsilon)) tau)-
private.
"""

Number = Fraction | int | float
"""An exact number: a float is a dyadic rational and taken as exactly that rational."""

Shape = int | Sequence[int]

EPSILON_LEAST = 2.0**-40
"""The smallest epsilon of a cell: below it, a sum of shares could leave int64."""

EPSILON_MOST = 2.0**10
"""The largest epsilon of a cell: above it, there is no noise to speak of."""

MEAN_LEAST = 2.0**-40
"""The smallest mean of a Poisson law."""

MEAN_MOST = 2.0**30
"""The largest mean of a Poisson law."""

SIGMA2_LEAST = 2.0**-20
"""The smallest sigma squared of a discrete Gaussian."""

SIGMA2_MOST = 2.0**50
"""The largest sigma squared of a discrete Gaussian: beyond it, squares of values leave int64."""

SCALE_LEAST = 2.0**-40
"""The smallest scale of continuous noise."""

SCALE_MOST = 2.0**40
"""The largest scale of continuous noise."""

RADIX = 256
"""The base of the digits that a geometric is drawn by."""

RATE_OF_LAST_DIGIT = 90
"""A digit of a geometric with a rate above this is zero but with probability exp(-90) < 2^-129."""

SPARSE = Fraction(1, 4)
"""Up to this mean number of terms a cell, it is cheaper to draw a cell for each term than the
number of terms of each cell."""

WIDEST = 1 << 22
"""The largest mean of a Poisson law with a table of its own, of about 55,000 weights."""


def drawn(law: Law, shape: Shape) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return a fresh draw of the noise of one share; the law is that of the sum of all shares."""
    if law.mechanism == "skellam":
        return skellam(shape, law.parameter / law.shares)
    if law.mechanism == "discrete_gaussian":
        return discrete_gaussian(shape, law.parameter / law.shares)
    if law.mechanism == "gamma":
        return gamma_difference(shape, 1 / law.parameter, law.shares)
    return polya(shape, law.parameter, law.shares)


def polya(shape: Shape, epsilon: Number, clients: int) -> NDArray[np.int64]:
    """Return one client's share: NB(r, 1 - q) - NB(r, 1 - q), q = exp(-epsilon), r = 1 / clients.

    NB(r, 1 - q) has the generating function ((1 - q) / (1 - q z))^r. The product of `clients` of
    them is that of a geometric, so the sum of all shares is exactly the difference X of two
    geometrics. P(X = k) is proportional to exp(-epsilon |k|): the sum over g of q^g q^(g + |k|) is
    q^|k| / (1 - q^2).

    NB(r, 1 - q) is also a Poisson(-r ln(1 - q)) number of `logarithmic` terms. The difference of
    two has twice as many, with random signs. Most cells of a small share have none. Then the number
    of terms of all c cells is drawn, Poisson of c times the mean, and a uniform cell for each term:
    a Poisson number of things put into cells at random is an independent Poisson number in each.
    """
    rate = _number("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST)
    sides = _shape(shape)
    count = math.prod(sides)
    parties = _clients(clients)
    if parties == 1:
        difference = geometric(count, rate) - geometric(count, rate)
        return difference.reshape(sides)
    mean = terms_per_cell(rate, parties)
    if mean <= SPARSE:
        number_of_terms = int(poisson(1, count * mean)[0])
        cells = draws.uniform_below(count, number_of_terms)
    else:
        cells = np.repeat(np.arange(count), poisson(count, mean))
    terms = logarithmic(cells.size, rate)
    signed_terms = np.where(draws.coins(terms.size), terms, -terms)
    noise = np.zeros(count, dtype=np.int64)
    np.add.at(noise, cells, signed_terms)
    return noise.reshape(sides)


def skellam(shape: Shape, mean: Number) -> NDArray[np.int64]:
    """Return noise Poisson(mean) - Poisson(mean), of variance 2 mean.

    Poissons add up, so n shares of mean / n (a `Fraction`: no rounding) sum to exactly this law.
    """
    exact_mean = _number("mean", mean, MEAN_LEAST, MEAN_MOST)
    sides = _shape(shape)
    count = math.prod(sides)
    difference = poisson(count, exact_mean) - poisson(count, exact_mean)
    return difference.reshape(sides)


def discrete_gaussian(shape: Shape, sigma2: Number) -> NDArray[np.int64]:
    """Return noise X with P(X = x) proportional to exp(-x^2 / (2 sigma2)).

    A proposal is |X| = s i + j, with i from a small table of weights exp(-(s i)^2 / (2 sigma2)) and
    j uniform below s. It is accepted with probability exp(-n / (2 sigma2)), n = |X|^2 - (s i)^2: an
    integer, so the coin is [G >= n] for a geometric G of rate 1 / (2 sigma2). Then comes a random
    sign, and -0 is refused, or zero would come up twice as often. Over 90% of the proposals pass
    from sigma2 = 17 on, and half of them at worst, near 0.
    """
    exact_sigma2 = _number("sigma2", sigma2, SIGMA2_LEAST, SIGMA2_MOST)
    sides = _shape(shape)
    trial = partial(_gaussian_trial, exact_sigma2)
    return draws.accepted(math.prod(sides), trial).reshape(sides)


def _gaussian_trial(sigma2: Fraction, proposals: int) -> NDArray[np.int64]:
    """Return the accepted ones of a number of proposals of a discrete Gaussian."""
    stride, table = stride_table(sigma2)
    base = stride * table.draw(proposals)
    size = base + draws.uniform_below(stride, proposals)
    is_negative = draws.coins(proposals)
    excess = (size - base) * (size + base)
    passes = geometric(proposals, 1 / (2 * sigma2)) >= excess
    is_negative_zero = is_negative & (size == 0)
    values = np.where(is_negative, -size, size)
    return np.asarray(values[passes & ~is_negative_zero])


def gamma_difference(shape: Shape, scale: Number, clients: int) -> NDArray[np.float64]:
    """Return Gamma(1/n, scale) - Gamma(1/n, scale), n = clients; n of them sum to Laplace(scale).

    Never release it, and never send it through a masked sum: which float64 values can occur depends
    on the true count, so outputs can be attacked (from a count of 0, 18.6% of Laplace outputs were
    provably not from a count of 1). It is here to reproduce the paper's figures; `polya` protects.
    """
    width = float(_number("scale", scale, SCALE_LEAST, SCALE_MOST))
    sides = _shape(shape)
    alpha = 1 / _clients(clients)
    # All 256 bits count: the default pool of 4 words would cut the seed to 128.
    seed = np.random.SeedSequence(draws.random_words(4).tolist(), pool_size=8)
    plus, minus = np.random.default_rng(seed).gamma(alpha, width, size=(2, *sides))
    return np.asarray(plus - minus)


@lru_cache(maxsize=64)
def digit_tables(rate: Fraction) -> tuple[Table, ...]:
    """Return the laws of the base-256 digits of a geometric, lowest digit first."""
    tables = []
    while rate <= RATE_OF_LAST_DIGIT:
        ratio = draws.decay(rate)
        weights = [UNIT]
        while len(weights) < RADIX and (weight := weights[-1] * ratio // UNIT) >= NEGLIGIBLE:
            weights.append(weight)
        tables.append(Table(weights))
        rate *= RADIX
    return tuple(tables)


def geometric(count: int, rate: Fraction) -> NDArray[np.int64]:
    """Return `count` draws of G with P(G >= n) = exp(-rate n), n = 0, 1, 2, ..., rate >= 2^-51.

    Write n = sum of d_i 256^i. Then exp(-rate n) is the product of exp(-rate 256^i d_i), so the
    digits are independent: each is a geometric of rate 256^i rate, cut to 0 .. 255. A few small
    tables serve any rate.

    Compared with an integer n it is an exact coin: [G >= n] is Bernoulli(exp(-rate n)).
    """
    total = np.zeros(count, dtype=np.int64)
    for place, table in enumerate(digit_tables(rate)):
        total += table.draw(count) * RADIX**place
    return total


@lru_cache(maxsize=64)
def poisson_table(mean: Fraction) -> Table:
    """Return the table of Poisson(mean), from weights relative to the weight of the mode.

    They are computed from the mode outwards, by P(k) / P(k - 1) = mean / k. Outwards all ratios are
    at most 1, so rounding errors add up but do not grow.
    """
    numerator = mean.numerator
    denominator = mean.denominator
    mode = math.floor(mean)

    from_mode_up = []
    value = mode
    weight = UNIT
    while weight >= NEGLIGIBLE:
        from_mode_up.append(weight)
        value += 1
        weight = weight * numerator // (denominator * value)

    from_mode_down = []
    value = mode
    weight = UNIT
    while value and (weight := weight * denominator * value // numerator) >= NEGLIGIBLE:
        from_mode_down.append(weight)
        value -= 1
    return Table(from_mode_down[::-1] + from_mode_up, first=value)


def poisson(count: int, mean: Fraction) -> NDArray[np.int64]:
    """Return `count` draws of Poisson(mean), mean >= 0.

    A table grows as the square root of its mean. Means above `WIDEST` are cut into equal parts,
    because independent Poissons add up to a Poisson of the summed mean.
    """
    parts = max(1, math.ceil(mean / WIDEST))
    table = poisson_table(mean / parts)
    total = np.zeros(count, dtype=np.int64)
    for _ in range(parts):
        total += table.draw(count)
    return total


@lru_cache(maxsize=64)
def octave_table(epsilon: Fraction) -> Table:
    """Return the law of the octave b = 0, 1, ... with weight q^(2^b), relative to the first."""
    return Table.falling(lambda octave: draws.decay(epsilon * ((1 << octave) - 1)))


def logarithmic(count: int, epsilon: Fraction) -> NDArray[np.int64]:
    """Return `count` draws of K with P(K = k) proportional to q^k / k, k = 1, 2, ...

    Here q = exp(-epsilon). A proposal is an octave b with weight q^(2^b), and k = 2^b + j with j
    uniform below 2^b: a proposal k has weight q^(2^b) / 2^b. It is accepted with probability
    (q^k / k) / (q^(2^b) / 2^b) = q^j · 2^b / k, by two coins: uniform below k is below 2^b, and a
    geometric is at least j. For any epsilon more than ln 2 = 69% of the proposals pass.
    """
    return draws.accepted(count, partial(_logarithmic_trial, epsilon))


def _logarithmic_trial(epsilon: Fraction, proposals: int) -> NDArray[np.int64]:
    """Return the accepted ones of a number of proposals of a logarithmic variable."""
    octave = np.int64(1) << octave_table(epsilon).draw(proposals)
    mask = (octave - 1).astype(np.uint64)
    step = (draws.random_words(proposals) & mask).astype(np.int64)
    passes_first = draws.uniform_below(octave + step, proposals) < octave
    octave = octave[passes_first]
    step = step[passes_first]
    passes_second = geometric(step.size, epsilon) >= step
    return np.asarray((octave + step)[passes_second])


@lru_cache(maxsize=64)
def terms_per_cell(epsilon: Fraction, clients: int) -> Fraction:
    """Return the mean number of logarithmic terms in a cell of a share.

    Cached, because the logarithm is half of the work of a sparse draw.
    """
    return Fraction(2 * draws.logarithmic_mass(epsilon), clients * UNIT)


@lru_cache(maxsize=64)
def stride_table(sigma2: Fraction) -> tuple[int, Table]:
    """Return a stride s of about sigma / 8, and the law of the number i of strides.

    The weight of i = 0, 1, ... is exp(-(s i)^2 / (2 sigma2)).
    """
    stride = math.isqrt(math.floor(sigma2)) // 8 + 1
    table = Table.falling(lambda step: draws.decay((stride * step) ** 2 / (2 * sigma2)))
    return stride, table


def _number(name: str, value: Number, minimum: float, maximum: float) -> Fraction:
    if not minimum <= value <= maximum:
        raise InputError(
            f"Expected `{name}` within [{minimum:.3g}, {maximum:.3g}], but got {value}."
        )
    if isinstance(value, np.generic):
        value = value.item()
    exact = Fraction(value)
    # A fraction made of numpy integers keeps them, and they would overflow.
    return Fraction(int(exact.numerator), int(exact.denominator))


def _clients(clients: int) -> int:
    if isinstance(clients, float) or operator.index(clients) < 1:
        raise InputError(f"Expected `clients` to be an integer of at least 1, but got {clients}.")
    return operator.index(clients)


def _shape(shape: Shape) -> tuple[int, ...]:
    if not isinstance(shape, Sequence):
        shape = (shape,)
    if any(side < 0 for side in shape):
        raise InputError(f"Expected `shape` to have no negative side, but got {shape}.")
    return tuple(operator.index(side) for side in shape)
