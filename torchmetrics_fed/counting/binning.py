"""Binning: the bin of every score, exact to the bit in every floating dtype, on every device.

Each kind has two ways that agree: :meth:`Binning.of` in torch, for any device, which never waits
for it, and :meth:`Binning.codes` in numpy, for plain batches in this machine's memory.
"""

import threading
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.typing import Floats

Array: TypeAlias = NDArray[Any]

_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BITS_OF_ONE = {4: 0x3F80_0000, 8: 0x3FF0_0000_0000_0000}
_BITS_OF_HALF = {4: 0x3F00_0000, 8: 0x3FE0_0000_0000_0000}
_HALF = np.int32(_BITS_OF_HALF[4])
_MANTISSA = {4: 23, 8: 52}

SMALLEST = float(np.nextafter(0.0, 1.0))
"""The smallest number above 0: the end of the bin of scores that are exactly 0."""
ABOVE_ONE = float(np.nextafter(1.0, 2.0))
"""The next number above 1: the upper edge of the bin of scores that are exactly 1."""

# Up to here the calls cost more than the work: the fewest of them are fastest.
_FEW = 1_024
# Cells of the range, a few per bin, that tell the bin of a score up to the edges inside its cell.
_CELLS_A_BIN, _MOST_CELLS, _MOST_STEPS = 4, 1 << 18, 8
# Bins of each octave of a two-sided grid, from the middle of the range to its end, and of what is
# left at the end: of the 2,048 on one side of a grid of 4,096. Scores of classifiers are dense in
# the middle, and far out a sixteenth or a quarter of an octave tells as much apart as anybody
# needs.
_SHARES = (512, 512, 256, 128, 128, 128, 64, 32, *[16] * 9, *[8] * 12, *[4] * 11, 4)


class Scratch(threading.local):
    """Arrays that are kept between batches because fresh memory costs as much as a quarter of the
    counting.

    Each thread has its own, and no object that could be pickled has any: they hold what the last
    scores were.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Any], tuple[Tensor, Array]] = {}
        self._whole: dict[tuple[str, Any], Array] = {}
        self._constants: dict[tuple[Any, int], Array] = {}

    def room(self, name: str, dtype: Any, size: int) -> tuple[Tensor, Array]:
        """Return ``size`` numbers of a numpy dtype with anything in them, as a tensor and as an
        array."""
        kept = self._kept.get((name, dtype))
        if kept is not None and len(kept[1]) == size:  # most batches are as large as the one before
            return kept
        whole = self._whole.get((name, dtype))
        if whole is None or len(whole) < size:
            whole = self._whole[name, dtype] = np.empty(max(size, 1_024), dtype)
        with torch.inference_mode(False):  # the next batch may come outside of it, and write here
            tensor = torch.from_numpy(whole[:size])
        kept = self._kept[name, dtype] = tensor, whole[:size]
        return kept

    def constant(self, dtype: Any, value: int, size: int) -> Array:
        """Return ``size`` times one number: numpy takes the minimum with an array in half the
        time of a scalar."""
        kept = self._constants.get((dtype, value))
        if kept is None or len(kept) < size:
            kept = self._constants[dtype, value] = np.full(max(size, 1_024), value, dtype)
        return kept[:size]


scratch = Scratch()


class Binning:
    """Bins between any ascending edges, float64: the bin of a score is the number of inner edges
    at or below it."""

    def __init__(self, edges: Floats, score_range: tuple[float, float]) -> None:
        self.edges = edges
        self.bins = len(edges) - 1
        self.score_range = score_range

    def ends(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return the lowest and the highest score, as the scores' own dtype can express them."""
        low, high = self.score_range
        near_low, near_high = np.asarray(self.score_range).astype(_NUMPY[dtype])
        return float(min(low, near_low)), float(max(high, near_high))

    def holds(self, scores: Tensor) -> Tensor:
        """Return which scores can be counted; NaN cannot."""
        low, high = self.ends(scores.dtype)
        return (scores >= low) & (scores <= high)

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        """Return the bin of each score, int64; some bin for one that cannot be counted.

        ``complement`` is one minus each score, where it is known better than that difference says.
        """
        return torch.searchsorted(
            _inner_edges(self, scores.dtype, scores.device), scores.contiguous(), right=True
        )

    def are_plain(self, scores: Array) -> bool:
        low, high = self.ends(torch.float32 if scores.itemsize == 4 else torch.float64)
        least, most = (
            np.minimum.reduce(scores, None, initial=high),
            np.maximum.reduce(scores, None, initial=low),
        )
        return bool(least >= low and most <= high)

    def codes(
        self, scores: Array, out: Array, complement: Array | None = None, step: int = 1
    ) -> None:
        """Write ``step`` times the bin of each plain score, float32 or float64, to ``out``,
        integers that can hold it.

        The cell of a score, (s - low) times a scale, cut off, never falls as the score rises,
        however it is rounded. So edges in lower cells are below the score, and only those in its
        own are left to compare.
        """
        cells = _cells(self, scores.dtype.char)
        if cells is None:
            np.multiply(
                np.searchsorted(_inner(self, scores.dtype.type), scores, side="right"),
                step,
                out=out,
            )
            return
        first, upper, scale, steps = cells
        size = len(scores)
        cell, bins = scratch.room("cell", np.int32, size), scratch.room("bin", np.int32, size)
        bound, beyond = (
            scratch.room("bound", scores.dtype.type, size),
            scratch.room("beyond", np.bool_, size),
        )
        _cell(scores, self.edges[0], scale, len(first), bound[1], cell[1])
        torch.index_select(first, 0, cell[0], out=bins[0])
        for _ in range(steps):
            torch.index_select(upper, 0, bins[0], out=bound[0])
            np.greater_equal(scores, bound[1], out=beyond[1])
            np.add(bins[1], beyond[1].view(np.int8), out=bins[1])
        np.multiply(bins[1], step, out=out, casting="unsafe")


