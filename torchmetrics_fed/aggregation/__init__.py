"""How shares become a sum: over ranks, and by secure aggregation."""

from torchmetrics_fed.aggregation.ranks import Alone, Gather, Ranks

__all__ = ["Alone", "Gather", "Ranks"]
