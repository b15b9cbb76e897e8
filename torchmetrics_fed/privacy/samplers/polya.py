"""Polya noise: one client's share of two-sided geometric noise."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.entropy import bernoulli, random_words, uniform_below
from torchmetrics_fed.privacy.samplers.fixed_point import NEGLIGIBLE, UNIT, decay, logarithmic_mass
from torchmetrics_fed.privacy.samplers.geometric import EPSILON_LEAST, EPSILON_MOST, geometric, two_sided_geometric
from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_clients, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.poisson import poisson
from torchmetrics_fed.privacy.samplers.rejection import accepted
from torchmetrics_fed.privacy.samplers.table import Table

SPARSE = Fraction(1, 4)
"""Up to this many terms a cell on average, it is cheaper to ask which cells have any than how many each has."""


@lru_cache(maxsize=64)
def octave_table(epsilon: Fraction) -> Table:
    """The octave b = 0, 1, ... with weight q^(2^b), relative to the first."""
    weight, weights = UNIT, []
    while weight >= NEGLIGIBLE:
        weights.append(weight)
        weight = decay(epsilon * ((1 << len(weights)) - 1))
    return Table(weights)


def logarithmic(count: int, epsilon: Fraction) -> NDArray[np.int64]:
    """`count` draws of K with P(K = k) proportional to q^k / k, k = 1, 2, ..., q = exp(-epsilon).

    Propose an octave b with weight q^(2^b), and k = 2^b + j with j uniform below 2^b: a proposal k
    has weight q^(2^b) / 2^b. Accept with probability (q^k / k) / (q^(2^b) / 2^b) = q^j · 2^b / k,
    as two coins: uniform below k is below 2^b, and a geometric is at least j. For any epsilon more
    than ln 2 = 69% of the proposals pass.
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

    NB(r, 1 - q) has the generating function ((1 - q) / (1 - q z))^r. Those of `clients` shares
    multiply to the one of two geometrics' difference, so the sum of all shares is exactly
    `two_sided_geometric`.

    NB(r, 1 - q) is also a Poisson(-r ln(1 - q)) number of `logarithmic` terms; the difference of
    two has twice as many, with random signs. Most cells of a small share have none. Then the number
    of terms of all c cells is drawn, Poisson of c times the mean, and a uniform cell for each: a
    Poisson number of things put into cells at random is an independent Poisson number in each.

    >>> polya((2, 4096), epsilon=1, clients=10).shape
    (2, 4096)
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
    return np.where(bernoulli(Fraction(1, 2), sizes.size), sizes, -sizes)