class EvenBinning(Binning):
    """Even bins on [0, 1], a power of two of them: the product with it only moves the exponent,
    so it is exact."""

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        return (scores * self.bins).long().clamp_(0, self.bins - 1)

    def are_plain(self, scores: Array) -> bool:
        """Whether all scores can be counted by :meth:`codes`, by their largest bits.

        Read as unsigned integers, non-negative floats keep their order, and negative ones and NaN
        come after infinity, so one maximum shows that all is well. -0.0 does not pass.
        """
        bits = scores.view(UNSIGNED[scores.itemsize])
        return bool(np.maximum.reduce(bits, None, initial=0) <= _BITS_OF_ONE[scores.itemsize])

    def codes(
        self, scores: Array, out: Array, complement: Array | None = None, step: int = 1
    ) -> None:
        np.multiply(scores, scores.dtype.type(self.bins), out=out, casting="unsafe")
        np.minimum(out, self.bins - 1, out=out)
        if step > 1:
            out *= step


class TwoSidedBinning(EvenBinning):
    r"""Two-sided bins on [0, 1], by the bits of the score s and of its complement 1 - s, both at
    most a half.

    .. math:: t = bits(\min(s, \tfrac12)) - bits(\min(1 - s, \tfrac12))

    rises with s, exactly: one of the two is the half, and where that is s, 1 - s is exact
    (Sterbenz). Edges are short binary fractions, so the first bits of t, its cell, tell the bin.
    Only the end bins need all of t: a score of exactly 0 has the lowest t there can be, and a
    complement of exactly 0 the highest.
    """

    def __init__(self, bins: int) -> None:
        super().__init__(two_sided_edges(bins), (0.0, 1.0))
        *octaves, rest = octave_bins(bins)
        self.depth = max([*octaves, rest]).bit_length() - 1
        """Bits of the mantissa that a cell knows."""
        self.last = (len(octaves) + rest.bit_length()) << self.depth
        """The furthest cell from the middle; those beyond the last octave are as good as its
        last."""
        self.ring = 1 << (9 + self.depth)
        """Cells of all float32: by sign and exponent, and the mantissa's first bits."""

    def of(self, scores: Tensor, complement: Tensor | None = None) -> Tensor:
        size = scores.element_size()
        kind = torch.int32 if size == 4 else torch.int64
        other = 1 - scores if complement is None else complement
        # the absolute value makes -0.0 the 0 it is
        t = scores.abs().clamp_(max=0.5).view(kind) - other.clamp(max=0.5).view(kind)
        cell = (t >> (_MANTISSA[size] - self.depth)).clamp_(-self.last, self.last).add_(self.last)
        table = _bins_of_cells(self.bins, scores.device)
        bins = table.index_select(0, cell.reshape(-1)).view(scores.shape)
        bins.masked_fill_(t == -_BITS_OF_HALF[size], 0)
        return bins.masked_fill_(t == _BITS_OF_HALF[size], self.bins - 1)

    def codes(
        self, scores: Array, out: Array, complement: Array | None = None, step: int = 1
    ) -> None:
        if scores.itemsize == 8:
            self._codes_of_doubles(scores, out, complement, step)
            return
        ring = ring_of_bins(self.bins, out.dtype.char, step)
        if len(scores) <= _FEW:
            other = np.float32(1) - scores if complement is None else complement
            few = np.minimum(scores.view(np.int32), _HALF)
            few -= np.minimum(other.view(np.int32), _HALF)
            out[:] = ring.numpy()[few.view(np.uint32) >> (23 - self.depth)]
            out[few == -_HALF] = 0
            return
        cells, t = self._differences(scores, scores, complement)
        above_zero = t != -_HALF if np.minimum.reduce(t, initial=0) == -_HALF else None
        bits = t.view(np.uint32)
        np.right_shift(bits, np.uint32(23 - self.depth), out=bits)
        torch.index_select(ring, 0, cells, out=torch.from_numpy(out))
        if above_zero is not None:
            out *= above_zero  # a product takes a tenth of the time of a choice

    def _codes_of_doubles(
        self, scores: Array, out: Array, complement: Array | None, step: int
    ) -> None:
        half = _BITS_OF_HALF[8]
        cells, t = self._differences(scores, np.abs(scores), complement)
        above_zero = t != -half if np.minimum.reduce(t, initial=0) == -half else None
        ones = t == half if np.maximum.reduce(t, initial=0) == half else None
        np.right_shift(t, _MANTISSA[8] - self.depth, out=t)
        np.clip(t, -self.last, self.last, out=t)
        np.bitwise_and(t, self.ring - 1, out=t)
        ring = ring_of_bins(self.bins, out.dtype.char, step)
        torch.index_select(ring, 0, cells, out=torch.from_numpy(out))
        if above_zero is not None:
            out *= above_zero
        if ones is not None:  # the last bin is the highest code
            np.maximum(out, np.multiply(ones, (self.bins - 1) * step, dtype=out.dtype), out=out)

    def _differences(
        self, scores: Array, sizes: Array, complement: Array | None
    ) -> tuple[Tensor, Array]:
        """Return t of each score, as a tensor and as an array; ``sizes`` are the scores without
        their signs."""
        size = scores.itemsize
        kind = np.int32 if size == 4 else np.int64
        half = scratch.constant(kind, _BITS_OF_HALF[size], len(scores))
        tensor, t = scratch.room("t", kind, len(scores))
        _, other = scratch.room("other", kind, len(scores))
        np.minimum(sizes.view(kind), half, out=t)
        if complement is None:
            complement = np.subtract(scores.dtype.type(1), scores, out=other.view(scores.dtype))
        np.minimum(complement.view(kind), half, out=other)
        np.subtract(t, other, out=t)
        return tensor, t


