"""Skellam noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.samplers.parameters import Number, Shape, checked_number, checked_shape
from torchmetrics_fed.privacy.samplers.poisson import poisson

MEAN_LEAST, MEAN_MOST = 2.0**-40, 2.0**30


def skellam(shape: Shape, mean: Number) -> NDArray[np.int64]:
    """Noise Poisson(mean) - Poisson(mean), of variance 2 mean.

    Poissons add up, so n shares of mean / n (a `Fraction`: no rounding) sum to exactly this law.

    >>> skellam((2, 4096), mean=7.1).shape
    (2, 4096)
    """
    exact = checked_number("mean", mean, MEAN_LEAST, MEAN_MOST)
    sides = checked_shape(shape)
    count = math.prod(sides)
    return (poisson(count, exact) - poisson(count, exact)).reshape(sides)
