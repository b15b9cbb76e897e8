"""What noise does to tails where levels are counted several times: vectors against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.queries import level_weights, weighted
from torchmetrics_fed import CentralDP, Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct.uncertainty.bands import noise_tails
from torchmetrics_fed.release import Sum
from torchmetrics_fed.typing import Floats

SPEC = Spec("binary", 1, ScoreGrid(bins=32), CentralDP(1.0))
QUERIES = [
    Query(Tree((4, 4, 2))),
    weighted(Tree((4, 4, 2)), 4, 1, 1),
    weighted(Tree((4, 4, 2)), 1, 2, 5),
    weighted(Tree((32,)), 3),
    weighted(Tree((2, 16)), 7, 1),
]


def covariance(total: Sum, weights: tuple[int, ...] = ()) -> Floats:
    """Of the leaves after generalised least squares, ``(leaves, leaves)``: the inverse of the
    information."""
    tree = total.query.tree
    design = torch.cat(
        [level.double() for level in tree.levels(torch.eye(tree.leaves))], -1
    ).T.numpy()
    weights = weights or level_weights(total.query)
    trust = np.repeat(np.square(weights), tree.sizes) / total.noise_variance
    return np.asarray(np.linalg.inv(design.T * trust @ design))


def some(query: Query) -> Sum:
    counts = torch.randint(100, 900, (1, 2, 32), generator=torch.Generator().manual_seed(3))
    return Sum(SPEC, query, SPEC.cells(query, counts))


def tails(leaves: Floats) -> Floats:
    """The covariance of the counts at or above each edge, of that of the leaves."""
    above = np.triu(np.ones(leaves.shape))
    return np.asarray(above @ leaves @ above.T)


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_vectors_of_noise_have_the_dense_covariance(query: Query) -> None:
    total = some(query)
    dense, vectors = tails(covariance(total)), noise_tails(total)
    variance = np.diag(dense)
    for row in vectors.spread:
        spread = row[:, :-1]  # nothing lies above the last edge
        assert spread[0] == pytest.approx(variance, rel=0.15)
        off = 6 * np.sqrt(variance * variance[0] / vectors.tails[..., 0].size)
        assert (np.abs(spread[1] - dense[:, 0]) < off + 0.1 * variance[0]).all()


def test_weights_that_are_forgotten_would_be_seen() -> None:
    """The power of both tests: the same noise, were all levels counted once, is another."""
    for query in QUERIES[1:]:
        total = some(query)
        once = (1,) * len(query.weights)
        ratio = np.diag(tails(covariance(total, once))) / np.diag(tails(covariance(total)))
        assert ratio.max() > 1.5
