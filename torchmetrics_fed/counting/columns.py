"""ColumnKernel: scores of several classes or labels into counts, one column of scores each.

In memory the counts are ``(rows, bins, columns)``, seen as ``(columns, rows, bins)``: softmax scores crowd in the
lowest bins, whose counts of all classes then lie side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from torchmetrics_fed.counting.binary import Kernel, Rules, checked_kind, plain_int, span_of, surely_below_one
from torchmetrics_fed.counting.plain import CHUNK
from torchmetrics_fed.errors import InputError

__all__ = ["ColumnKernel"]


class ColumnKernel(Kernel):
    """Counts batches of ``(N, columns, ...)`` scores into ``(columns, rows, bins)``.

    For multi-label targets the rows are negatives and positives of each label. For multi-class targets they are
    negatives and positives of each class (one against the rest), or, where there are as many rows as columns, the true
    classes (one against one).
    """

    def add(self, counts: Tensor, preds: Tensor, target: Tensor, rules: Rules) -> Tensor:
        """Add a batch to ``counts``, in place where its layout allows, and return it."""
        checked_kind(preds, target)
        columns, rows = counts.shape[:2]
        scores, labels = _flattened(preds, target, columns, rules)
        if labels.numel() == 0:
            return counts
        if rules.ignore_index is not None and rules.task == "multiclass":
            kept = labels != rules.ignore_index
            scores, labels = scores[kept], labels[kept]
        # Two passes, for nothing may be counted of a batch that is refused.
        chunks = list(_chunks(scores, labels))
        below_top = rules.validate
        if rules.validate:
            for some_scores, some_labels in chunks:
                below_top &= self._check(some_scores, some_labels, columns, rules)
        counts = _own_layout(counts)
        flat = counts.permute(1, 2, 0).reshape(-1)
        for some_scores, some_labels in chunks:
            self._tally(flat, some_scores, some_labels, columns, rows, rules, below_top)
        return counts

    def _tally(
        self, flat: Tensor, scores: Tensor, labels: Tensor, columns: int, rows: int, rules: Rules, below_top: bool
    ) -> None:
        """Add to the counts in memory order: (row, bin, column) is cell (row * bins + bin) * columns + column."""
        scores = _normalized(scores, rules)
        room, narrow, index = _scratch.like(scores, flat.numel() < 2**31)
        narrow.copy_(self.column(scores, room))
        if not below_top:
            narrow.clamp_(max=self.bins - 1)
        torch.add(_numbers(columns, narrow.dtype, flat.device), narrow, alpha=columns, out=narrow)
        below = self.bins * columns  # how far one row lies below another
        if rules.task == "multilabel":
            narrow.add_(labels.to(narrow.dtype), alpha=below)
        elif rows == columns and rows > 2:
            narrow.add_(labels.to(narrow.dtype)[:, None], alpha=below)
        else:  # everybody is a negative but in the column of the true class
            own = labels.long()[:, None]
            narrow.scatter_add_(1, own, torch.full_like(own, below, dtype=narrow.dtype))
        index.copy_(narrow)
        cells = index.view(-1)
        if rules.ignore_index is not None and rules.task == "multilabel":
            cells = index[labels != rules.ignore_index]
        flat.scatter_add_(0, cells, _ones(len(cells), flat.device))  # safe and deterministic on every device

    def _check(self, scores: Tensor, labels: Tensor, columns: int, rules: Rules) -> bool:
        """Raise unless scores and labels can be counted; return whether all scores are known to be below the top."""
        highest = columns - 1
        if rules.task == "multilabel":
            highest = 1
            if rules.ignore_index is not None:
                ignored = labels == rules.ignore_index
                labels = torch.where(ignored, 0, labels)
                scores = scores.masked_fill(ignored, 0.0 if rules.normalization else self.score_range[0])
        least, most = span_of(labels)
        if not (least >= 0 and most <= highest):
            also = "" if rules.ignore_index is None else f" or ignore_index={rules.ignore_index}"
            raise InputError(
                f"Expected argument `target` to hold labels from 0 to {highest}{also} but got {rules.got(least, most)}."
            )
        if self.is_unit and not rules.normalization and surely_below_one(scores):
            return True
        objection = self.objection(_wide(scores).reshape(-1), rules)
        if objection:
            raise InputError(objection)
        return False


def _flattened(preds: Tensor, target: Tensor, columns: int, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return scores ``(N, columns)`` and labels, ``(N,)`` or ``(N, columns)``."""
    multilabel = rules.task == "multilabel"
    expected = preds.shape if multilabel else (*preds.shape[:1], *preds.shape[2:])
    if preds.ndim < 2 or preds.shape[1] != columns or target.shape != expected:
        shapes = f"(N, {columns}, ...) and {f'(N, {columns}, ...)' if multilabel else '(N, ...)'}"
        raise InputError(
            f"Expected arguments `preds` and `target` to have the shapes {shapes} but got {tuple(preds.shape)} and "
            f"{tuple(target.shape)}."
        )
    scores, labels = preds.detach(), plain_int(target)
    if preds.ndim > 2:
        scores = scores.movedim(1, -1).reshape(-1, columns)
        labels = labels.movedim(1, -1).reshape(-1, columns) if multilabel else labels.reshape(-1)
    return scores, labels


def _chunks(scores: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = max(CHUNK // scores.shape[1], 1)
    if len(scores) <= size:  # two splits cost as much as half the counting of a small batch
        return iter([(scores, labels)])
    return zip(scores.split(size), labels.split(size), strict=True)


def _own_layout(counts: Tensor) -> Tensor:
    """Return counts whose memory is in the kernel's order and may be changed in place."""
    if counts.is_inference() and not torch.is_inference_mode_enabled():
        counts = counts.clone()
    inner = counts.permute(1, 2, 0)
    return counts if inner.is_contiguous() else inner.contiguous().permute(2, 0, 1)


def _wide(scores: Tensor) -> Tensor:
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()


def _normalized(scores: Tensor, rules: Rules) -> Tensor:
    scores = _wide(scores)
    if rules.normalization == "softmax":
        return scores.softmax(-1)
    return scores.sigmoid() if rules.normalization else scores


class _Scratch(threading.local):
    """Room for the columns and indices of a chunk, kept between batches: asking again costs a third of a small update.

    Per thread, and in no object that could be copied or pickled, because it holds what the last scores were.
    """

    def __init__(self) -> None:
        self.key: tuple[object, ...] = ()
        self.room: tuple[Tensor, ...] = ()

    def like(self, scores: Tensor, narrow: bool) -> tuple[Tensor, ...]:
        """Return three tensors of the shape of ``scores``: of their dtype, int32 if ``narrow``, and int64."""
        key = (scores.shape, scores.dtype, scores.device, narrow)
        if key != self.key:
            dtypes = scores.dtype, torch.int32 if narrow else torch.int64, torch.int64
            self.room = tuple(torch.empty(scores.shape, dtype=dtype, device=scores.device) for dtype in dtypes)
            self.key = key
        return self.room


_scratch = _Scratch()


@lru_cache(maxsize=16)
def _numbers(columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(columns, dtype=dtype, device=device)


@lru_cache(maxsize=4)
def _ones(size: int, device: torch.device) -> Tensor:
    return torch.ones(size, dtype=torch.int64, device=device)
