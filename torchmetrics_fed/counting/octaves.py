"""The edges of a two-sided grid: bins that narrow towards both ends of [0, 1], octave by octave.

With d the distance of a score from the nearer end, octave j is :math:`2^{-j-2} \\le d < 2^{-j-1}`. Each octave is cut
into a power of two of even bins, so that every edge is a short binary fraction.
"""

from functools import lru_cache

import numpy as np

from torchmetrics_fed.typing import Floats

# Bins of each octave, from the middle of the range to its end, and of what is left at the end: of the 2,048 on one side
# of a grid of 4,096. Scores of classifiers are dense in the middle, and far out a sixteenth or a quarter of an octave
# tells as much apart as anybody needs.
_SHARES = (512, 512, 256, 128, 128, 128, 64, 32, *[16] * 9, *[8] * 12, *[4] * 11, 4)


@lru_cache(maxsize=16)
def octave_bins(bins: int) -> tuple[int, ...]:
    """Return how many bins each octave has, from the middle to the end, and the rest; half of ``bins`` in all.

    Every octave gets one bin, then the octave that is furthest below its share gets twice as many, while that fits.
    Where there are few bins there are fewer octaves, so that two thirds of the bins are left for the middle.
    """
    side = bins // 2
    octaves = min(len(_SHARES) - 1, max(side // 3, int(side > 1)))
    shares = [*_SHARES[:octaves], _SHARES[-1]]
    found = [1] * len(shares)
    while (left := side - sum(found)) > 0:
        fitting = [j for j in range(len(shares)) if found[j] <= left]
        furthest = max(fitting, key=lambda j: (shares[j] / found[j], -j))
        found[furthest] *= 2
    return tuple(found)


@lru_cache(maxsize=16)
def two_sided_edges(bins: int) -> Floats:
    """Return the ``bins + 1`` edges, ascending from 0 to 1, all of them exact."""
    *octaves, rest = octave_bins(bins)
    end = 2.0 ** -(len(octaves) + 1)
    parts = [end * np.arange(rest) / rest]
    for j, count in reversed(list(enumerate(octaves))):
        parts.append(2.0 ** -(j + 2) * (1 + np.arange(count) / count))
    low = np.concatenate(parts)
    edges: Floats = np.concatenate([low, [0.5], (1 - low)[::-1]])
    edges.setflags(write=False)
    return edges
