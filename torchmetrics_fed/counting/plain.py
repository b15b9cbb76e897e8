"""Plain scores and labels in this machine's memory, which is nearly every batch, into counts.

numpy does here what torch does elsewhere: a call costs half, which is most of what a small batch costs, and never
enters torch's OpenMP pool, so that large ones can be cut to fit the cache. What is not plain by its bits is left to the
kernel that looks closer.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import UNSIGNED, Array, Binning, scratch
from torchmetrics_fed.counting.rules import Rules, probabilities, wide
from torchmetrics_fed.typing import Places

# Tensors of at most this size never enter torch's OpenMP pool, which a busy neighbour can stall a hundredfold.
CHUNK = 32_768
# Up to here, or as many as there are bins, adding each example to the counts is cheaper than a histogram of its own.
FEW = 32_768
# A piece stays in cache after its first pass; the codes of several go into one histogram, whose making and adding up
# costs as much as ten thousand examples.
PIECE, GROUP = 131072, 524_288


class PlainKernel:
    """Counts plain batches of a binary task."""

    def __init__(self, binning: Binning) -> None:
        self.binning, self.bins = binning, binning.bins

    def add(self, counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules) -> bool:
        """Add a flat batch to ``counts`` in place and return True, or add nothing and return False if it is not plain.

        The counts are ``(1, rows, bins)``, contiguous. Without ``rules.validate`` every batch is taken for plain.
        """
        if len(scores) > max(FEW, self.bins):
            return self._add_histogram(counts, scores, labels, rules)
        score, label = _kept(scores, labels, rules)
        if rules.validate and not (are_plain(score, self.binning, rules) and are_labels(label, rules.highest(1))):
            return False
        score, complement = normalized(score, rules)
        _, code = scratch.room("code", _code_type(counts.numel()), len(score))
        self.binning.codes(score, code, complement)
        index = np.multiply(label, self.bins, dtype=np.int64)
        index += code
        np.add.at(counts.numpy().reshape(-1), index, 1)
        return True

    def _add_histogram(self, counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules) -> bool:
        """Write codes narrow enough for one histogram of both classes, and add it when every piece has passed."""
        kept = counts.shape[1]
        rows = kept + (rules.ignore_index is not None)  # the last takes what is ignored
        group = min(GROUP, len(scores)) if torch.get_num_threads() == 1 else CHUNK
        kind = _code_type(rows * self.bins)
        codes, array = scratch.room("codes", kind, group)
        total = np.zeros(rows * self.bins, np.int64)
        for start in range(0, len(scores), group):
            filled, stop = 0, min(start + group, len(scores))
            for at in range(start, stop, PIECE):
                piece = slice(at, min(at + PIECE, stop))
                score, label = as_array(scores[piece]), labels[piece].numpy()
                if rules.validate and not are_plain(score, self.binning, rules):
                    return False
                row = _rows(label, rules, kind)
                if row is None:
                    return False
                score, complement = normalized(score, rules)
                code = array[filled : filled + len(score)]
                self.binning.codes(score, code, complement)
                row *= self.bins
                code += row
                filled += len(score)
            total += torch.bincount(codes[:filled], minlength=len(total)).numpy()
        sums = counts.numpy()
        sums[0] += total.reshape(rows, self.bins)[:kept]
        return True


class ColumnKernel:
    """Counts plain batches of several classes or labels."""

    def __init__(self, binning: Binning) -> None:
        self.binning, self.bins = binning, binning.bins
        self._tile: tuple[int, Places] = 0, np.empty(0, np.int64)
        self._one = torch.ones(CHUNK, dtype=torch.int64, device="cpu")

    def add(self, counts: Tensor, chunks: Callable[[], Iterable[tuple[Tensor, Tensor]]], rules: Rules) -> bool:
        """Add all chunks to ``counts`` in place and return True, or add nothing and return False if one is not plain.

        The counts are ``(columns, rows, bins)``, in the kernel's own order in memory. Chunks are scores ``(n,
        columns)`` and labels, a bounded number at a time.
        """
        columns, rows, bins = counts.shape
        if rules.ignore_index is not None and rules.task != "multiclass":
            return False
        if rules.validate:  # all of it before anything is counted
            for scores, labels in chunks():
                score, label = _kept(scores, labels, rules)
                good = are_plain(score.reshape(-1), self.binning, rules) and are_labels(label, rules.highest(columns))
                if not good:
                    return False
        flat, below = counts.permute(1, 2, 0).view(-1), bins * columns  # how far one row lies below another
        for scores, labels in chunks():
            score, label = _kept(scores, labels, rules)
            (cells, cell), examples = scratch.room("cells", np.int64, score.size), len(score)
            score, complement = normalized(score, rules)
            self.binning.codes(score, cell, complement, columns)
            cell += self._numbers(columns, len(cell))
            if rules.task != "multiclass":
                cell += np.multiply(label.reshape(-1), below, dtype=np.int64)
            elif rules.are_pairs(columns, rows):
                cell.reshape(examples, columns)[:] += np.multiply(label, below, dtype=np.int64)[:, None]
            else:  # everybody is a negative but in the column of the true class
                if rules.groups > 1:
                    group, label = np.divmod(label, columns)
                    cell.reshape(examples, columns)[:] += (group * (2 * below))[:, None]
                cell[np.arange(0, len(cell), columns) + label] += below
            flat.scatter_add_(0, cells, self._one[: len(cells)] if len(cells) <= CHUNK else torch.ones_like(cells))
        return True

    def _numbers(self, columns: int, size: int) -> Places:
        known, tile = self._tile
        if known != columns or len(tile) < size:
            tile = np.tile(np.arange(columns), -(-size // columns))
            self._tile = columns, tile
        return tile[:size]


def as_array(scores: Tensor) -> Array:
    return wide(scores).contiguous().numpy()


def are_plain(scores: Array, binning: Binning, rules: Rules) -> bool:
    """Whether all scores can be counted as they are, or all logits after normalization."""
    return bool(np.isfinite(scores).all()) if rules.normalization else binning.are_plain(scores)


def normalized(scores: Array, rules: Rules) -> tuple[Array, Array | None]:
    if rules.normalization is None:
        return scores.reshape(-1), None
    score, complement = probabilities(torch.from_numpy(scores), rules.normalization)
    return score.view(-1).numpy(), None if complement is None else complement.view(-1).numpy()


def are_labels(labels: Array, highest: int) -> bool:
    """Whether all labels are from 0 to ``highest``; read as unsigned, negative ones are the largest."""
    bits = labels.view(UNSIGNED[labels.itemsize])
    return bool(np.maximum.reduce(bits, axis=None, initial=0) <= highest)


def _kept(scores: Tensor, labels: Tensor, rules: Rules) -> tuple[Array, Array]:
    score, label = as_array(scores), labels.numpy()
    if rules.ignore_index is None:
        return score, label
    kept = np.flatnonzero(label != rules.ignore_index)  # indices take a quarter of the time of a mask
    return score.take(kept, 0), label.take(kept)


def _rows(label: Array, rules: Rules, kind: Any) -> Array | None:
    """Return each label as a row of the histogram, the last for what is ignored; None where a label is not plain."""
    highest, (_, row) = rules.highest(1), scratch.room("row", kind, len(label))
    row[:] = label
    if rules.ignore_index is None:
        return None if rules.validate and not are_labels(label, highest) else row
    ignored = label == rules.ignore_index
    if rules.validate and not (ignored | (label.view(UNSIGNED[label.itemsize]) <= highest)).all():
        return None
    row *= ~ignored  # a product takes a tenth of the time of a choice
    row += np.multiply(ignored, highest + 1, dtype=kind)
    return row


def _code_type(slots: int) -> Any:
    return np.int16 if slots <= 32_767 else np.int32
