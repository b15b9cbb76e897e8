"""Discrete Gaussian noise."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.entropy import accepted, coins, uniform_below
from torchmetrics_fed.privacy.samplers.geometric import geometric
from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.table import Table, decay

SIGMA2_LEAST, SIGMA2_MOST = 2.0**-20, 2.0**50


@lru_cache(maxsize=64)
def stride_table(sigma2: Fraction) -> tuple[int, Table]:
    """A stride s of about sigma / 8, and i = 0, 1, ... with weight exp(-(s i)^2 / (2 sigma2))."""
    stride = math.isqrt(math.floor(sigma2)) // 8 + 1
    return stride, Table.falling(lambda step: decay((stride * step) ** 2 / (2 * sigma2)))


def discrete_gaussian(shape: Shape, sigma2: Number) -> NDArray[np.int64]:
    """Noise X with P(X = x) proportional to exp(-x^2 / (2 sigma2)).

    Propose |X| = s i + j, with i from a small table of weights exp(-(s i)^2 / (2 sigma2)) and j
    uniform below s. Accept with probability exp(-n / (2 sigma2)), n = |X|^2 - (s i)^2: an integer,
    so the coin is [G >= n] for a geometric G of rate 1 / (2 sigma2). Then comes a random sign, and
    -0 is refused, or zero would come up twice as often. Over 90% of the proposals pass from
    sigma2 = 17 on, and half of them at worst, near 0.
    """
    exact = checked_number("sigma2", sigma2, SIGMA2_LEAST, SIGMA2_MOST)
    sides = checked_shape(shape)
    stride, table = stride_table(exact)

    def trial(proposals: int) -> NDArray[np.int64]:
        base = stride * table.draw(proposals)
        size = base + uniform_below(stride, proposals)
        negative = coins(proposals)
        excess = (size - base) * (size + base)
        kept = (geometric(proposals, 1 / (2 * exact)) >= excess) & ~(negative & (size == 0))
        noise: NDArray[np.int64] = np.where(negative, -size, size)[kept]
        return noise

    return accepted(math.prod(sides), trial).reshape(sides)
