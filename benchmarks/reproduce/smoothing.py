"""Non-decreasing sequences nearest to a noisy one, in squared or absolute differences."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

__all__ = ["Norm", "smooth"]

Norm = Literal["l1", "l2"]


def smooth(values: NDArray[np.float64], norm: Norm) -> NDArray[np.float64]:
    """Return the non-decreasing sequence within [0, 1] that is nearest to ``values``.

    The bounded optimum is the unbounded one, clipped: both norms are separable. In l1 the optimum
    is seldom unique; the mean of the lowest and the highest optimum is an optimum, too.
    """
    if norm == "l2":
        best = np.asarray(isotonic_regression(values).x, dtype=np.float64)
    else:
        lowest_end = _medians(values)
        highest_end = -_medians(-values[::-1])[::-1]
        best = (lowest_end + highest_end) / 2
    return np.maximum.accumulate(best.clip(0.0, 1.0))


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one l1 optimum. A heap holds the points where the slope of the cost changes.

    A value below the top of the heap pulls the top down to itself; read backwards, the running
    minimum of the tops is an optimum. On the mirrored sequence the same walk finds the optimum at
    the other end.
    """
    heap: list[float] = []
    tops = np.empty_like(values)
    for index, value in enumerate(values.tolist()):
        heappush(heap, -value)
        if -heap[0] > value:
            heappop(heap)
            heappush(heap, -value)
        tops[index] = -heap[0]
    return np.asarray(np.minimum.accumulate(tops[::-1])[::-1])
