"""Kernel: scores and targets into counts. The hot path.

On the range [0, 1] the bin of a score is ``floor(score * bins)``. ``bins`` is a power of two, so the product only moves
the exponent and the bin is exact for every floating dtype. Any other range, and custom edges, are compared with the
float64 edges themselves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed.counting.plain import CHUNK, PlainKernel
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.typing import Normalization, Task

__all__ = ["Kernel", "Rules", "checked_kind", "plain_int", "span_of", "surely_below_one"]

_ONE_BITS = 0x3F800000  # of 1.0 in float32


class Rules(NamedTuple):
    """How a batch is to be read."""

    task: Task = "binary"
    normalization: Normalization | None = None
    ignore_index: int | None = None
    validate: bool = True
    private: bool = False
    """Whether errors must not show values of the data: under privacy an error text may travel."""

    def got(self, least: float, most: float) -> str:
        """What an error says of values."""
        if least != least:
            return "NaN"
        return "others" if self.private else f"values from {least} to {most}"


class Kernel:
    """Counts batches into bins.

    Args:
        bins: number of bins.
        score_range: the lowest and the highest edge.
        edges: all ``bins + 1`` of them, float64.
        even: whether they are evenly spaced.
    """

    def __init__(self, bins: int, score_range: tuple[float, float], edges: Tensor, even: bool) -> None:
        self.bins, self.score_range, self.edges, self.even = bins, score_range, edges, even
        self.is_unit = even and score_range == (0.0, 1.0)
        self._plain = PlainKernel(bins)

    def add(self, counts: Tensor, preds: Tensor, target: Tensor, rules: Rules) -> Tensor:
        """Add a batch to ``counts``, in place unless that is an inference tensor, and return it."""
        checked_kind(preds, target)
        if preds.shape != target.shape:
            raise InputError(
                "Expected arguments `preds` and `target` to have the same shape but got "
                f"{tuple(preds.shape)} and {tuple(target.shape)}."
            )
        if preds.numel() == 0:
            return counts
        if counts.is_inference() and not torch.is_inference_mode_enabled():
            counts = counts.clone()
        if preds.ndim != 1:
            preds, target = preds.reshape(-1), target.reshape(-1)
        scores = preds.detach()
        if (
            self.is_unit
            and rules.normalization is None
            and (counts.is_cpu and preds.is_cpu and target.is_cpu and not preds.is_neg())
            and self._plain.add(counts, scores, target, rules.ignore_index, rules.validate)
        ):
            return counts
        labels = plain_int(target)
        if counts.is_cpu and len(scores) > CHUNK:
            return self._add_chunked(counts, scores, labels, rules)
        return self._add_direct(counts, scores, labels, rules)

    def _add_direct(self, counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules) -> Tensor:
        """Scatter into the state itself: small batches, and every other device (no host sync but the checks')."""
        column, row, ignored = self._locate(scores, labels, rules)
        index = column.long().clamp_(max=self.bins - 1).add_(row, alpha=self.bins)
        one = torch.ones_like(index) if ignored is None else (~ignored).long()
        counts.view(-1).scatter_add_(0, index, one)
        return counts

    def _add_chunked(self, counts: Tensor, scores: Tensor, labels: Tensor, rules: Rules) -> Tensor:
        """Histogram chunk by chunk with narrow indices, and add at the end, when every chunk has passed its checks."""
        width = self.bins + 1  # a score equal to the highest edge falls in the extra column, which saves a clamp
        slots = 2 * width + 1  # the last slot takes what is ignored
        size = CHUNK if torch.get_num_threads() > 1 else 3 * CHUNK  # one thread has no pool to keep out of, only L2
        index, offset = torch.empty(2, size, dtype=torch.int16 if slots <= 32_767 else torch.int32)
        total = torch.zeros(slots, dtype=torch.int64)
        for some_scores, some_labels in zip(scores.split(size), labels.split(size), strict=True):
            column, row, ignored = self._locate(some_scores, some_labels, rules)
            if len(column) < size:
                index, offset = index[: len(column)], offset[: len(column)]
            index.copy_(column).add_(offset.copy_(row), alpha=width)
            if ignored is not None:
                index.masked_fill_(ignored, 2 * width)
            total += torch.bincount(index, minlength=slots)
        both = total[:-1].view(2, width)
        both[:, -2] += both[:, -1]
        counts[0] += both[:, :-1]
        return counts

    def _locate(self, scores: Tensor, labels: Tensor, rules: Rules) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return each score's column (to be truncated; ``bins`` for the highest edge), its row, and what is ignored."""
        _, normalization, ignore_index, validate, _ = rules
        ignored = None
        if scores.dtype not in (torch.float32, torch.float64):
            scores = scores.float()
        if ignore_index is not None:
            ignored = labels == ignore_index
            labels = torch.where(ignored, 0, labels)
        if validate:
            _check_labels(labels, rules)
        if validate or ignored is not None:
            objection = self.objection(scores, rules)
            if objection and ignored is not None:  # an ignored score may be anything
                scores = scores.masked_fill(ignored, 0.0 if normalization else self.score_range[0])
                objection = self.objection(scores, rules)
            if objection and validate:
                raise InputError(objection)
        return self.column(scores.sigmoid() if normalization else scores), labels, ignored

    def column(self, scores: Tensor, room: Tensor | None = None) -> Tensor:
        """Return the column of each score, to be truncated to an integer; ``bins`` for the highest edge.

        With ``room``, a tensor like ``scores``, no other is asked for where that can be helped.
        """
        return torch.mul(scores, self.bins, out=room) if self.is_unit else self._compare(scores.double())

    def _compare(self, scores: Tensor) -> Tensor:
        """Return the columns of float64 scores by comparison with the edges."""
        edges = self.edges.to(scores.device)
        if not self.even:
            return torch.searchsorted(edges, scores, right=True).sub_(1).clamp_(min=0)
        low, high = self.score_range
        guess = ((scores - low) * (self.bins / (high - low))).long().clamp_(0, self.bins - 1)
        # Rounding can put the guess one bin off; the edges decide.
        below, above = scores < edges[guess], scores >= edges[guess + 1]
        return guess.add_(above).sub_(below.long()).clamp_(min=0)

    def objection(self, scores: Tensor, rules: Rules) -> str | None:
        """Return what is wrong with the scores, if anything."""
        least, most = span_of(scores)
        if rules.normalization:
            fine = -math.inf < least and most < math.inf
            return None if fine else f"Expected `preds` to be finite logits but got {rules.got(least, most)}."
        low, high = self.score_range
        if not self.is_unit:  # the ends as the scores' own dtype can express them
            low, high = min(low, scores.new_tensor(low).item()), max(high, scores.new_tensor(high).item())
        if least >= low and most <= high:  # NaN fails every comparison, and aminmax passes it on
            return None
        return (
            f"Expected argument `preds` to be scores in [{low}, {high}] but got {rules.got(least, most)}. "
            "Pass `normalization` if they are logits, or a `grid` with the range they have."
        )


def checked_kind(preds: Tensor, target: Tensor) -> None:
    """Raise unless these are floating scores and integer labels."""
    for name, value in (("preds", preds), ("target", target)):
        if not isinstance(value, Tensor):
            raise InputError(f"Expected argument `{name}` to be a torch.Tensor but got {type(value).__name__}.")
    if not preds.is_floating_point():
        raise InputError(f"Expected argument `preds` to be floating scores but got {preds.dtype}.")
    if target.is_floating_point() or target.is_complex():
        raise InputError(f"Expected argument `target` to be bool or int labels but got {target.dtype}.")


def plain_int(target: Tensor) -> Tensor:
    """Return the labels in a dtype that torch can reduce."""
    if target.dtype == torch.bool:
        return target.view(torch.uint8)
    return target.to(torch.int64) if target.dtype in (torch.uint16, torch.uint32, torch.uint64) else target


def surely_below_one(scores: Tensor) -> bool:
    """Whether float32 scores are in [0, 1) by their bits; False where that is not sure."""
    if scores.dtype != torch.float32 or not scores.is_contiguous():
        return False
    least, most = span_of(scores.view(torch.int32))
    return least >= 0 and most < _ONE_BITS


def _check_labels(labels: Tensor, rules: Rules) -> None:
    least, most = span_of(labels)
    if not (least >= 0 and most <= 1):
        also = "" if rules.ignore_index is None else f" or ignore_index={rules.ignore_index}"
        raise InputError(
            f"Expected argument `target` to hold only 0 and 1{also} but got {rules.got(least, most)}. "
            "Map the labels to 0 and 1, or name the one to leave out with `ignore_index`."
        )


def span_of(values: Tensor) -> tuple[float, float]:
    """The least and the largest value; NaN if there is one."""
    least, most = values.aminmax()
    return least.item(), most.item()
