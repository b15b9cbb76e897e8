"""In releases, a level that is counted w times has a w-th of the noise of the others.

Each test has the power to reject noise that is five percent off.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.queries import level_weights, weighted
from tests.statistical.test_samplers import (
    ALPHA,
    Counts,
    p_value,
    reach,
    skellam_law,
    two_sided_geometric_law,
)
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedROC,
    Privacy,
    Release,
    ScoreGrid,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.typing import Floats

WEIGHT = 4
"""How often the top level counts an example."""

EPSILON = 1.0

QUERY = weighted(Tree((512, 2)), WEIGHT, 1)

EXAMPLES = 900

RELEASES = 330
"""With these, a variance that is five percent off is ten standard deviations away."""

DEVIATIONS = 4.9
"""A normal variable is further from its mean with a probability of ALPHA."""

PRIVACY: dict[str, Privacy] = {
    "central": CentralDP(EPSILON),
    "three shares": DistributedDP(EPSILON, min_clients=3, max_colluding=0, trusted_aggregator=True),
    "skellam": CentralDP(EPSILON, mechanism="skellam", delta=1e-6),
}


def release_of(clients: list[FederatedROC], scores: Tensor, target: Tensor) -> Release:
    """Return a release of data that are split over the clients."""
    score_parts = scores.chunk(len(clients))
    target_parts = target.chunk(len(clients))
    for client, preds, labels in zip(clients, score_parts, target_parts, strict=True):
        client.reset()
        client.update(preds, labels)
    if len(clients) == 1:
        return clients[0].release()
    return Release.sum(client.share() for client in clients)


@cache
def noise(name: str) -> tuple[Floats, Floats]:
    """Return the noise of releases of known data: on the weighted level, and on the leaves."""
    privacy = PRIVACY[name]
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(EXAMPLES, generator=generator)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    exact = FederatedROC(grid=ScoreGrid.even(256))
    exact.update(scores, target)
    exact_top, exact_leaf = QUERY.tree.levels(exact.counts)
    clients = [
        FederatedROC(grid=ScoreGrid.even(256), privacy=privacy, plan=QUERY)
        for _ in range(privacy.clients_needed)
    ]
    top_noise = []
    leaf_noise = []
    for _ in range(RELEASES):
        top, leaf = release_of(clients, scores, target).levels
        top_noise.append((top - exact_top).numpy().ravel())
        leaf_noise.append((leaf - exact_leaf).numpy().ravel())
    return (
        np.concatenate(top_noise).astype(np.float64),
        np.concatenate(leaf_noise).astype(np.float64),
    )


def integer_counts(cells: Floats, radius: int) -> Counts:
    """Return how often each integer from -radius to radius occurs in cells of integers."""
    integers = np.rint(cells)
    assert np.array_equal(integers, cells)
    index = (np.clip(integers, -radius, radius) + radius).astype(np.int64)
    return np.bincount(index, minlength=2 * radius + 1)


def log_variance_error(cells: Floats) -> float:
    """Return the variance of the logarithm of an estimated variance."""
    kurtosis = np.mean(cells**4) / np.mean(cells**2) ** 2
    return float((kurtosis - 1) / cells.size)


def ratio_distance(first: Floats, second: Floats, ratio: float) -> float:
    """Return how far the ratio of two variances is from ``ratio``, in standard deviations."""
    error = np.sqrt(log_variance_error(first) + log_variance_error(second))
    measured = np.mean(first**2) / np.mean(second**2)
    return float(abs(np.log(measured / ratio)) / error)


def variance_distance(cells: Floats, variance: float) -> float:
    """Return how far a variance is from ``variance``, in standard deviations."""
    error = np.sqrt(log_variance_error(cells))
    return float(abs(np.log(np.mean(cells**2) / variance)) / error)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVACY)
def test_the_variance_of_a_weighted_level_is_the_square_of_its_weight_less(name: str) -> None:
    """It is not five percent more or less than that, nor as much as without a weight."""
    top, leaf = noise(name)
    right = 1 / WEIGHT**2
    assert ratio_distance(top, leaf, right) < DEVIATIONS
    for wrong in (1.05 * right, right / 1.05, 1 / WEIGHT, 1.0):
        assert ratio_distance(top, leaf, wrong) > DEVIATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVACY)
def test_the_variance_is_the_one_that_a_sum_declares(name: str) -> None:
    metric = FederatedROC(grid=ScoreGrid.even(256), privacy=PRIVACY[name], plan=QUERY)
    variance = metric.spec.noise(QUERY).variance
    for level, weight in zip(noise(name), level_weights(QUERY), strict=True):
        assert variance_distance(level * weight, variance) < DEVIATIONS
        assert variance_distance(level * weight, 1.05 * variance) > DEVIATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["central", "three shares"])
def test_every_cell_has_the_noise_of_an_example_that_moves_all_levels_by_their_weights(
    name: str,
) -> None:
    """It is two-sided geometric of rate epsilon / (4 + 1).

    It is not of rate epsilon / 2, as without weights, nor of a rate that is 5% off.
    """
    rate = EPSILON / sum(level_weights(QUERY))
    law = two_sided_geometric_law(rate)
    for level, weight in zip(noise(name), level_weights(QUERY), strict=True):
        counts = integer_counts(level * weight, reach(law))
        assert p_value(counts, law) > ALPHA
        for wrong_rate in (EPSILON / 2, 1.05 * rate):
            assert p_value(counts, two_sided_geometric_law(wrong_rate)) < ALPHA


@pytest.mark.slow
def test_skellam_noise_is_that_of_the_weighted_shifts() -> None:
    metric = FederatedROC(grid=ScoreGrid.even(256), privacy=PRIVACY["skellam"], plan=QUERY)
    mean = metric.spec.noise(QUERY).variance / 2
    law = skellam_law(mean)
    for level, weight in zip(noise("skellam"), level_weights(QUERY), strict=True):
        counts = integer_counts(level * weight, reach(law))
        assert p_value(counts, law) > ALPHA
        assert p_value(counts, skellam_law(1.05 * mean)) < ALPHA
