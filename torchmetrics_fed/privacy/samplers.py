"""Integer noise from the operating system's randomness, exact up to `CELL_TOTAL_VARIATION`.

| sampler | law of a cell | the shares of n clients |
|---|---|---|
| `polya` | difference of two NB(1/n, 1 - exp(-epsilon)) | sum exactly to exp(-epsilon abs(k)), normalised |
| `skellam` | difference of two Poisson(mean) | of mean / n sum exactly to mean |
| `discrete_gaussian` | proportional to exp(-k^2 / (2 sigma2)) | sum only nearly to this law |
| `gamma_difference` | continuous, in floats | for comparison only |
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import draws
from torchmetrics_fed.privacy.draws import NEGLIGIBLE, UNIT, Table
from torchmetrics_fed.privacy.law import Law

CELL_TOTAL_VARIATION = 2.0**-100
"""Bound on the total variation between a cell of integer noise and its law in the table above.

A cell takes fewer than 2^10 table draws on average, each within `TABLE_TOTAL_VARIATION` = 2^-110 of its ideal; all
other steps are exact. Coupled draw by draw with ideal ones, a run differs with at most the product of the two, rejected
proposals included.

To charge it: the shares of n clients over c cells are within tau = n c 2^-100 of their ideal. Where that is (epsilon,
delta)-private, they are (epsilon, delta + (1 + exp(epsilon)) tau)-private.
"""

Number = Fraction | int | float
"""A float is a dyadic rational, and taken as exactly that."""
Shape = int | Sequence[int]

EPSILON_LEAST, EPSILON_MOST = 2.0**-40, 2.0**10
"""Below, a sum of shares could leave int64; above, there is no noise to speak of."""
RADIX = 256
SPARSE = Fraction(1, 4)
"""Up to this many terms a cell on average, it is cheaper to ask which cells have any than how many each has."""
WIDEST = 1 << 22
"""The largest mean of a Poisson law with a table of its own, of about 55,000 weights."""


def drawn(law: Law, shape: Shape) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return a fresh draw of the noise of one share, of a law that is that of the sum of all shares."""
    if law.mechanism == "skellam":
        return skellam(shape, law.parameter / law.shares)
    if law.mechanism == "discrete_gaussian":
        return discrete_gaussian(shape, law.parameter / law.shares)
    if law.mechanism == "gamma":
        return gamma_difference(shape, 1 / law.parameter, law.shares)
    return polya(shape, law.parameter, law.shares)


