"""Fast: batches in the memory of the machine into counts, with numpy and a table of bins.

Nearly every batch comes here: on the CPU, without weights, every score in [0, 1], every label in
range. What is different is left to the plain torch operations of
:mod:`torchmetrics_fed.counting.batch`, which count the same to the bit. `python -m benchmarks.fast`
measures what this file gains (CPU time of one update, one thread):

====================  ========  ========  ======
batch                 plain     fast      gain
====================  ========  ========  ======
32 scores             64 us     17 us     3.7
1,024 scores          84 us     25 us     3.4
1,000,000 scores      111 ms    2.6 ms    44
1,024 x 10 softmax    1.2 ms    55 us     22
256 x 1,000 softmax   23 ms     0.9 ms    25
====================  ========  ========  ======

Two ideas make it fast. A call of numpy costs half of a call of torch, and never enters torch's
OpenMP pool, so large batches can be cut into chunks that stay in cache. And the bin of a score is
looked up by its first bits, with no search:

.. math:: t = bits(\\min(s, \\tfrac12)) - bits(\\min(1 - s, \\tfrac12))

rises with the score s, exactly: one of the two is the half, and where that is s, 1 - s is exact
(Sterbenz). The edges of a two-sided grid are short binary fractions, so the first bits of t, its
cell, give the bin. Only the end bins need all of t: a score of exactly 0 has the lowest t there can
be, and a complement of exactly 0 the highest.
"""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning, EvenBinning, TwoSidedBinning, rounded_up
from torchmetrics_fed.counting.chunks import Chunk, Chunks
from torchmetrics_fed.counting.edges import octave_bins, two_sided_edges
from torchmetrics_fed.counting.validation import Rules, add_up, probabilities, wide
from torchmetrics_fed.typing import Places

Array: TypeAlias = NDArray[Any]

MOST_TABLE_BINS = 1 << 16
"""The largest two-sided grid with a table. Beyond it, the table is larger than it is worth."""

