"""PlainKernel: binary scores and labels in this machine's memory, which is nearly every batch, into counts.

numpy does here what torch does elsewhere: a call costs half, which is most of what a small batch costs, and never
enters torch's OpenMP pool, so that large ones can be cut to fit the cache. What is not plain by its bits is left to the
kernel that looks closer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.rules import Rules, probabilities
from torchmetrics_fed.counting.scratch import scratch

# Tensors of at most this size never enter torch's OpenMP pool, which a busy neighbour can stall a hundredfold.
CHUNK = 32_768
# Up to here, or as many as there are bins, adding each example to the counts is cheaper than a histogram of its own.
FEW = 32_768
# A piece stays in cache after its first pass; the codes of several go into one histogram, whose making and adding up
# costs as much as ten thousand examples.
PIECE, GROUP = 131072, 524_288

_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class PlainKernel:
    """Counts plain batches.

    Args:
        binning: which bin a score is in.
    """

    def __init__(self, binning: Binning) -> None:
        self.binning, self.bins = binning, binning.bins

    def add(self, counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules) -> bool:
        """Add a flat batch to ``counts`` in place and return True, or add nothing and return False if it is not plain.

        Args:
            counts: int64, ``(1, rows, bins)``, contiguous.
            scores: of any floating dtype, detached.
            labels: bool or of any integer dtype.
            rules: how to read them. Without ``validate`` every batch is taken for plain.
        """
        if len(scores) > max(FEW, self.bins):
            return self._add_histogram(counts, scores, labels, rules)
        score, label = as_array(scores), labels.numpy()
        if rules.ignore_index is not None:
            kept = np.flatnonzero(label != rules.ignore_index)  # indices take a quarter of the time of a mask
            score, label = score.take(kept), label.take(kept)
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


def as_array(scores: Tensor) -> NDArray[Any]:
    """Return the scores as contiguous float32 or float64."""
    kept = scores.dtype == torch.float32 or scores.dtype == torch.float64
    return (scores if kept else scores.float()).contiguous().numpy()


def are_plain(scores: NDArray[Any], binning: Binning, rules: Rules) -> bool:
    """Whether all scores can be counted as they are, or all logits after normalization."""
    return bool(np.isfinite(scores).all()) if rules.normalization else binning.are_plain(scores)


def normalized(scores: NDArray[Any], rules: Rules) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return flat scores and their complements."""
    if rules.normalization is None:
        return scores.reshape(-1), None
    score, complement = probabilities(torch.from_numpy(scores), rules.normalization)
    return score.view(-1).numpy(), None if complement is None else complement.view(-1).numpy()


def are_labels(labels: NDArray[Any], highest: int) -> bool:
    """Whether all labels are from 0 to ``highest``; read as unsigned, negative ones are the largest."""
    bits = labels.view(_UNSIGNED[labels.itemsize])
    return bool(np.maximum.reduce(bits, axis=None, initial=0) <= highest)


def _rows(label: NDArray[Any], rules: Rules, kind: Any) -> NDArray[Any] | None:
    """Return each label as a row of the histogram, the last for what is ignored; None where a label is not plain."""
    _, row = scratch.room("row", kind, len(label))
    highest = rules.highest(1)
    if rules.ignore_index is None or rules.groups > 1:  # with groups all that is ignored is -1
        label = label if rules.ignore_index is None else np.where(label == rules.ignore_index, highest + 1, label)
        if rules.validate and not are_labels(label, highest + (rules.ignore_index is not None)):
            return None
        row[:] = label
        return row
    (_, ignored), (_, positive), (_, known) = (
        scratch.room(name, np.bool_, len(label)) for name in ("ignored", "positive", "known")
    )
    np.equal(label, rules.ignore_index, out=ignored)
    np.equal(label, 1, out=positive)
    if rules.validate:
        np.equal(label, 0, out=known)
        known |= positive
        known |= ignored
        if not known.all():
            return None
    row[:] = ignored.view(np.int8)
    row += row
    positive &= ~ignored
    row += positive.view(np.int8)
    return row


def _code_type(slots: int) -> Any:
    return np.int16 if slots <= 32_767 else np.int32
