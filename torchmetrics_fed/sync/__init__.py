"""Sums over ranks and clients."""

from torchmetrics_fed.sync.distributed import Agreement, Ranks

__all__ = ["Agreement", "Ranks"]