def polya(shape: Shape, epsilon: Number, clients: int) -> NDArray[np.int64]:
    """One client's share: NB(r, 1 - q) - NB(r, 1 - q), q = exp(-epsilon), r = 1 / clients.

    NB(r, 1 - q) has the generating function ((1 - q) / (1 - q z))^r. Those of `clients` shares multiply to the one of
    two geometrics' difference X, so the sum of all shares is exactly X. P(X = k) is proportional to exp(-epsilon |k|):
    the sum over g of q^g q^(g + |k|) is q^|k| / (1 - q^2).

    NB(r, 1 - q) is also a Poisson(-r ln(1 - q)) number of `logarithmic` terms; the difference of two has twice as many,
    with random signs. Most cells of a small share have none. Then the number of terms of all c cells is drawn, Poisson
    of c times the mean, and a uniform cell for each: a Poisson number of things put into cells at random is an
    independent Poisson number in each.
    """
    rate, sides = _number("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST), _shape(shape)
    count, parties = math.prod(sides), _clients(clients)
    if parties == 1:
        return (geometric(count, rate) - geometric(count, rate)).reshape(sides)
    mean = terms_per_cell(rate, parties)
    if mean <= SPARSE:
        cells = draws.uniform_below(count, int(poisson(1, count * mean)[0]))
    else:
        cells = np.repeat(np.arange(count), poisson(count, mean))
    terms, noise = logarithmic(cells.size, rate), np.zeros(count, dtype=np.int64)
    np.add.at(noise, cells, np.where(draws.coins(terms.size), terms, -terms))
    return noise.reshape(sides)


def skellam(shape: Shape, mean: Number) -> NDArray[np.int64]:
    """Noise Poisson(mean) - Poisson(mean), of variance 2 mean.

    Poissons add up, so n shares of mean / n (a `Fraction`: no rounding) sum to exactly this law.
    """
    exact, sides = _number("mean", mean, 2.0**-40, 2.0**30), _shape(shape)
    count = math.prod(sides)
    return (poisson(count, exact) - poisson(count, exact)).reshape(sides)


def discrete_gaussian(shape: Shape, sigma2: Number) -> NDArray[np.int64]:
    """Noise X with P(X = x) proportional to exp(-x^2 / (2 sigma2)).

    Propose |X| = s i + j, with i from a small table of weights exp(-(s i)^2 / (2 sigma2)) and j uniform below s. Accept
    with probability exp(-n / (2 sigma2)), n = |X|^2 - (s i)^2: an integer, so the coin is [G >= n] for a geometric G of
    rate 1 / (2 sigma2). Then comes a random sign, and -0 is refused, or zero would come up twice as often. Over 90% of
    the proposals pass from sigma2 = 17 on, and half of them at worst, near 0.
    """
    exact, sides = _number("sigma2", sigma2, 2.0**-20, 2.0**50), _shape(shape)
    stride, table = stride_table(exact)

    def trial(proposals: int) -> NDArray[np.int64]:
        base = stride * table.draw(proposals)
        size = base + draws.uniform_below(stride, proposals)
        negative = draws.coins(proposals)
        excess = (size - base) * (size + base)
        kept = (geometric(proposals, 1 / (2 * exact)) >= excess) & ~(negative & (size == 0))
        return np.asarray(np.where(negative, -size, size)[kept])

    return draws.accepted(math.prod(sides), trial).reshape(sides)


def gamma_difference(shape: Shape, scale: Number, clients: int) -> NDArray[np.float64]:
    """Gamma(1/n, scale) - Gamma(1/n, scale), n = clients; n of them sum to Laplace(scale).

    Never release it, and never send it through a masked sum: which float64 values can occur depends on the true count,
    so outputs can be attacked (from a count of 0, 18.6% of Laplace outputs were provably not from a count of 1). It is
    here to reproduce the paper's figures; `polya` is what protects.
    """
    width, sides = float(_number("scale", scale, 2.0**-40, 2.0**40)), _shape(shape)
    alpha = 1 / _clients(clients)
    # All 256 bits count: the default pool of 4 words would cut the seed to 128.
    seed = np.random.SeedSequence(draws.random_words(4).tolist(), pool_size=8)
    plus, minus = np.random.default_rng(seed).gamma(alpha, width, size=(2, *sides))
    return np.asarray(plus - minus)


@lru_cache(maxsize=64)
def digit_tables(rate: Fraction) -> tuple[Table, ...]:
    """The laws of the base-256 digits of a geometric, lowest first.

    The digits left out are all zero but with probability exp(-90) < 2^-129.
    """
    tables = []
    while rate <= 90:
        ratio, weights = draws.decay(rate), [UNIT]
        while len(weights) < RADIX and (weight := weights[-1] * ratio // UNIT) >= NEGLIGIBLE:
            weights.append(weight)
        tables.append(Table(weights))
        rate *= RADIX
    return tuple(tables)


def geometric(count: int, rate: Fraction) -> NDArray[np.int64]:
    """`count` draws of G with P(G >= n) = exp(-rate n), n = 0, 1, 2, ..., for rate >= 2^-51.

    Write n = sum of d_i 256^i. Then exp(-rate n) is the product of exp(-rate 256^i d_i), so the digits are independent:
    each is a geometric of rate 256^i rate, cut to 0 .. 255. A few small tables serve any rate.

    Compared with an integer n it is an exact coin: [G >= n] is Bernoulli(exp(-rate n)).
    """
    total = np.zeros(count, dtype=np.int64)
    for place, table in enumerate(digit_tables(rate)):
        total += table.draw(count) * RADIX**place
    return total


@lru_cache(maxsize=64)
def poisson_table(mean: Fraction) -> Table:
    """Weights relative to the mode's, outwards, by P(k) / P(k - 1) = mean / k.

    Outwards all ratios are at most 1, so rounding errors add up but do not grow.
    """
    over, under, mode = mean.numerator, mean.denominator, math.floor(mean)
    value, weight, above = mode, UNIT, []
    while weight >= NEGLIGIBLE:
        above.append(weight)
        value += 1
        weight = weight * over // (under * value)
    value, weight, below = mode, UNIT, []
    while value and (weight := weight * under * value // over) >= NEGLIGIBLE:
        below.append(weight)
        value -= 1
    return Table(below[::-1] + above, first=value)


def poisson(count: int, mean: Fraction) -> NDArray[np.int64]:
    """`count` draws of Poisson(mean), mean >= 0.

    A table grows as the square root of its mean. Means above `WIDEST` are cut into equal parts, because independent
    Poissons add up to a Poisson of the summed mean.
    """
    parts = max(1, math.ceil(mean / WIDEST))
    table, total = poisson_table(mean / parts), np.zeros(count, dtype=np.int64)
    for _ in range(parts):
        total += table.draw(count)
    return total


@lru_cache(maxsize=64)
def octave_table(epsilon: Fraction) -> Table:
    """The octave b = 0, 1, ... with weight q^(2^b), relative to the first."""
    return Table.falling(lambda octave: draws.decay(epsilon * ((1 << octave) - 1)))


def logarithmic(count: int, epsilon: Fraction) -> NDArray[np.int64]:
    """`count` draws of K with P(K = k) proportional to q^k / k, k = 1, 2, ..., q = exp(-epsilon).

    Propose an octave b with weight q^(2^b), and k = 2^b + j with j uniform below 2^b: a proposal k has weight q^(2^b) /
    2^b. Accept with probability (q^k / k) / (q^(2^b) / 2^b) = q^j · 2^b / k, as two coins: uniform below k is below
    2^b, and a geometric is at least j. For any epsilon more than ln 2 = 69% of the proposals pass.
    """

    def trial(proposals: int) -> NDArray[np.int64]:
        octave = np.int64(1) << octave_table(epsilon).draw(proposals)
        step = (draws.random_words(proposals) & (octave - 1).astype(np.uint64)).astype(np.int64)
        near = draws.uniform_below(octave + step, proposals) < octave
        octave, step = octave[near], step[near]
        return np.asarray((octave + step)[geometric(step.size, epsilon) >= step])

    return draws.accepted(count, trial)


@lru_cache(maxsize=64)
def terms_per_cell(epsilon: Fraction, clients: int) -> Fraction:
    """The mean number of logarithmic terms in a cell of a share; cached: the logarithm is half of a sparse draw."""
    return Fraction(2 * draws.logarithmic_mass(epsilon), clients * UNIT)


@lru_cache(maxsize=64)
def stride_table(sigma2: Fraction) -> tuple[int, Table]:
    """A stride s of about sigma / 8, and i = 0, 1, ... with weight exp(-(s i)^2 / (2 sigma2))."""
    stride = math.isqrt(math.floor(sigma2)) // 8 + 1
    return stride, Table.falling(lambda step: draws.decay((stride * step) ** 2 / (2 * sigma2)))


def _number(name: str, value: Number, least: float, most: float) -> Fraction:
    if not least <= value <= most:
        raise InputError(f"Expected `{name}` within [{least:.3g}, {most:.3g}], but got {value}.")
    exact = Fraction(value.item() if isinstance(value, np.generic) else value)
    # A fraction made of numpy integers keeps them, and they would overflow.
    return Fraction(int(exact.numerator), int(exact.denominator))


def _clients(clients: int) -> int:
    if isinstance(clients, float) or operator.index(clients) < 1:
        raise InputError(f"Expected `clients` to be an integer of at least 1, but got {clients}.")
    return operator.index(clients)


def _shape(shape: Shape) -> tuple[int, ...]:
    sides = shape if isinstance(shape, Sequence) else (shape,)
    if any(side < 0 for side in sides):
        raise InputError(f"Expected `shape` to have no negative side, but got {shape}.")
    return tuple(map(operator.index, sides))
