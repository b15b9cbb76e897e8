"""Geometric noise, one-sided and two-sided."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.table import NEGLIGIBLE, UNIT, Table, decay, product

EPSILON_LEAST, EPSILON_MOST = 2.0**-40, 2.0**10
"""Below, a sum of shares could leave int64; above, there is no noise to speak of."""

RADIX = 256


@lru_cache(maxsize=64)
def digit_tables(rate: Fraction) -> tuple[Table, ...]:
    """The laws of the base-256 digits of a geometric, lowest first.

    The digits left out are all zero but with probability exp(-90) < 2^-129.
    """
    tables = []
    while rate <= 90:
        ratio, weight = decay(rate), UNIT
        weights = [weight]
        while len(weights) < RADIX and (weight := product(weight, ratio)) >= NEGLIGIBLE:
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


def two_sided_geometric(shape: Shape, epsilon: Number) -> NDArray[np.int64]:
    """Noise X with P(X = k) proportional to exp(-epsilon |k|): a difference of two geometrics.

    With q = exp(-epsilon), the sum over g of q^g q^(g + |k|) is q^|k| / (1 - q^2).
    """
    rate = checked_number("epsilon", epsilon, EPSILON_LEAST, EPSILON_MOST)
    sides = checked_shape(shape)
    count = math.prod(sides)
    return (geometric(count, rate) - geometric(count, rate)).reshape(sides)