FEW = 128
"""Up to this number of scores a search takes less time than the operations for a table."""

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""The unsigned integers of each number of bytes."""


class Format(NamedTuple):
    """A binary floating format."""

    integer: Any
    """The signed integers of the same size."""
    mantissa: int
    """The number of bits of the mantissa."""
    half: int
    """The bits of 0.5."""
    unit: int
    """The bits of 1."""


FORMATS = {
    4: Format(integer=np.int32, mantissa=23, half=0x3F00_0000, unit=0x3F80_0000),
    8: Format(
        integer=np.int64,
        mantissa=52,
        half=0x3FE0_0000_0000_0000,
        unit=0x3FF0_0000_0000_0000,
    ),
}
"""Float32 and float64, by their number of bytes."""


def has_fast_way(binning: Binning, rules: Rules) -> bool:
    """Whether there is a table, or a product, for these bins, and one mask for what is ignored."""
    if rules.task == "multilabel" and rules.ignore_index is not None:
        return False
    if isinstance(binning, TwoSidedBinning):
        return binning.bins <= MOST_TABLE_BINS
    return isinstance(binning, EvenBinning)


def add_fast(counts: Tensor, chunks: Chunks, binning: Binning, rules: Rules) -> bool:
    """Add a batch to ``counts`` and return True, or add nothing and return False.

    False means that the batch is not plain: see :func:`_is_plain`. Without ``rules.validate`` every
    batch is taken for plain.

    Args:
        counts: int64 ``(columns, rows, bins)``; in memory ``(rows, bins, columns)``.
        chunks: the batch, in the memory of the machine.
        binning: bins that :func:`has_fast_way` is true for.
        rules: how the batch is read.
    """
    is_checked = not rules.validate
    if chunks.several and not is_checked:
        if not all(_is_plain(*_arrays(chunk, rules), rules) for chunk in chunks):
            return False
        is_checked = True
    columns, rows, bins = counts.shape
    cells = counts.view(-1) if columns == 1 else counts.permute(1, 2, 0).view(-1)
    for chunk in chunks:
        scores, labels = _arrays(chunk, rules)
        if not is_checked and not _is_plain(scores, labels, rules):
            return False
        index = _bins_times(columns, scores, binning, rules)
        if columns == 1:
            index += np.multiply(labels, bins, dtype=np.int64)
        else:
            _add_columns_and_rows(index, labels, (columns, rows, bins), rules)
        cells.scatter_add_(0, torch.from_numpy(index), _ones(len(index)))
    return True


def _arrays(chunk: Chunk, rules: Rules) -> tuple[Array, Array]:
    """Return scores, float32 or float64, and labels, without those that are ignored."""
    scores = wide(chunk.scores).contiguous().numpy()
    labels = chunk.labels.numpy()
    if rules.ignore_index is None:
        return scores, labels
    # indices take a quarter of the time of a mask
    places = np.flatnonzero(labels != rules.ignore_index)
    return scores.take(places, 0), labels.take(places)


def _is_plain(scores: Array, labels: Array, rules: Rules) -> bool:
    """Whether all labels are in range and all scores in [0, 1], or finite if they are logits.

    Read as unsigned integers, non-negative floats keep their order, and negative ones and NaN come
    after infinity: one maximum shows that all is well. -0.0 does not pass. Negative labels, read as
    unsigned integers, are the largest.
    """
    columns = scores.shape[-1]
    label_bits = labels.view(UNSIGNED[labels.itemsize])
    if np.maximum.reduce(label_bits, None, initial=0) > rules.highest(columns):
        return False
    if rules.normalization:
        return bool(np.isfinite(scores).all())
    score_bits = scores.view(UNSIGNED[scores.itemsize])
    if np.maximum.reduce(score_bits, None, initial=0) > FORMATS[scores.itemsize].unit:
        return False
    return not rules.checks_sums or bool(add_up(torch.from_numpy(scores)).all())


def _bins_times(step: int, scores: Array, binning: Binning, rules: Rules) -> Places:
    """Return ``step`` times the bin of each plain score, int64, flat."""
    complements = None
    if rules.normalization is not None:
        probability, complement = probabilities(torch.from_numpy(scores), rules.normalization)
        scores = probability.numpy()
        if complement is not None:
            complements = complement.view(-1).numpy()
    scores = scores.reshape(-1)
    if len(scores) <= FEW and complements is None:
        places: Places = _inner_edges(binning, scores.dtype).searchsorted(scores, "right")
        if step > 1:
            places *= step
        return places
    if isinstance(binning, TwoSidedBinning):
        return _two_sided_bins_times(step, scores, complements, binning.bins)
    bins: Places = np.multiply(scores, scores.dtype.type(binning.bins)).astype(np.int64)
    np.minimum(bins, binning.bins - 1, out=bins)
    bins *= step
    return bins


def _two_sided_bins_times(step: int, scores: Array, complements: Array | None, bins: int) -> Places:
    """Look the bin of each score up, by the first bits of its t."""
    table = bin_table(bins, step)
    form = FORMATS[scores.itemsize]
    half = _halves(scores.itemsize, len(scores))
    if complements is None:
        complements = scores.dtype.type(1) - scores
    if scores.itemsize == 8:
        scores = np.abs(scores)  # -0.0, which may come unchecked, is the 0 that it is
    t = np.minimum(scores.view(form.integer), half)
    t -= np.minimum(complements.view(form.integer), half)
    shift = form.mantissa - table.depth
    if scores.itemsize == 4:
        cell = (t.view(np.uint32) >> np.uint32(shift)).view(np.int32)
    else:
        cell = np.clip(t >> shift, -table.last, table.last) & (len(table.bins) - 1)
    # with 32-bit indices, numpy's own `take` takes four times as long
    index: Places = torch.index_select(table.bins, 0, torch.from_numpy(cell)).numpy()
    if np.minimum.reduce(t, initial=0) == -form.half:
        index[t == -form.half] = 0
    if scores.itemsize == 8 and np.maximum.reduce(t, initial=0) == form.half:
        index[t == form.half] = (bins - 1) * step
    return index


def _add_columns_and_rows(
    index: Places, labels: Array, shape: tuple[int, int, int], rules: Rules
) -> None:
    """Turn ``columns`` times the bin of each score into its cell in ``(rows, bins, columns)``."""
    columns, rows, bins = shape
    row = bins * columns
    examples = len(index) // columns
    index += _column_numbers(columns, examples)
    if rules.task == "multilabel":
        index += np.multiply(labels.reshape(-1), row, dtype=np.int64)
    elif rules.are_pairs(columns, rows):
        index.reshape(examples, columns)[:] += np.multiply(labels, row, dtype=np.int64)[:, None]
    else:  # every example is a negative, but in the column of its class
        if rules.groups > 1:
            groups, labels = np.divmod(labels, columns)
            index.reshape(examples, columns)[:] += (groups * (2 * row))[:, None]
        index[np.arange(0, len(index), columns) + labels] += row


class BinTable:
    """``step`` times the bin of each cell of float32 scores.

    A cell is negative below the middle of the range. Such cells stand at the end of the table, as
    their bits read without a sign do.
    """

    def __init__(self, bins: int, step: int) -> None:
        form = FORMATS[4]
        *octaves, rest = octave_bins(bins)
        self.depth = max([*octaves, rest]).bit_length() - 1
        """The number of bits of the mantissa in a cell."""
        self.last = (len(octaves) + rest.bit_length()) << self.depth
        """The furthest cell from the middle; beyond it, all cells are in the same bin."""
        shift = form.mantissa - self.depth
        table = np.empty(1 << (32 - shift), np.int64)
        table[: len(table) // 2] = bins - 2
        table[len(table) // 2 :] = 1
        lower, upper = self._halves(bins)
        table[: self.last + 1] = upper
        table[-self.last :] = lower
        table[form.half >> shift] = bins - 1  # a complement of exactly 0 has a cell of its own
        # -0.0, which may come unchecked: its bits, less those of the half, wrap around
        table[(0x8000_0000 - form.half) >> shift] = 0
        self.bins = torch.from_numpy(table * step)

    def _halves(self, bins: int) -> tuple[Places, Places]:
        """Return the bins of the cells below the middle, and from the middle on."""
        form = FORMATS[8]
        low_edges = two_sided_edges(bins)[: bins // 2 + 1]
        cells = np.arange(self.last + 1, dtype=np.int64)
        bits = form.half - (cells << (form.mantissa - self.depth))
        # of a cell's lowest score, the distance from the nearer end
        distance = np.maximum(bits, 0).view(np.float64)
        upper = bins - 1 - np.maximum(np.searchsorted(low_edges, distance, side="left") - 1, 0)
        lower = np.searchsorted(low_edges, distance[:0:-1], side="right") - 1
        return np.minimum(lower, bins // 2 - 1), upper


@lru_cache(maxsize=16)
def _inner_edges(binning: Binning, dtype: np.dtype[Any]) -> Array:
    return rounded_up(binning.edges[1:-1], dtype.type)


@lru_cache(maxsize=16)
def bin_table(bins: int, step: int) -> BinTable:
    return BinTable(bins, step)


# Most chunks are as large as the one before, so constants of their size are kept.


@lru_cache(maxsize=8)
def _halves(itemsize: int, size: int) -> Array:
    """Return the bits of the half ``size`` times: a minimum with a scalar is three times slower."""
    form = FORMATS[itemsize]
    return np.full(size, form.half, form.integer)


@lru_cache(maxsize=8)
def _ones(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.int64)


@lru_cache(maxsize=8)
def _column_numbers(columns: int, examples: int) -> Places:
    """Return the column of each score of a chunk."""
    return np.tile(np.arange(columns), examples)
