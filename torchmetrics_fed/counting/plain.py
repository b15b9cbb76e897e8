"""PlainKernel: scores in [0, 1] and labels 0 and 1 in this machine's memory, which is nearly every batch, into counts.

numpy does here what torch does elsewhere: a call costs half, which is most of what a small batch costs, and never
enters torch's OpenMP pool, so that large ones can be cut to fit the cache. What is not plain by its bits is left to the
kernel that looks closer.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CHUNK", "PlainKernel"]

# Tensors of at most this size never enter torch's OpenMP pool, which a busy neighbour can stall a hundredfold.
CHUNK = 32_768
# Up to here, or as many as there are bins, adding each example to the counts is cheaper than a histogram of its own.
FEW = 32_768
# A piece stays in cache after its first pass; the codes of several go into one histogram, whose making and adding up
# costs as much as ten thousand examples.
PIECE, GROUP = 131_072, 524_288

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BITS_OF_ONE: dict[int, int] = {4: 0x3F80_0000, 8: 0x3FF0_0000_0000_0000}


class _Scratch(threading.local):
    """Room for codes and labels, each thread's own: fresh memory costs as much as a quarter of the counting."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Tensor, NDArray[Any]]] = {}

    def of(self, dtype: torch.dtype) -> tuple[Tensor, NDArray[Any]]:
        """Return room for a group of codes and a piece of labels."""
        kind = dtype, GROUP, PIECE
        if kind not in self._kept:
            codes = torch.empty(GROUP, dtype=dtype)
            self._kept[kind] = codes, np.empty(PIECE, codes.numpy().dtype)
        return self._kept[kind]


_scratch = _Scratch()


class PlainKernel:
    """Counts plain batches into ``bins`` even bins on [0, 1]; a power of two, so that scaling only moves exponents."""

    def __init__(self, bins: int) -> None:
        self.bins = bins

    def add(self, counts: Tensor, scores: Tensor, labels: Tensor, ignore_index: int | None, validate: bool) -> bool:
        """Add a flat batch to ``counts`` in place and return True, or add nothing and return False if it is not plain.

        Args:
            counts: int64, ``(1, 2, bins)``, contiguous.
            scores: of any floating dtype, detached.
            labels: bool or of any integer dtype.
            ignore_index: label of the examples to leave out, whatever their score.
            validate: whether to look at the values; off, every batch is taken for plain.
        """
        if len(scores) > max(FEW, self.bins):
            return self._add_histogram(counts, scores, labels, ignore_index, validate)
        score, label = _kept(_array(scores), labels.numpy(), ignore_index)
        if validate and not _are_plain(score, label):
            return False
        index = (score * self.bins).astype(np.int64)
        np.minimum(index, self.bins - 1, out=index)
        index += np.multiply(label, self.bins, dtype=np.int64)
        np.add.at(counts.view(-1).numpy(), index, 1)
        return True

    def _add_histogram(
        self, counts: Tensor, scores: Tensor, labels: Tensor, ignore_index: int | None, validate: bool
    ) -> bool:
        """Write codes narrow enough for one histogram of both classes, and add it when every piece has passed."""
        width = self.bins + 1  # a score of 1 falls in the extra column, which saves a pass
        examples, group = len(scores), CHUNK if torch.get_num_threads() > 1 else GROUP
        codes, rows = _scratch.of(torch.int16 if 2 * width <= 32_767 else torch.int32)
        total = np.zeros(2 * width, np.int64)
        for start in range(0, examples, group):
            filled, stop = 0, min(start + group, examples)
            for at in range(start, stop, PIECE):
                piece = slice(at, min(at + PIECE, stop))
                score, label = _kept(_array(scores[piece]), labels[piece].numpy(), ignore_index)
                if validate and not _are_plain(score, label):
                    return False
                code, row = codes.numpy()[filled : filled + len(score)], rows[: len(score)]
                np.multiply(score, score.dtype.type(self.bins), out=code, casting="unsafe")
                row[:] = label
                row *= width
                code += row
                filled += len(score)
            total += torch.bincount(codes[:filled], minlength=2 * width).numpy()
        both = total.reshape(2, width)
        both[:, -2] += both[:, -1]
        sums = counts.numpy()
        sums[0] += both[:, :-1]
        return True


def _array(scores: Tensor) -> NDArray[Any]:
    """The scores as float32 or float64."""
    wide = scores.dtype == torch.float32 or scores.dtype == torch.float64
    return scores.numpy() if wide else scores.float().numpy()


def _kept(scores: NDArray[Any], labels: NDArray[Any], ignore_index: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is not ignored. Indices take a quarter of the time of a mask."""
    if ignore_index is None:
        return scores, labels
    kept = np.flatnonzero(labels != ignore_index)
    return scores.take(kept), labels.take(kept)


def _are_plain(scores: NDArray[Any], labels: NDArray[Any]) -> bool:
    """Whether all scores are in [0, 1] and all labels 0 or 1, by their largest bits.

    Read as unsigned integers, non-negative floats keep their order, and negative ones and NaN come after infinity, so
    one maximum shows that all is well. -0.0 does not pass.
    """
    score_bits, label_bits = scores.view(_UNSIGNED[scores.itemsize]), labels.view(_UNSIGNED[labels.itemsize])
    return bool(
        np.maximum.reduce(score_bits, initial=0) <= _BITS_OF_ONE[scores.itemsize]
        and np.maximum.reduce(label_bits, initial=0) <= 1
    )
