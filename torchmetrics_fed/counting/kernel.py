"""Kernel: scores and targets into counts, for every task, on every device.

Plain batches in this machine's memory go to numpy, in pieces that stay in cache. Everything else
goes through the torch operations here: a fixed number of them, and on a device at most one wait,
for the check.

In memory the counts are ``(rows, bins, columns)``, seen as ``(columns, rows, bins)``: softmax
scores crowd in the lowest bins, whose counts of all classes then lie side by side. A binary task is
one column.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial, reduce
from operator import and_

import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.plain import CHUNK, add_columns, add_flat
from torchmetrics_fed.counting.validation import (
    Rules,
    check_batch,
    check_weight,
    plain_int,
    probabilities,
    wide,
)
from torchmetrics_fed.errors import InputError

_PLAIN = Rules()


class Kernel(ABC):
    """Counts batches in bins: what every grid does.

    For binary and multi-label targets the rows of the counts are negatives and positives. For
    multi-class targets they are negatives and positives of each class (one against the rest), or,
    where there are as many rows as columns, the true classes (one against one). Each group has such
    rows, one group after the other.
    """

    @property
    @abstractmethod
    def binning(self) -> Binning:
        """Where the bins are."""

    def add(
        self,
        counts: Tensor,
        preds: Tensor,
        target: Tensor,
        rules: Rules = _PLAIN,
        refused: Tensor | None = None,
        weight: Tensor | None = None,
        group: Tensor | None = None,
    ) -> Tensor:
        """Add a batch, read by ``rules``, to ``counts`` and return it. One that is refused leaves
        it as it was.

        Args:
            counts: int64 ``(classes, groups * rows, bins)``; changed in place where that can be
                done.
            preds: scores and ``target``, as :meth:`FederatedMetric.update` takes them.
            refused: int64, one number on the device of ``counts``: examples that cannot be counted
                are added to it, where they would raise otherwise, and no device is waited for.
            weight: integers, how often each example counts; once if not given.
            group: integers, the group of each example, where there are several.
        """
        columns = len(counts)
        check_batch(preds, target, columns, rules.task)
        if target.is_floating_point():
            target = rules.whole(target)
        counts, scores = _changeable(counts), preds.detach()
        here = counts.is_cpu and preds.is_cpu and target.is_cpu and not preds.is_neg()
        if weight is not None:
            check_weight(weight, target, rules.task)
            here = False
        labels = target
        if rules.task == "binary" and scores.ndim != 1:
            labels = rules.unless_one_hot(labels)
        if rules.groups or group is not None:
            labels, rules = rules.grouped(labels, group, columns)
        if target.numel() == 0:
            return counts
        if rules.task == "binary":
            if scores.ndim != 1:
                scores, labels = scores.reshape(-1), labels.reshape(-1)
            if here and add_flat(counts, scores, labels, rules, self.binning):
                return counts
            scores, labels = scores[:, None], labels[:, None]
        chunks = partial(_chunks, scores, plain_int(labels), CHUNK if here else None)
        if counts.stride(0) != 1:
            counts = counts.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        if here and rules.task != "binary" and add_columns(counts, chunks, rules, self.binning):
            return counts
        if counts.is_meta:
            raise InputError(
                "Expected a metric with memory but this one is on the meta device. Call "
                "`to_empty(device=...)` on it, or on the module that holds it, before the first "
                "update."
            )
        if rules.validate and refused is None:
            for some_scores, some_labels in chunks():  # all of it before anything is counted
                rules.check(wide(some_scores), some_labels, self.binning, weight)
        for some_scores, some_labels in chunks():
            self._count(counts, [wide(some_scores)], some_labels, rules, refused, weight)
        return counts

    def add_pairs(
        self,
        counts: Tensor,
        models: tuple[Tensor, Tensor],
        target: Tensor,
        rules: Rules,
        refused: Tensor | None,
    ) -> Tensor:
        """Add two models' scores of the same examples to ``counts`` of pairs of bins, and return
        them.

        They have passed :func:`check_pairs`. The cells ``(1, 2, bins * bins)`` are at the first
        model's bin times ``bins`` plus the second's.
        """
        if target.numel() == 0:
            return counts
        labels = rules.whole(target) if target.is_floating_point() else target
        labels = plain_int(rules.unless_one_hot(labels)).reshape(-1, 1)
        both = [wide(scores.detach()).reshape(-1, 1) for scores in models]
        if rules.validate and refused is None:
            for scores in both:
                rules.check(scores, labels, self.binning)
        counts = _changeable(counts)
        self._count(counts, both, labels, rules, refused)
        return counts

    def _count(
        self,
        counts: Tensor,
        models: list[Tensor],
        labels: Tensor,
        rules: Rules,
        refused: Tensor | None,
        weight: Tensor | None = None,
    ) -> None:
        """Add ``(N, columns)`` scores, of one model or of two; if ``refused`` is given, those that
        are not good to it.

        Cell (row, bin, column) is at (row * bins + bin) * columns + column. Of two models bin is a
        pair of bins.
        """
        columns, rows, _ = counts.shape
        number = torch.arange(columns, device=labels.device)
        place, ignored = labels.clamp(0, rules.highest(columns)).long(), rules.ignored(labels)
        if rules.task == "multiclass":
            place, ignored = place[:, None], None if ignored is None else ignored[:, None]
            if not rules.are_pairs(columns, rows):
                place = (place % columns == number).long() + 2 * (place // columns)
        for scores in models:
            place = place * self.binning.bins + self.binning.of(
                *probabilities(scores, rules.normalization)
            )
        index = place if columns == 1 else place * columns + number
        kept = None if ignored is None else ~ignored
        if refused is not None:
            good = reduce(
                and_, (rules.good(scores, labels, self.binning, weight) for scores in models)
            )
            refused += (~good).sum()
            kept = good[:, None] if kept is None else kept & good[:, None]
        times = torch.ones_like(index) if kept is None else kept.expand_as(index).long()
        if weight is not None:
            times *= weight.reshape(-1, 1)
        # safe and deterministic on every device
        counts.permute(1, 2, 0).view(-1).scatter_add_(0, index.view(-1), times.view(-1))


def _chunks(scores: Tensor, labels: Tensor, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores ``(N, columns, ...)`` as ``(n, columns)`` and their labels, up to ``size``
    scores at a time."""
    if size is None or scores.numel() <= size:
        yield _rows_of(scores, labels)
        return
    scores = scores.flatten(2) if scores.ndim > 2 else scores[..., None]
    examples, columns, positions = scores.shape
    labels = labels.reshape(
        scores.shape if labels.numel() == scores.numel() else (examples, positions)
    )
    step, width = max(size // (columns * positions), 1), min(max(size // columns, 1), positions)
    for start in range(0, examples, step):
        for left in range(0, positions, width):
            rows, part = slice(start, start + step), slice(left, left + width)
            yield _rows_of(scores[rows, :, part], labels[rows, ..., part])


def _rows_of(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores ``(n, columns)``, and labels of that shape or ``(n,)``."""
    if scores.ndim == 2:
        return scores, labels
    columns, several = scores.shape[1], labels.ndim == scores.ndim
    rows = scores.movedim(1, -1).reshape(-1, columns)
    return rows, labels.movedim(1, -1).reshape(-1, columns) if several else labels.reshape(-1)


def _changeable(counts: Tensor) -> Tensor:
    return (
        counts.clone()
        if counts.is_inference() and not torch.is_inference_mode_enabled()
        else counts
    )
