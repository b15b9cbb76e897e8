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

__all__ = ["logarithmic", "octave_table", "polya"]


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


def polya(shape: Shape, epsilon: Number, clients: int) -> NDArray[np.int64]:
    """One client's share: NB(r, 1 - q) - NB(r, 1 - q), q = exp(-epsilon), r = 1 / clients.

    NB(r, 1 - q) has the generating function ((1 - q) / (1 - q z))^r. Those of `clients` shares
    multiply to the one of two geometrics' difference, so the sum of all shares is exactly
    `two_sided_geometric`.

    NB(r, 1 - q) is also a Poisson(-r ln(1 - q)) number of `logarithmic` terms; the difference of
    two has twice as many, with random signs. Most cells of a small share have none: fast.

    >>> polya((2, 4096), epsilon=1, clients=10).shape
    (2, 4096)
    """
    rate = checked_number("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST)
    parties = checked_clients(clients)
    sides = checked_shape(shape)
    if parties == 1:
        return two_sided_geometric(sides, rate)
    terms = poisson(math.prod(sides), Fraction(2 * logarithmic_mass(rate), parties * UNIT))
    stops = np.cumsum(terms)
    sizes = logarithmic(int(terms.sum()), rate)
    signed = np.where(bernoulli(Fraction(1, 2), sizes.size), sizes, -sizes)
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(signed)])
    noise: NDArray[np.int64] = running[stops] - running[stops - terms]
    return noise.reshape(sides)
