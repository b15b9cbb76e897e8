"""Inverse-CDF tables with 128-bit thresholds, the only step of a sampler that is not exact, and weights for them.

A weight x stands as floor(2^192 x), within one unit. `decimal` rounds exp and ln correctly at any precision, and 80
digits (2^-265) leave bit 192 right. The context is our own, so that a caller's precision or traps cannot change the
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from itertools import accumulate, count, takewhile

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.privacy.entropy import random_words

BITS = 192
UNIT = 1 << BITS
NEGLIGIBLE = UNIT >> 128
"""Weights below 2^-128 of the largest one are left out of tables."""

TABLE_TOTAL_VARIATION = 2.0**-110
"""Distance of one draw from its ideal law, for every table built here (at most 2^16 weights).

Rounding K thresholds to multiples of 2^-128 costs at most K · 2^-128 <= 2^-112. The tails left out,
of weights below 2^-128 of the mode, hold less than 2^-118, and the weights' own rounding, 2^-192 a
step, is far below both. Against 420-bit arithmetic the worst table measured is at 2^-114.9.
"""


def _context() -> Context:
    return Context(80, ROUND_HALF_EVEN, -999_999, 999_999, 1, 0, flags=[], traps=[])


def _exp_minus(rate: Fraction, context: Context) -> Decimal:
    return context.exp(context.divide(Decimal(-rate.numerator), Decimal(rate.denominator)))


def decay(rate: Fraction) -> int:
    """exp(-rate), for rate >= 0."""
    context = _context()
    return int(context.multiply(_exp_minus(rate, context), Decimal(UNIT)))


def logarithmic_mass(epsilon: Fraction) -> int:
    """-ln(1 - q) = sum over k >= 1 of q^k / k, with q = exp(-epsilon), for epsilon >= 2^-40."""
    context = _context()
    success = context.subtract(Decimal(1), _exp_minus(epsilon, context))
    return int(context.multiply(context.ln(success), Decimal(-UNIT)))


def product(left: int, right: int) -> int:
    """left · right."""
    return (left * right) >> BITS


class Table:
    """The law P(first + k) = weights[k] / sum(weights).

    With T_k = floor(2^128 (weights[0] + ... + weights[k - 1]) / sum) and a uniform 128-bit U, the
    value is the largest k with T_k <= U. The high words alone decide unless they tie, which has a
    probability of 2^-64 per entry; only then is U's low word drawn, and the low words compared.
    """

    def __init__(self, weights: Sequence[int], first: int = 0) -> None:
        total = sum(weights)
        starts = ((mass << 128) // total for mass in accumulate(weights[:-1], initial=0))
        halves = np.frombuffer(b"".join(start.to_bytes(16, "big") for start in starts), dtype=">u8")
        self.high = halves[0::2].astype(np.uint64)
        self.low = halves[1::2].astype(np.uint64)
        self.first = first

    @classmethod
    def falling(cls, weight: Callable[[int], int]) -> Table:
        """The law of k = 0, 1, ... with weights that fall, up to the last one that is not negligible."""
        return cls(list(takewhile(lambda each: each >= NEGLIGIBLE, map(weight, count(0)))))

    def draw(self, size: int) -> NDArray[np.int64]:
        """`size` independent values."""
        words = random_words(size)
        after = np.searchsorted(self.high, words, side="right")  # T_0 = 0, so never 0
        for cell in np.flatnonzero(self.high[after - 1] == words):
            tied = slice(np.searchsorted(self.high, words[cell]), after[cell])
            after[cell] = tied.start + np.searchsorted(self.low[tied], random_words(1)[0], "right")
        return after + (self.first - 1)
