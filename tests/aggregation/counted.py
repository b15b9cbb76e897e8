"""Scores that three ranks count in uneven parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC
from torchmetrics_fed.functional import ROCCurve

__all__ = ["BOUNDS", "all_scores", "counted_part", "part_of", "same_curve"]

BOUNDS = [0, 0, 700, 3_001]
"""Where the parts of the ranks begin and end. The first rank has no examples."""


def all_scores() -> tuple[Tensor, Tensor]:
    """Return the scores and targets of all ranks."""
    generator = torch.Generator().manual_seed(11)
    target = torch.randint(0, 2, (BOUNDS[-1],), generator=generator)
    logits = torch.randn(BOUNDS[-1], generator=generator) + target
    return logits.sigmoid(), target


def part_of(rank: int) -> tuple[Tensor, Tensor]:
    """Return the scores and targets of one rank."""
    preds, target = all_scores()
    part = slice(BOUNDS[rank], BOUNDS[rank + 1])
    return preds[part], target[part]


def counted_part(rank: int, **options: Any) -> FederatedROC:
    """Return a metric that has counted the part of one rank. The first rank sees no batch."""
    metric = FederatedROC(**options)
    if rank == 0:
        return metric
    preds, target = part_of(rank)
    batches = zip(preds.split(200 * rank), target.split(200 * rank), strict=True)
    for batch_preds, batch_target in batches:
        metric.update(batch_preds, batch_target)
    return metric


def same_curve(curve: ROCCurve, expected: ROCCurve) -> bool:
    """Return whether two curves are equal to the bit."""
    return all(torch.equal(*pair) for pair in zip(curve, expected, strict=True))
