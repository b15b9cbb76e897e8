"""ColumnKernel: plain scores of several classes or labels in this machine's memory into counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.plain import CHUNK, are_labels, are_plain, as_array, normalized
from torchmetrics_fed.counting.rules import Rules
from torchmetrics_fed.counting.scratch import scratch
from torchmetrics_fed.typing import Places


class ColumnKernel:
    """Counts plain batches of several columns.

    Args:
        binning: which bin a score is in.
    """

    def __init__(self, binning: Binning) -> None:
        self.binning, self.bins = binning, binning.bins
        self._tile: tuple[int, Places] = 0, np.empty(0, np.int64)
        self._one = torch.ones(CHUNK, dtype=torch.int64, device="cpu")

    def add(self, counts: Tensor, chunks: Iterable[tuple[Tensor, Tensor]], rules: Rules) -> bool:
        """Add all chunks to ``counts`` in place and return True, or add nothing and return False if one is not plain.

        Args:
            counts: int64, ``(columns, rows, bins)``, in the kernel's own order in memory.
            chunks: scores ``(n, columns)`` and labels, a bounded number at a time; iterated twice.
            rules: how to read them.
        """
        columns, rows, bins = counts.shape
        if rules.ignore_index is not None and rules.task != "multiclass":
            return False
        if rules.validate:  # all of it before anything is counted
            for scores, labels in chunks:
                score, label = _kept(scores, labels, rules)
                if not (
                    are_plain(score.reshape(-1), self.binning, rules) and are_labels(label, rules.highest(columns))
                ):
                    return False
        flat, below = counts.permute(1, 2, 0).view(-1), bins * columns  # how far one row lies below another
        for scores, labels in chunks:
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
        """The column of each score of a chunk."""
        known, tile = self._tile
        if known != columns or len(tile) < size:
            tile = np.tile(np.arange(columns), -(-size // columns))
            self._tile = columns, tile
        return tile[:size]


def _kept(scores: Tensor, labels: Tensor, rules: Rules) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scores and labels without the ignored ones."""
    score, label = as_array(scores), labels.numpy()
    if rules.ignore_index is None:
        return score, label
    kept = np.flatnonzero(label != rules.ignore_index)
    return score.take(kept, 0), label.take(kept)
