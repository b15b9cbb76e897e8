"""The only source of randomness: the operating system's, read in bulk.

There is no seed and no generator state: nothing that `fork`, `spawn`, pickle or a checkpoint could
duplicate, and nothing that seeding torch, numpy or random could reach.
"""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError

WORD = 1 << 64


def random_words(count: int) -> NDArray[np.uint64]:
    """`count` independent uniform 64-bit words, read-only.

    >>> random_words(3).shape
    (3,)
    """
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def uniform_below(bound: int | NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` independent integers, uniform on {0, ..., bound - 1}; one bound, or one per draw.

    A word w is kept when w >= 2^64 mod bound. The kept range is a whole number of periods of
    w mod bound, so the residue is exactly uniform. A word is refused with probability below
    bound / 2^64, and drawn again.

    >>> int(uniform_below(1, 5).max())
    0
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


def bernoulli(probability: Fraction, count: int) -> NDArray[np.bool_]:
    """`count` independent coins, each True with exactly `probability`.

    A uniform real U is compared with p in base 2^64: the first digit that differs decides U < p.
    Only tied draws, 2^-64 of them, read another word, so p is never rounded.

    >>> bool(bernoulli(Fraction(1), 5).all())
    True
    """
    if not 0 <= probability <= 1:
        raise InputError(f"Expected `probability` to be within [0, 1], but got {probability}.")
    if probability == 1:  # the one p that has a digit before the point
        return np.ones(count, dtype=np.bool_)
    heads = np.zeros(count, dtype=np.bool_)
    undecided, rest = np.arange(count), probability
    while undecided.size and rest:  # once p has no digits left, p <= U: tails
        digit, rest = divmod(rest * WORD, 1)
        words = random_words(undecided.size)
        heads[undecided] = words < np.uint64(digit)
        undecided = undecided[words == np.uint64(digit)]
    return heads
