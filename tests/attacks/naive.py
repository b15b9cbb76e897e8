"""What a private metric looks like when noise is bolted on where the sum is made. Every attack
succeeds on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from torchmetrics_fed.functional import ROCCurve, roc_from_counts

__all__ = ["NaiveROC"]


class NaiveROC(Metric):
    """A histogram that draws noise in compute."""

    full_state_update: bool = False
    counts: Tensor

    def __init__(self, epsilon: float = 1.0, bins: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.bins = bins
        self.draws = 0
        self.add_state("counts", torch.zeros(2, bins, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        index = (preds * self.bins).long().clamp(max=self.bins - 1) + target * self.bins
        self.counts = self.counts + torch.bincount(index, minlength=2 * self.bins).view(2, -1)

    def compute(self) -> ROCCurve:
        self.draws += 1
        noise = np.random.default_rng().geometric(1 - np.exp(-self.epsilon), (2, 2, self.bins))
        noisy = (self.counts + torch.from_numpy(noise[0] - noise[1])).clamp(min=0)
        return roc_from_counts(noisy, edges=torch.linspace(0, 1, self.bins + 1))
