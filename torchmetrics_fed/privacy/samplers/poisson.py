"""Poisson counts, and Skellam noise, which is the difference of two."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.table import NEGLIGIBLE, UNIT, Table

MEAN_LEAST, MEAN_MOST = 2.0**-40, 2.0**30
WIDEST = 1 << 22
"""The largest mean with a table of its own, of about 55,000 weights."""


@lru_cache(maxsize=64)
def poisson_table(mean: Fraction) -> Table:
    """Weights relative to the mode's, outwards, by P(k) / P(k - 1) = mean / k.

    Outwards all ratios are at most 1, so rounding errors add up but do not grow.
    """
    over, under = mean.numerator, mean.denominator
    mode = math.floor(mean)
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

    A table grows as the square root of its mean. Means above `WIDEST` are cut into equal parts,
    because independent Poissons add up to a Poisson of the summed mean.
    """
    parts = max(1, math.ceil(mean / WIDEST))
    table = poisson_table(mean / parts)
    total = np.zeros(count, dtype=np.int64)
    for _ in range(parts):
        total += table.draw(count)
    return total


def skellam(shape: Shape, mean: Number) -> NDArray[np.int64]:
    """Noise Poisson(mean) - Poisson(mean), of variance 2 mean.

    Poissons add up, so n shares of mean / n (a `Fraction`: no rounding) sum to exactly this law.
    """
    exact = checked_number("mean", mean, MEAN_LEAST, MEAN_MOST)
    sides = checked_shape(shape)
    count = math.prod(sides)
    return (poisson(count, exact) - poisson(count, exact)).reshape(sides)
