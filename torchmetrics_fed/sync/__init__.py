"""Sums over ranks and clients."""

from torchmetrics_fed.sync.distributed import Ranks

__all__ = ["Ranks"]
