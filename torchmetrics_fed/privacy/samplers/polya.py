"""Polya noise: one client's share of two-sided geometric noise. Beside it the paper's, for comparison only."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.entropy import accepted, coins, random_words, uniform_below
from torchmetrics_fed.privacy.samplers.geometric import EPSILON_LEAST, EPSILON_MOST, geometric, two_sided_geometric
from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_clients, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.poisson import poisson
from torchmetrics_fed.privacy.samplers.table import UNIT, Table, decay, logarithmic_mass

SCALE_LEAST, SCALE_MOST = 2.0**-40, 2.0**40
SPARSE = Fraction(1, 4)
"""Up to this many terms a cell on average, it is cheaper to ask which cells have any than how many each has."""


@lru_cache(maxsize=64)
def octave_table(epsilon: Fraction) -> Table:
    """The octave b = 0, 1, ... with weight q^(2^b), relative to the first."""
    return Table.falling(lambda octave: decay(epsilon * ((1 << octave) - 1)))


def logarithmic(count: int, epsilon: Fraction) -> NDArray[np.int64]:
    """`count` draws of K with P(K = k) proportional to q^k / k, k = 1, 2, ..., q = exp(-epsilon).

    Propose an octave b with weight q^(2^b), and k = 2^b + j with j uniform below 2^b: a proposal k has weight q^(2^b) /
    2^b. Accept with probability (q^k / k) / (q^(2^b) / 2^b) = q^j · 2^b / k, as two coins: uniform below k is below
    2^b, and a geometric is at least j. For any epsilon more than ln 2 = 69% of the proposals pass.
    """

    def trial(proposals: int) -> NDArray[np.int64]:
        octave = np.int64(1) << octave_table(epsilon).draw(proposals)
        step = (random_words(proposals) & (octave - 1).astype(np.uint64)).astype(np.int64)
        near = uniform_below(octave + step, proposals) < octave
        octave, step = octave[near], step[near]
        kept: NDArray[np.int64] = (octave + step)[geometric(step.size, epsilon) >= step]
        return kept

    return accepted(count, trial)


@lru_cache(maxsize=64)
def terms_per_cell(epsilon: Fraction, clients: int) -> Fraction:
    """The mean number of logarithmic terms in a cell of a share; cached, for the logarithm is half of a sparse draw."""
    return Fraction(2 * logarithmic_mass(epsilon), clients * UNIT)


def polya(shape: Shape, epsilon: Number, clients: int) -> NDArray[np.int64]:
    """One client's share: NB(r, 1 - q) - NB(r, 1 - q), q = exp(-epsilon), r = 1 / clients.

    NB(r, 1 - q) has the generating function ((1 - q) / (1 - q z))^r. Those of `clients` shares multiply to the one of
    two geometrics' difference, so the sum of all shares is exactly `two_sided_geometric`.

    NB(r, 1 - q) is also a Poisson(-r ln(1 - q)) number of `logarithmic` terms; the difference of
    two has twice as many, with random signs. Most cells of a small share have none. Then the number
    of terms of all c cells is drawn, Poisson of c times the mean, and a uniform cell for each: a
    Poisson number of things put into cells at random is an independent Poisson number in each.
    """
    rate = checked_number("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST)
    parties = checked_clients(clients)
    sides = checked_shape(shape)
    if parties == 1:
        return two_sided_geometric(sides, rate)
    count, mean = math.prod(sides), terms_per_cell(rate, parties)
    if mean <= SPARSE:
        cells = uniform_below(count, int(poisson(1, count * mean)[0]))
        noise = np.zeros(count, dtype=np.int64)
        np.add.at(noise, cells, _signed(logarithmic(cells.size, rate)))
        return noise.reshape(sides)
    terms = poisson(count, mean)
    stops = np.cumsum(terms)
    values = _signed(logarithmic(int(terms.sum()), rate))
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])
    return np.asarray(running[stops] - running[stops - terms]).reshape(sides)


def _signed(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sizes, each with a random sign."""
    return np.where(coins(sizes.size), sizes, -sizes)


def gamma_difference(shape: Shape, scale: Number, clients: int) -> NDArray[np.float64]:
    """Gamma(1/n, scale) - Gamma(1/n, scale), n = clients; n of them sum to Laplace(scale).

    Never release it, and never send it through a masked sum: which float64 values can occur depends on the true count,
    so outputs can be attacked (from a count of 0, 18.6% of Laplace outputs were provably not from a count of 1). It is
    here to reproduce the paper's figures; `polya` is what protects.
    """
    width = float(checked_number("scale", scale, SCALE_LEAST, SCALE_MOST))
    sides = checked_shape(shape)
    alpha = 1 / checked_clients(clients)
    # All 256 bits count: the default pool of 4 words would cut the seed to 128.
    seed = np.random.SeedSequence(random_words(4).tolist(), pool_size=8)
    plus, minus = np.random.default_rng(seed).gamma(alpha, width, size=(2, *sides))
    return np.asarray(plus - minus)
