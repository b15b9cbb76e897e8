"""Rejection sampling in bulk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BATCH = 1 << 16
"""Proposals made at a time: few enough to stay in the cache, whatever the number of cells."""


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
