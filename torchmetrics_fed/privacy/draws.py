"""The only source of randomness, the operating system's, and inverse-CDF tables that draw from it.

Invariants:

- There is no seed and no generator state: nothing that `fork`, `spawn`, pickle or a checkpoint
  could duplicate, and nothing that seeding torch, numpy or random could reach.
- The 128-bit thresholds of a table are the only step of a sampler that is not exact. A weight x is
  stored as floor(2^192 x), within one unit.
- `decimal` rounds exp and ln correctly at any precision, and 80 digits (2^-265) leave bit 192
  right. The decimal context is our own: the precision or the traps of a caller cannot change the
  noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from itertools import accumulate, count, takewhile

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError

BATCH = 1 << 16
"""Number of proposals made at a time: few enough to stay in the cache, however many cells."""

UNIT = 1 << 192
"""The integer that stands for the weight 1."""

NEGLIGIBLE = UNIT >> 128
"""Weights below 2^-128 of the largest weight are left out of tables."""

DIGITS = 80
"""Decimal digits of intermediate results: 2^-265, well below one unit of a weight."""

TABLE_TOTAL_VARIATION = 2.0**-110
"""Distance of one draw from its ideal law, for every table built here (at most 2^16 weights).

Rounding K thresholds to multiples of 2^-128 costs at most K · 2^-128 <= 2^-112. The tails left out,
of weights below 2^-128 of the mode, hold less than 2^-118. The rounding of the weights, 2^-192 a
step, is far below both. Against 420-bit arithmetic the worst table measured is at 2^-114.9.
"""


def random_words(count: int) -> NDArray[np.uint64]:
    """Return `count` independent uniform 64-bit words, read-only."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def uniform_below(bound: int | NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return `count` independent integers, uniform on {0, ..., bound - 1}.

    A word w is kept when w >= 2^64 mod bound. The kept range is a whole number of periods of
    w mod bound, so the residue is exactly uniform. A word is refused with probability below
    bound / 2^64, and drawn again.

    Args:
        bound: one bound for all draws, or one bound for each draw.
        count: number of draws.
    """
    bounds = np.broadcast_to(np.asarray(bound, dtype=np.int64), (count,))
    if np.any(bounds < 1):
        raise InputError(f"Expected `bound` to be at least 1, but got {bounds.min()}.")
    periods = bounds.astype(np.uint64)
    surplus = (np.uint64(0) - periods) % periods  # (2^64 - bound) mod bound = 2^64 mod bound
    words = random_words(count)
    while (refused := np.flatnonzero(words < surplus)).size:
        words = words.copy()
        words[refused] = random_words(refused.size)
    return (words % periods).astype(np.int64)


def coins(count: int) -> NDArray[np.bool_]:
    """Return `count` independent fair coins."""
    words = random_words(-(-count // 64))
    bits = np.unpackbits(words.view(np.uint8), count=count)
    return bits.astype(np.bool_)


def accepted(count: int, trial: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the first `count` values that a rejection sampler accepts.

    Proposals are independent and stay in order, so cutting off a surplus favours no value.

    Args:
        count: number of values.
        trial: makes a number of proposals and returns the accepted ones.
    """
    parts = [np.zeros(0, dtype=np.int64)]
    missing = count
    while missing:
        proposals = min(missing + missing // 2 + 16, BATCH)
        values = trial(proposals)[:missing]
        parts.append(values)
        missing -= values.size
    return np.concatenate(parts)


def decay(rate: Fraction) -> int:
    """Return the weight exp(-rate), for rate >= 0."""
    context = _decimal_context()
    power = _exp_minus(rate, context)
    return int(context.multiply(power, Decimal(UNIT)))


def logarithmic_mass(epsilon: Fraction) -> int:
    """Return the weight -ln(1 - q) = sum over k >= 1 of q^k / k, for epsilon >= 2^-40.

    Here q = exp(-epsilon).
    """
    context = _decimal_context()
    power = _exp_minus(epsilon, context)
    logarithm = context.ln(context.subtract(Decimal(1), power))
    return int(context.multiply(logarithm, Decimal(-UNIT)))


def _decimal_context() -> Context:
    return Context(
        prec=DIGITS,
        rounding=ROUND_HALF_EVEN,
        Emin=-999_999,
        Emax=999_999,
        capitals=1,
        clamp=0,
        flags=[],
        traps=[],
    )


def _exp_minus(rate: Fraction, context: Context) -> Decimal:
    exponent = context.divide(Decimal(-rate.numerator), Decimal(rate.denominator))
    return context.exp(exponent)


class Table:
    """The law P(first + k) = weights[k] / sum(weights).

    With T_k = floor(2^128 (weights[0] + ... + weights[k - 1]) / sum) and a uniform 128-bit U, the
    value is the largest k with T_k <= U. The high words alone decide unless they tie, which has a
    probability of 2^-64 per entry. Only then is the low word of U drawn and compared.
    """

    def __init__(self, weights: Sequence[int], first: int = 0) -> None:
        total = sum(weights)
        masses_below = accumulate(weights[:-1], initial=0)
        thresholds = ((mass << 128) // total for mass in masses_below)
        content = b"".join(threshold.to_bytes(16, "big") for threshold in thresholds)
        words = np.frombuffer(content, dtype=">u8")
        self.high = words[0::2].astype(np.uint64)
        self.low = words[1::2].astype(np.uint64)
        self.first = first

    @classmethod
    def falling(cls, weight: Callable[[int], int]) -> Table:
        """Return the law of k = 0, 1, ... for weights that fall, up to the last relevant one."""
        weights = map(weight, count(0))
        return cls(list(takewhile(_is_relevant, weights)))

    def draw(self, size: int) -> NDArray[np.int64]:
        """Return `size` independent values."""
        words = random_words(size)
        after = np.searchsorted(self.high, words, side="right")  # T_0 = 0, so never 0
        for cell in np.flatnonzero(self.high[after - 1] == words):
            start = np.searchsorted(self.high, words[cell])
            ties = self.low[start : after[cell]]
            low_word = random_words(1)[0]
            after[cell] = start + np.searchsorted(ties, low_word, side="right")
        return after + (self.first - 1)


def _is_relevant(weight: int) -> bool:
    return weight >= NEGLIGIBLE
