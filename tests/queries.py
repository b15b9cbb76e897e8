"""Queries for tests."""

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed import Query
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.release.query import LevelWeights


def weighted(tree: Tree, *weights: int, fraction: float = 1.0) -> Query:
    """Return a query with one weight for each level of a tree, top level first; once if not
    given."""
    levels = tuple(LevelWeights.of(weight) for weight in weights)
    return Query(tree, fraction, weights=levels)


def level_weights(query: Query) -> tuple[int, ...]:
    """Return the one weight of each level of a query."""
    weights = []
    for level in query.weights:
        assert level.single is not None
        weights.append(level.single)
    return tuple(weights)


def rows_of(*weights: int) -> list[NDArray[np.int64]]:
    """Return one weight for each level as arrays that broadcast to the cells of the level."""
    return [np.array([weight]) for weight in weights]
