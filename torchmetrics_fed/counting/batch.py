"""A batch of scores and targets into counts, for every task, on every device.

Invariants:

- A batch that is refused changes nothing: all of it is checked before anything is counted.
- Nothing here depends on single values of a batch, so a device is waited for at most once, by the
  check; never if ``refused`` is given.
- In memory the counts are ``(rows, bins, columns)``, seen as ``(columns, rows, bins)``: softmax
  scores crowd in the lowest bins, whose counts of all classes then lie side by side. A binary task
  has one column.

For binary and multi-label targets the rows are negatives and positives. For multi-class targets
they are negatives and positives of each class (one against the rest), or, where there are as many
rows as columns, the true classes (one against one). Each group has such rows, one group after the
other.
"""

import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.chunks import CHUNK, Chunk, Chunks
from torchmetrics_fed.counting.fast import add_fast, has_fast_way
from torchmetrics_fed.counting.validation import (
    Rules,
    check_batch,
    check_weight,
    plain_int,
    probabilities,
    wide,
)
from torchmetrics_fed.errors import InputError


def empty_counts(columns: int, rows: int, bins: int) -> Tensor:
    """Return the counts of no examples, int64 ``(columns, rows, bins)``, columns last in memory."""
    return torch.zeros(rows, bins, columns, dtype=torch.int64).permute(2, 0, 1)


def add_batch(
    counts: Tensor,
    preds: Tensor,
    target: Tensor,
    *,
    binning: Binning,
    rules: Rules,
    refused: Tensor | None = None,
    weight: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """Add a batch to ``counts`` and return them: see :meth:`ScoreGrid.add`."""
    columns = len(counts)
    check_batch(preds, target, columns, rules.task)
    if weight is not None:
        check_weight(weight, target, rules.task)
    counts = _writable(counts)
    labels = target
    if labels.is_floating_point():
        labels = rules.whole_labels(labels)
    if rules.task == "binary" and preds.ndim != 1:
        labels = rules.unless_one_hot(labels)
    labels, rules = rules.limited(labels)
    if rules.groups or group is not None:
        labels, rules = rules.grouped(labels, group, columns)
    if target.numel() == 0:
        return counts
    scores = preds.detach()
    labels = plain_int(labels)
    if rules.task == "binary" and scores.ndim != 1:
        scores = scores.reshape(-1)
        labels = labels.reshape(-1)
        weight = None if weight is None else weight.reshape(-1)
    counts = _columns_last(counts)
    is_here = counts.is_cpu and preds.is_cpu and target.is_cpu
    chunks = Chunks(scores, labels, weight, CHUNK if is_here else None)
    # numpy cannot see the sign of a tensor that is negated lazily
    may_be_fast = is_here and weight is None and not preds.is_neg()
    if may_be_fast and has_fast_way(binning, rules) and add_fast(counts, chunks, binning, rules):
        return counts
    _add(counts, chunks, binning, rules, refused)
    return counts


def _add(
    counts: Tensor, chunks: Chunks, binning: Binning, rules: Rules, refused: Tensor | None
) -> None:
    """Check all chunks, then count them."""
    if counts.is_meta:
        raise InputError(
            "Expected a metric with memory but this one is on the meta device. Call "
            "`to_empty(device=...)` on it, or on the module that holds it, before the first "
            "update."
        )
    if rules.validate and refused is None:
        for chunk in chunks:
            scores, labels = _in_columns(chunk)
            rules.check(scores, labels, binning, chunk.weight)
    for chunk in chunks:
        scores, labels = _in_columns(chunk)
        _count(
            counts,
            [scores],
            labels,
            binning=binning,
            rules=rules,
            refused=refused,
            weight=chunk.weight,
        )


def add_pairs(
    counts: Tensor,
    models: tuple[Tensor, Tensor],
    target: Tensor,
    *,
    binning: Binning,
    rules: Rules,
    refused: Tensor | None,
) -> Tensor:
    """Add the scores of two models for the same examples: see :meth:`ScoreGrid.add_pairs`."""
    if target.numel() == 0:
        return counts
    labels = target
    if labels.is_floating_point():
        labels = rules.whole_labels(labels)
    labels = plain_int(rules.unless_one_hot(labels)).reshape(-1, 1)
    pair = [wide(scores.detach()).reshape(-1, 1) for scores in models]
    if rules.validate and refused is None:
        for scores in pair:
            rules.check(scores, labels, binning)
    counts = _writable(counts)
    _count(counts, pair, labels, binning=binning, rules=rules, refused=refused)
    return counts


def _count(
    counts: Tensor,
    models: list[Tensor],
    labels: Tensor,
    *,
    binning: Binning,
    rules: Rules,
    refused: Tensor | None,
    weight: Tensor | None = None,
) -> None:
    """Add ``(N, columns)`` scores, of one model or of two, to ``counts``.

    If ``refused`` is given, examples that cannot be counted are added to it instead. The cell (row,
    bin, column) is at (row * bins + bin) * columns + column. Of two models, bin is a pair of bins.
    """
    columns = len(counts)
    place = _rows(labels, counts, rules)
    for scores in models:
        score, complement = probabilities(scores, rules.normalization)
        place = place * binning.bins + binning.of(score, complement)
    index = place * columns + torch.arange(columns, device=labels.device)
    times = torch.ones_like(index)
    ignored = rules.ignored(labels)
    if ignored is not None:
        times *= ~ignored.view(len(index), -1)
    if refused is not None:
        can_count = rules.countable(models[0], labels, binning, weight)
        for scores in models[1:]:
            can_count &= rules.countable(scores, labels, binning, weight)
        times *= can_count[:, None]
        refused += (~can_count).sum()
    if weight is not None:
        times *= weight.reshape(-1, 1)
    # safe and deterministic on every device
    cells = counts.permute(1, 2, 0).view(-1)
    cells.scatter_add_(0, index.reshape(-1), times.reshape(-1))


def _rows(labels: Tensor, counts: Tensor, rules: Rules) -> Tensor:
    """Return the row of the counts for each score, ``(N, columns)`` or ``(N, 1)``."""
    columns, rows, _ = counts.shape
    labels = labels.clamp(0, rules.highest(columns)).long()
    if rules.task != "multiclass":
        return labels
    labels = labels[:, None]
    if rules.are_pairs(columns, rows):
        return labels
    is_class = labels % columns == torch.arange(columns, device=labels.device)
    group = labels // columns
    return 2 * group + is_class


def _in_columns(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return scores ``(n, columns)``, float32 or float64, and their labels."""
    scores = wide(chunk.scores)
    if scores.ndim == 1:
        return scores[:, None], chunk.labels[:, None]
    return scores, chunk.labels


def _columns_last(counts: Tensor) -> Tensor:
    """Return counts that are ``(rows, bins, columns)`` in memory."""
    if len(counts) == 1 or counts.stride(0) == 1:
        return counts
    return counts.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _writable(counts: Tensor) -> Tensor:
    """Return counts that can be changed here, if they were made in inference mode."""
    if counts.is_inference() and not torch.is_inference_mode_enabled():
        return counts.clone()
    return counts
