"""Noise: the law of one share's noise, calibrated for an epsilon, and what a release with it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy import samplers
from torchmetrics_fed.privacy.accounting import cell_epsilon, discrete_gaussian_sigma2, skellam_mean
from torchmetrics_fed.privacy.sensitivity import Sensitivity

# The samplers' distance from their laws counts e^epsilon-fold; beyond this, charging it would say nothing.
_MOST_SAMPLING_ERROR = 2.0**-20

Mechanism = Literal["polya", "skellam", "discrete_gaussian", "gamma"]


@dataclass(frozen=True)
class Noise:
    """The noise of one share.

    Args:
        draw: returns fresh noise of a shape, from the operating system's randomness.
        variance: variance of a cell of the sum of all shares that the noise is calibrated for.
    """

    draw: Callable[[tuple[int, ...]], NDArray[np.int64] | NDArray[np.float64]]
    variance: float


def sampling_error(epsilon: float, shares: int, cells: int) -> float:
    """Return the delta by which the samplers of all shares together may miss their laws."""
    return (1 + math.exp(min(epsilon, 700.0))) * shares * cells * samplers.CELL_TOTAL_VARIATION


@lru_cache(maxsize=64)
def calibrated_noise(
    mechanism: Mechanism, epsilon: Fraction, delta: float, sensitivity: Sensitivity, shares: int, cells: int
) -> Noise:
    """Return the noise of one of ``shares`` shares. Cached, because calibrating delta takes a while.

    Args:
        mechanism: the law.
        epsilon: what the sum of the shares spends.
        delta: likewise; 0 for pure noise.
        sensitivity: the worst change of what is released.
        shares: how many honest shares the noise is calibrated for.
        cells: number of cells of a share.
    """
    if sampling_error(float(epsilon), shares, cells) > _MOST_SAMPLING_ERROR:
        raise InputError(
            f"Expected an `epsilon` at which noise protects anybody, up to about 40, but got {float(epsilon):g}. Use "
            "`privacy=None` where none is needed."
        )
    if mechanism == "skellam":
        mean = skellam_mean(epsilon, delta, sensitivity)
        return Noise(lambda shape: samplers.skellam(shape, mean / shares), float(2 * mean))
    if mechanism == "discrete_gaussian":
        sigma2 = discrete_gaussian_sigma2(epsilon, delta, sensitivity, shares)
        return Noise(lambda shape: samplers.discrete_gaussian(shape, sigma2 / shares), float(sigma2))
    rate = cell_epsilon(epsilon, sensitivity)
    if mechanism == "gamma":
        return Noise(lambda shape: samplers.gamma_difference(shape, 1 / rate, shares), 2 / float(rate) ** 2)
    ratio = math.exp(-rate)
    return Noise(lambda shape: samplers.polya(shape, rate, shares), 2 * ratio / (1 - ratio) ** 2)