@lru_cache(maxsize=16)
def octave_bins(bins: int) -> tuple[int, ...]:
    """Return how many bins each octave has, from the middle to the end, and the rest; half of
    ``bins`` in all.

    Every octave gets one bin, then the octave that is furthest below its share gets twice as many,
    while that fits. Where there are few bins there are fewer octaves, so that two thirds of the
    bins are left for the middle. The rest has two bins at least, one of them for the end itself: if
    need be, the last octave is part of it.
    """
    side = bins // 2
    octaves = min(len(_SHARES) - 1, max(side // 3, 1))
    shares = [*_SHARES[:octaves], _SHARES[-1]]
    found = [1] * len(shares)
    while (left := side - sum(found)) > 0:
        fitting = [j for j in range(len(shares)) if found[j] <= left]
        furthest = max(fitting, key=lambda j: (shares[j] / found[j], -j))
        found[furthest] *= 2
    if found[-1] == 1:  # then the last octave has one bin as well, as wide as the rest
        found[-2:] = [2]
    return tuple(found)


@lru_cache(maxsize=16)
def smooth_edges(bins: int) -> Floats:
    r"""Return ``bins + 1`` edges, ascending from 0 to 1, all of them exact: bins that narrow
    towards both ends.

    With d the distance of a score from the nearer end, octave j is :math:`2^{-j-2} \le d <
    2^{-j-1}`. Each is cut into a power of two of even bins, so that every edge is a short binary
    fraction. These edges place leaves. The bins themselves differ at the ends: see
    :func:`two_sided_edges`.
    """
    *octaves, rest = octave_bins(bins)
    end = 2.0 ** -(len(octaves) + 1)
    parts = [end * np.arange(rest) / rest]
    for j, count in reversed(list(enumerate(octaves))):
        parts.append(2.0 ** -(j + 2) * (1 + np.arange(count) / count))
    low = np.concatenate(parts)
    edges: Floats = np.concatenate([low, [0.5], (1 - low)[::-1]])
    edges.setflags(write=False)
    return edges


@lru_cache(maxsize=16)
def two_sided_edges(bins: int) -> Floats:
    """Return the ``bins + 1`` edges of a two-sided grid: the smooth ones, with end bins for exactly
    0 and exactly 1.

    The first bin ends at the smallest number above 0. The last bin begins at 1, and its upper edge
    is the next number.
    """
    edges: Floats = smooth_edges(bins).copy()
    edges[1] = SMALLEST
    edges[-2] = 1.0
    edges[-1] = ABOVE_ONE
    edges.setflags(write=False)
    return edges


@lru_cache(maxsize=16)
def _bins_of_cells(bins: int, device: torch.device) -> Tensor:
    """Return the bin of each cell from the first on, int64."""
    binning = TwoSidedBinning(bins)
    low, cell = binning.edges[: bins // 2 + 1], np.arange(binning.last + 1, dtype=np.int64)
    # the distance of a cell's lowest score from the nearer end: the half, that many cells further
    # out
    distance = np.maximum(_BITS_OF_HALF[8] - (cell << (52 - binning.depth)), 0).view(np.float64)
    upper = bins - 1 - np.maximum(np.searchsorted(low, distance, side="left") - 1, 0)
    lower = np.minimum(np.searchsorted(low, distance[:0:-1], side="right") - 1, bins // 2 - 1)
    return torch.from_numpy(np.concatenate([lower, upper])).to(device)


@lru_cache(maxsize=16)
def ring_of_bins(bins: int, char: str, step: int) -> Tensor:
    """Return ``step`` times the bins of all cells of float32 scores; negative cells from the end
    of the ring."""
    binning, table = TwoSidedBinning(bins), _bins_of_cells(bins, torch.device("cpu")).numpy()
    last, ring = binning.last, np.empty(binning.ring, char)
    ring[: len(ring) // 2] = bins - 2
    ring[len(ring) // 2 :] = 1
    ring[: last + 1] = table[last:]
    ring[-last:] = table[:last]
    # a complement of exactly 0 has a cell of its own; a score of exactly 0 shares that of the
    # smallest scores
    ring[_BITS_OF_HALF[4] >> (23 - binning.depth)] = bins - 1
    # unchecked, -0.0 arrives as well: its bits, less those of the half, wrap around to this cell
    ring[(0x8000_0000 - _BITS_OF_HALF[4]) >> (23 - binning.depth)] = 0
    return torch.from_numpy(ring * ring.dtype.type(step))


def _inner(binning: Binning, dtype: Any) -> Array:
    """Return the inner edges in another dtype, rounded up: a score of that dtype compares with
    them alike."""
    near: Array = binning.edges[1:-1].astype(dtype)
    return np.where(near < binning.edges[1:-1], np.nextafter(near, dtype(np.inf)), near)


@lru_cache(maxsize=16)
def _inner_edges(binning: Binning, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(_inner(binning, _NUMPY[dtype])).to(device)


def _cell(scores: Array, low: float, scale: float, cells: int, room: Array, out: Array) -> None:
    np.subtract(scores, room.dtype.type(low), out=room)
    np.multiply(room, room.dtype.type(scale), out=room)
    np.copyto(out, room, casting="unsafe")
    np.clip(out, 0, cells - 1, out=out)


@lru_cache(maxsize=16)
def _cells(binning: Binning, char: str) -> tuple[Tensor, Tensor, float, int] | None:
    """Return the first bin of each cell, each bin's upper edge, the scale, and the most edges in a
    cell.

    None where edges crowd so that looking for them is faster.
    """
    dtype: Any = np.dtype(char).type
    inner, low, width = (
        _inner(binning, dtype),
        binning.edges[0],
        binning.edges[-1] - binning.edges[0],
    )
    cell, steps = np.empty(len(inner), np.int32), _MOST_STEPS + 1
    for power in range((_CELLS_A_BIN * binning.bins - 1).bit_length(), _MOST_CELLS.bit_length(), 2):
        size = 1 << power
        scale = size / width
        if not np.isfinite(dtype(scale)):
            return None
        _cell(inner, low, scale, size, np.empty(len(inner), dtype), cell)
        steps = int(np.bincount(cell).max())
        if steps == 1:
            break
    if steps > _MOST_STEPS:
        return None
    first = np.searchsorted(cell, np.arange(size), side="left").astype(np.int32)
    upper = np.append(inner, dtype(np.inf))
    return torch.from_numpy(first), torch.from_numpy(upper), scale, steps
