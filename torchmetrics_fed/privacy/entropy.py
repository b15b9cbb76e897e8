"""The only source of randomness: the operating system's, read in bulk.

There is no seed and no generator state: nothing that `fork`, `spawn`, pickle or a checkpoint could
duplicate, and nothing that seeding torch, numpy or random could reach.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError

BATCH = 1 << 16
"""Proposals made at a time: few enough to stay in the cache, whatever the number of cells."""


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
        kept = trial(min(missing + missing // 2 + 16, BATCH))[:missing]
        parts.append(kept)
        missing -= kept.size
    return np.concatenate(parts)
