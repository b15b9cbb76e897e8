"""The only source of randomness, the operating system's, read in bulk; and inverse-CDF tables that draw from it.

There is no seed and no generator state: nothing that `fork`, `spawn`, pickle or a checkpoint could duplicate, and
nothing that seeding torch, numpy or random could reach.

A table's 128-bit thresholds are the only step of a sampler that is not exact. A weight x stands as floor(2^192 x),
within one unit. `decimal` rounds exp and ln correctly at any precision, and 80 digits (2^-265) leave bit 192 right. The
context is our own, so that a caller's precision or traps cannot change the noise.
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
"""Proposals made at a time: few enough to stay in the cache, whatever the number of cells."""
UNIT = 1 << 192
NEGLIGIBLE = UNIT >> 128
"""Weights below 2^-128 of the largest one are left out of tables."""

TABLE_TOTAL_VARIATION = 2.0**-110
"""Distance of one draw from its ideal law, for every table built here (at most 2^16 weights).

Rounding K thresholds to multiples of 2^-128 costs at most K · 2^-128 <= 2^-112. The tails left out, of weights below
2^-128 of the mode, hold less than 2^-118, and the weights' own rounding, 2^-192 a step, is far below both. Against
420-bit arithmetic the worst table measured is at 2^-114.9.
"""


def random_words(count: int) -> NDArray[np.uint64]:
    """`count` independent uniform 64-bit words, read-only."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def uniform_below(bound: int | NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` independent integers, uniform on {0, ..., bound - 1}; one bound, or one per draw.

    A word w is kept when w >= 2^64 mod bound. The kept range is a whole number of periods of w mod bound, so the
    residue is exactly uniform. A word is refused with probability below bound / 2^64, and drawn again.
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
    """`count` independent fair coins."""
    return np.unpackbits(random_words(-(-count // 64)).view(np.uint8), count=count).astype(np.bool_)


def accepted(count: int, trial: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """The first `count` values kept by `trial`, which makes as many proposals as it is asked for.

    Proposals are independent and stay in order, so cutting off a surplus favours no value.
    """
    parts = [np.zeros(0, dtype=np.int64)]
    missing = count
    while missing:
        parts.append(trial(min(missing + missing // 2 + 16, BATCH))[:missing])
        missing -= parts[-1].size
    return np.concatenate(parts)


def _exp_minus(rate: Fraction) -> tuple[Decimal, Context]:
    context = Context(80, ROUND_HALF_EVEN, -999_999, 999_999, 1, 0, flags=[], traps=[])
    return context.exp(context.divide(Decimal(-rate.numerator), Decimal(rate.denominator))), context


def decay(rate: Fraction) -> int:
    """exp(-rate), for rate >= 0."""
    power, context = _exp_minus(rate)
    return int(context.multiply(power, Decimal(UNIT)))


def logarithmic_mass(epsilon: Fraction) -> int:
    """-ln(1 - q) = sum over k >= 1 of q^k / k, with q = exp(-epsilon), for epsilon >= 2^-40."""
    power, context = _exp_minus(epsilon)
    return int(context.multiply(context.ln(context.subtract(Decimal(1), power)), Decimal(-UNIT)))


class Table:
    """The law P(first + k) = weights[k] / sum(weights).

    With T_k = floor(2^128 (weights[0] + ... + weights[k - 1]) / sum) and a uniform 128-bit U, the value is the largest
    k with T_k <= U. The high words alone decide unless they tie, which has a probability of 2^-64 per entry; only then
    is U's low word drawn, and the low words compared.
    """

    def __init__(self, weights: Sequence[int], first: int = 0) -> None:
        total = sum(weights)
        starts = ((mass << 128) // total for mass in accumulate(weights[:-1], initial=0))
        halves = np.frombuffer(b"".join(start.to_bytes(16, "big") for start in starts), dtype=">u8")
        self.high, self.low = halves[0::2].astype(np.uint64), halves[1::2].astype(np.uint64)
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
