"""Plain scores and labels in this machine's memory, which is nearly every batch, into counts.

numpy does here what torch does elsewhere: a call costs half, which is most of what a small batch
costs, and never enters torch's OpenMP pool, so that large ones can be cut to fit the cache. What is
not plain by its bits is left to the kernel that looks closer.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import UNSIGNED, Array, Binning, scratch
from torchmetrics_fed.counting.validation import Rules, probabilities, wide
from torchmetrics_fed.typing import Places

# Tensors of at most this size never enter torch's OpenMP pool, which a busy neighbour can stall a
# hundredfold.
CHUNK = 32_768
# Up to here, or as many as there are bins, adding each example to the counts is cheaper than a
# histogram of its own.
FEW = 32_768
# A piece stays in cache after its first pass; the codes of several go into one histogram, whose
# making and adding up costs as much as ten thousand examples.
PIECE, GROUP = 131072, 524_288
_ONES = torch.ones(CHUNK, dtype=torch.int64, device="cpu")


def add_flat(
    counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules, binning: Binning
) -> bool:
    """Add a flat batch to ``counts`` in place and return True, or add nothing and return False if
    it is not plain.

    The counts are those of a binary task, ``(1, rows, bins)``, contiguous. Without
    ``rules.validate`` every batch is taken for plain.
    """
    if len(scores) > max(FEW, binning.bins):
        return _add_histogram(counts, scores, labels, rules, binning)
    score, label = _kept(scores, labels, rules)
    if not _are_plain(score, label, rules, binning):
        return False
    score, complement = _normalized(score, rules)
    _, code = scratch.room("code", _code_type(counts.numel()), len(score))
    binning.codes(score, code, complement)
    index = np.multiply(label, binning.bins, dtype=np.int64)
    index += code
    np.add.at(counts.numpy().reshape(-1), index, 1)
    return True


def _add_histogram(
    counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules, binning: Binning
) -> bool:
    """Write codes narrow enough for one histogram of both classes, and add it when every piece
    has passed."""
    kept, bins = counts.shape[1:]
    rows = kept + (rules.ignore_index is not None)  # the last takes what is ignored
    group = min(GROUP, len(scores)) if torch.get_num_threads() == 1 else CHUNK
    kind = _code_type(rows * bins)
    codes, array = scratch.room("codes", kind, group)
    total = np.zeros(rows * bins, np.int64)
    for start in range(0, len(scores), group):
        filled, stop = 0, min(start + group, len(scores))
        for at in range(start, stop, PIECE):
            piece = slice(at, min(at + PIECE, stop))
            score, label = wide(scores[piece]).contiguous().numpy(), labels[piece].numpy()
            _, row = scratch.room("row", kind, len(label))
            row[:] = label
            ignored = None if rules.ignore_index is None else label == rules.ignore_index
            if not _are_plain(score, label, rules, binning, ignored):
                return False
            if ignored is not None:
                row *= ~ignored  # a product takes a tenth of the time of a choice
                row += np.multiply(ignored, kept, dtype=kind)
            score, complement = _normalized(score, rules)
            code = array[filled : filled + len(score)]
            binning.codes(score, code, complement)
            row *= bins
            code += row
            filled += len(score)
        total += torch.bincount(codes[:filled], minlength=len(total)).numpy()
    sums = counts.numpy()
    sums[0] += total.reshape(rows, bins)[:kept]
    return True


def add_columns(
    counts: Tensor,
    chunks: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    rules: Rules,
    binning: Binning,
) -> bool:
    """Add all chunks to ``counts`` in place and return True, or add nothing and return False if one
    is not plain.

    The counts are those of several classes or labels, ``(columns, rows, bins)``, in the kernel's
    own order in memory. Chunks are scores ``(n, columns)`` and labels, up to :data:`CHUNK` scores,
    or one example, at a time.
    """
    columns, rows, bins = counts.shape
    if rules.ignore_index is not None and rules.task != "multiclass":
        return False
    # all of it before anything is counted
    if rules.validate and not all(
        _are_plain(*_kept(*chunk, rules), rules, binning) for chunk in chunks()
    ):
        return False
    flat, below = (
        counts.permute(1, 2, 0).view(-1),
        bins * columns,
    )  # how far one row lies below another
    for scores, labels in chunks():
        score, label = _kept(scores, labels, rules)
        (cells, cell), examples = scratch.room("cells", np.int64, score.size), len(score)
        score, complement = _normalized(score, rules)
        binning.codes(score, cell, complement, columns)
        cell += _numbers(columns, examples)
        if rules.task != "multiclass":
            cell += np.multiply(label.reshape(-1), below, dtype=np.int64)
        elif rules.are_pairs(columns, rows):
            cell.reshape(examples, columns)[:] += np.multiply(label, below, dtype=np.int64)[:, None]
        else:  # everybody is a negative but in the column of the true class
            if rules.groups > 1:
                group, label = np.divmod(label, columns)
                cell.reshape(examples, columns)[:] += (group * (2 * below))[:, None]
            cell[np.arange(0, len(cell), columns) + label] += below
        flat.scatter_add_(
            0, cells, _ONES[: len(cells)] if len(cells) <= CHUNK else torch.ones_like(cells)
        )
    return True


@lru_cache(maxsize=4)  # most chunks are as large as the one before
def _numbers(columns: int, examples: int) -> Places:
    """Return the column of each score of a chunk."""
    return np.tile(np.arange(columns), examples)


def _are_plain(
    scores: Array, labels: Array, rules: Rules, binning: Binning, ignored: Array | None = None
) -> bool:
    """Whether all can be counted: scores as they are, logits after normalization, labels from 0
    to the highest."""
    if not rules.validate:
        return True
    # read as unsigned, negative ones are the largest
    bits, highest = labels.view(UNSIGNED[labels.itemsize]), rules.highest(scores.shape[-1])
    if ignored is not None:
        known = (ignored | (bits <= highest)).all()
    else:
        known = np.maximum.reduce(bits, None, initial=0) <= highest
    if rules.normalization:
        return bool(known and np.isfinite(scores).all())
    return bool(known and binning.are_plain(scores))


def _normalized(scores: Array, rules: Rules) -> tuple[Array, Array | None]:
    if rules.normalization is None:
        return scores.reshape(-1), None
    score, complement = probabilities(torch.from_numpy(scores), rules.normalization)
    return score.view(-1).numpy(), None if complement is None else complement.view(-1).numpy()


def _kept(scores: Tensor, labels: Tensor, rules: Rules) -> tuple[Array, Array]:
    score, label = wide(scores).contiguous().numpy(), labels.numpy()
    if rules.ignore_index is None:
        return score, label
    kept = np.flatnonzero(
        label != rules.ignore_index
    )  # indices take a quarter of the time of a mask
    return score.take(kept, 0), label.take(kept)


def _code_type(slots: int) -> Any:
    return np.int16 if slots <= 32_767 else np.int32
