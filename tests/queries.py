"""Queries for tests."""

from torchmetrics_fed import Query
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.release.query import LevelWeights


def weighted(tree: Tree, *weights: int, fraction: float = 1.0) -> Query:
    """Return a query with one weight for each level of a tree, top level first; once if not
    given."""
    levels = tuple(LevelWeights.of(weight) for weight in weights)
    return Query(tree, fraction, weights=levels)
