"""The edges of a two-sided grid: bins on [0, 1] that narrow towards both ends.

With d the distance of a score from the nearer end, octave j is :math:`2^{-j-2} \\le d < 2^{-j-1}`.
Each octave is cut into a power of two of even bins, so every edge is a short binary fraction, exact
in float32 and in float64.
"""

from functools import lru_cache

import numpy as np

from torchmetrics_fed.typing import Floats

SMALLEST = float(np.nextafter(0.0, 1.0))
"""The smallest number above 0: the end of the bin of scores that are exactly 0."""

ABOVE_ONE = float(np.nextafter(1.0, 2.0))
"""The next number above 1: the upper edge of the bin of scores that are exactly 1."""

OCTAVE_SHARES = (512, 512, 256, 128, 128, 128, 64, 32, *[16] * 9, *[8] * 12, *[4] * 11)
"""The bins of each octave, from the middle of the range to its end, of a grid of 4,096 bins.

Scores of classifiers are dense in the middle. Far out, a sixteenth or a quarter of an octave is
fine enough. `benchmarks.saturated` measures what the grid costs on confident scores.
"""

END_SHARE = 4
"""The bins of the rest at each end, beyond the last octave, of a grid of 4,096 bins."""


@lru_cache(maxsize=16)
def octave_bins(bins: int) -> tuple[int, ...]:
    """Return the bins of each octave, from the middle to the end, and of the rest.

    They add up to half of ``bins``. Every octave begins with one bin. Then the octave that is
    furthest below its share is doubled, while that fits. Small grids have fewer octaves, so that
    two thirds of the bins are left for the middle. The rest has at least two bins, one of them for
    the end itself: if need be, the last octave becomes part of the rest.
    """
    side = bins // 2
    octaves = min(len(OCTAVE_SHARES), max(side // 3, 1))
    shares = [*OCTAVE_SHARES[:octaves], END_SHARE]
    sizes = [1] * len(shares)
    free = side - sum(sizes)
    while free > 0:
        fitting = [j for j, size in enumerate(sizes) if size <= free]
        furthest = max(fitting, key=lambda j: (shares[j] / sizes[j], -j))
        free -= sizes[furthest]
        sizes[furthest] *= 2
    if sizes[-1] == 1:  # then the last octave has one bin as well, as wide as the rest
        sizes[-2:] = [2]
    return tuple(sizes)


@lru_cache(maxsize=16)
def smooth_edges(bins: int) -> Floats:
    """Return the ``bins + 1`` edges by which leaves are placed, ascending from 0 to 1.

    The bins themselves differ at the ends: see :func:`two_sided_edges`.
    """
    *octaves, rest = octave_bins(bins)
    end = 2.0 ** -(len(octaves) + 1)
    parts = [end * np.arange(rest) / rest]
    for j in reversed(range(len(octaves))):
        fractions = np.arange(octaves[j]) / octaves[j]
        parts.append(2.0 ** -(j + 2) * (1 + fractions))
    low = np.concatenate(parts)
    edges: Floats = np.concatenate([low, [0.5], (1 - low)[::-1]])
    edges.setflags(write=False)
    return edges


@lru_cache(maxsize=16)
def two_sided_edges(bins: int) -> Floats:
    """Return the ``bins + 1`` edges: the smooth ones, with end bins for exactly 0 and exactly 1.

    The first bin ends at the smallest number above 0. The last bin begins at 1, and its upper edge
    is the next number.
    """
    edges: Floats = smooth_edges(bins).copy()
    edges[1] = SMALLEST
    edges[-2] = 1.0
    edges[-1] = ABOVE_ONE
    edges.setflags(write=False)
    return edges
