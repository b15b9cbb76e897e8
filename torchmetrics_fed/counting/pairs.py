"""Pairs of bins: one example, scored by two models, in one cell."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import Binning
from torchmetrics_fed.counting.rules import Rules, check_kind, plain_int, probabilities, wide
from torchmetrics_fed.errors import InputError


def add_pairs(
    counts: Tensor,
    binning: Binning,
    models: tuple[Tensor, Tensor],
    target: Tensor,
    rules: Rules,
    refused: Tensor | None,
) -> Tensor:
    """Add a batch to ``counts`` and return them. A batch that is refused leaves them as they were.

    Args:
        counts: int64 ``(1, 2, bins * bins)``, the first model's bin times their number plus the second's.
        binning: which bin a score is in.
        models: floating scores of both models, any shape.
        target: 0, 1 or what is ignored, for each.
        rules: how to read them.
        refused: as in :meth:`Kernel.add`.
    """
    check_pairs(models, target)
    if target.numel() == 0:
        return counts
    labels = rules.whole(target) if target.is_floating_point() else target
    labels = plain_int(rules.unless_one_hot(labels)).reshape(-1, 1)
    both = [wide(scores.detach()).reshape(-1, 1) for scores in models]
    good = torch.ones_like(labels[:, 0], dtype=torch.bool)
    for scores in both if rules.validate else ():
        fine = rules.good(scores, labels, binning)
        if refused is None and not bool(fine.all()):
            raise rules.objection(scores, labels, binning)
        good &= fine
    first, second = (binning.of(*probabilities(scores, rules.normalization))[:, 0] for scores in both)
    ignored = rules.ignored(labels)
    kept = good if ignored is None else good & ~ignored[:, 0]
    if refused is not None:
        refused += (~good).sum()
    index = (labels[:, 0].clamp(0, 1).long() * binning.bins + first) * binning.bins + second
    if counts.is_inference() and not torch.is_inference_mode_enabled():
        counts = counts.clone()
    counts.view(-1).scatter_add_(0, index, kept.long())
    return counts


def check_pairs(models: tuple[Tensor, Tensor], target: Tensor) -> None:
    """Raise unless both models have floating scores of the same examples."""
    for scores in models:
        check_kind(scores, target)
        if scores.shape != target.shape:
            raise InputError(
                f"Expected one score of each model for each of target's {tuple(target.shape)} but got "
                f"{tuple(scores.shape)}. Both models score the same examples, in the same order."
            )
