"""Sums over ranks and clients."""

from torchmetrics_fed.sync.distributed import Agreement, Ranks
from torchmetrics_fed.sync.hidden import hidden_sum, secure_sum_config

__all__ = ["Agreement", "Ranks", "hidden_sum", "secure_sum_config"]
