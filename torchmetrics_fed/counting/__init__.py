"""From scores to counts: the grid of bins, the tree over its leaves, and the kernels that count."""

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.tree import Table, Tree

__all__ = ["ScoreGrid", "Table", "Tree"]
