"""Laws of noise and their privacy loss by definition, for tests of the accounting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.special import ive

from torchmetrics_fed.privacy.loss import LogMass
from torchmetrics_fed.privacy.sensitivity import Sensitivity


def equal_shifts(cells: int, shift: int = 1) -> Sensitivity:
    """Return the sensitivity of cells that all move by one shift."""
    return Sensitivity(((shift, cells),))


def sensitivity_of(shifts: Sequence[int]) -> Sensitivity:
    """Return the sensitivity of one cell for each shift."""
    sizes = [abs(shift) for shift in shifts if shift]
    return Sensitivity(tuple(Counter(sizes).items()))


def skellam(mean: float) -> LogMass:
    return lambda x: np.asarray(np.log(ive(np.abs(x), 2 * mean)))


def geometric(epsilon: float) -> LogMass:
    return lambda x: math.log(math.tanh(epsilon / 2)) - epsilon * np.abs(x)


def gaussian(sigma2: float) -> LogMass:
    support = np.arange(-500, 501)
    norm = math.log(np.exp(-(support**2) / (2 * sigma2)).sum())
    return lambda x: -(x**2) / (2 * sigma2) - norm


def exact_delta(epsilon: float, law: LogMass, shifts: Sequence[int], reach: int) -> float:
    """Return delta by its definition, over all outputs up to ``reach`` in every cell.

    It is the sum of the excess of one probability over e^epsilon times the other.
    """
    x = np.arange(-reach, reach + 1)
    p = np.ones(1)
    q = np.ones(1)
    for shift in shifts:
        p = np.multiply.outer(p, np.exp(law(x))).ravel()
        q = np.multiply.outer(q, np.exp(law(x + shift))).ravel()
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
