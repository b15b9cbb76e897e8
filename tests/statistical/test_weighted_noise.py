"""A level that is counted w-fold has a w-th of the others' noise: in releases, with the power of each test."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.queries import weighted
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

WEIGHT, EPSILON = 4, 1.0
QUERY = weighted(Tree((512, 2)), WEIGHT, 1)
RELEASES = 330  # with these, a variance that is five percent off is ten standard deviations away
DEVIATIONS = 4.9  # of a normal variable, exceeded with a probability of ALPHA
PRIVACY: dict[str, Privacy] = {
    "central": CentralDP(EPSILON),
    "three shares": DistributedDP(EPSILON, min_clients=3, max_colluding=0, trusted_aggregator=True),
    "skellam": CentralDP(EPSILON, mechanism="skellam", delta=1e-6),
}


@cache
def noise(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What releases of known data differ by from it: on the level that is counted WEIGHT times, and on the leaves."""
    privacy, generator = PRIVACY[name], torch.Generator().manual_seed(1)
    scores, target = (
        torch.rand(900, generator=generator),
        torch.randint(0, 2, (900,), generator=generator),
    )
    exact = FederatedROC(grid=ScoreGrid.even(256))
    exact.update(scores, target)
    truth = [level.numpy() for level in QUERY.tree.levels(exact.counts)]
    clients = [
        FederatedROC(grid=ScoreGrid.even(256), privacy=privacy, plan=QUERY)
        for _ in range(privacy.clients_needed)
    ]
    found: list[list[NDArray[np.float64]]] = []
    for _ in range(RELEASES):
        for client, part, labels in zip(
            clients, scores.chunk(len(clients)), target.chunk(len(clients)), strict=True
        ):
            client.reset()
            client.update(part, labels)
        release = (
            clients[0].release()
            if len(clients) == 1
            else Release.sum(client.share() for client in clients)
        )
        found.append(
            [seen.numpy() - known for seen, known in zip(release.levels, truth, strict=True)]
        )
    top, leaf = (
        np.concatenate([each[level].ravel() for each in found]).astype(np.float64)
        for level in range(2)
    )
    return top, leaf


def counted(cells: NDArray[np.float64], radius: int) -> Counts:
    """How often each integer from -radius to radius occurs in cells that hold nothing else."""
    whole = np.rint(cells)
    assert np.array_equal(whole, cells)
    return np.bincount(
        (np.clip(whole, -radius, radius) + radius).astype(np.int64), minlength=2 * radius + 1
    )


def off(ratio: float, one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """How far the ratio of two variances is from ``ratio``, in standard deviations of its logarithm."""
    spread = sum(
        (np.mean(each**4) / np.mean(each**2) ** 2 - 1) / each.size for each in (one, other)
    )
    return float(abs(np.log(np.mean(one**2) / np.mean(other**2) / ratio)) / np.sqrt(spread))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVACY)
def test_the_variance_of_a_weighted_level_is_the_square_of_its_weight_less(name: str) -> None:
    """And not five percent more or less than that, nor as much as if it had not been weighted."""
    top, leaf = noise(name)
    assert off(1 / WEIGHT**2, top, leaf) < DEVIATIONS
    for wrong in (1.05 / WEIGHT**2, 1 / 1.05 / WEIGHT**2, 1 / WEIGHT, 1.0):
        assert off(wrong, top, leaf) > DEVIATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVACY)
def test_the_variance_is_the_one_that_a_sum_declares(name: str) -> None:
    metric = FederatedROC(grid=ScoreGrid.even(256), privacy=PRIVACY[name], plan=QUERY)
    noise_law = metric.spec.noise(QUERY)
    for level, weight in zip(noise(name), QUERY.level_weights, strict=True):
        spread = np.sqrt((np.mean(level**4) / np.mean(level**2) ** 2 - 1) / level.size)
        distance = abs(np.log(np.mean(level**2) * weight**2 / noise_law.variance)) / spread
        assert distance < DEVIATIONS
        assert (
            abs(np.log(np.mean(level**2) * weight**2 / noise_law.variance / 1.05)) / spread
            > DEVIATIONS
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["central", "three shares"])
def test_every_cell_has_the_noise_of_an_example_that_moves_all_levels_by_their_weights(
    name: str,
) -> None:
    """Two-sided geometric of rate epsilon / (4 + 1). Of rate epsilon / 2, weights forgotten, or 5% off, it is not."""
    rate = EPSILON / sum(QUERY.level_weights)
    for level, weight in zip(noise(name), QUERY.level_weights, strict=True):
        law = two_sided_geometric_law(rate)
        counts = counted(level * weight, reach(law))
        assert p_value(counts, law) > ALPHA
        for wrong in (EPSILON / 2, 1.05 * rate):
            assert p_value(counts, two_sided_geometric_law(wrong)) < ALPHA


@pytest.mark.slow
def test_skellam_noise_is_that_of_the_weighted_shifts() -> None:
    metric = FederatedROC(grid=ScoreGrid.even(256), privacy=PRIVACY["skellam"], plan=QUERY)
    noise_law = metric.spec.noise(QUERY)
    mean = noise_law.variance / 2
    for level, weight in zip(noise("skellam"), QUERY.level_weights, strict=True):
        law = skellam_law(mean)
        counts = counted(level * weight, reach(law))
        assert p_value(counts, law) > ALPHA
        assert p_value(counts, skellam_law(1.05 * mean)) < ALPHA
