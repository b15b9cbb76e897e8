"""Checks: cells that data can have pass, and all others are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.queries import weighted
from tests.release.examples import EXACT, FLAT, PRIVATE, TREE
from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Release,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import ImpossibleCountsError
from torchmetrics_fed.exchange.client import noisy_cells
from torchmetrics_fed.release import Sum
from torchmetrics_fed.release.checks import check_counts, noise_tail
from torchmetrics_fed.typing import MultiClass


def hundred_examples() -> Tensor:
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 60
    counts[0, 1, 7] = 40
    return counts


def test_levels_of_exact_cells_agree() -> None:
    counts = torch.randint(0, 50, (1, 2, 16))
    good = EXACT.cells(TREE, counts)
    assert check_counts(Share(EXACT, TREE, good), "ann") == int(good.max())
    assert torch.equal(Release.sum([Share(EXACT, TREE, good)]).leaf.long(), counts)
    for place in range(good.shape[-1]):
        for surplus in (1, 2):
            bad = good.clone()
            bad[0, 1, place] += surplus
            with pytest.raises(ImpossibleCountsError, match="levels that agree"):
                check_counts(Share(EXACT, TREE, bad), "ann")


def test_exact_counts_are_not_negative() -> None:
    counts = torch.randint(0, 50, (1, 2, 16))
    good = Share(EXACT, TREE, EXACT.cells(TREE, counts))
    negative = good.cells.clone()
    negative[0, 0, 5] = -1
    for bad in (Share(EXACT, TREE, negative), Release((Sum(EXACT, TREE, negative),))):
        with pytest.raises(ImpossibleCountsError, match="at least 0"):
            Release.sum([good, bad])


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_classes_agree_on_the_number_of_examples(multi_class: MultiClass) -> None:
    metric = FederatedROC("multiclass", num_classes=3, multi_class=multi_class)
    metric.update(torch.rand(100, 3).softmax(1), torch.randint(0, 3, (100,)))
    share = metric.share()
    twin = Share(share.spec, share.query, share.cells)
    Release.sum([share, twin], max_examples=100)
    share.cells[1, 0, 0] += 1
    with pytest.raises(ImpossibleCountsError, match="classes that agree"):
        Release.sum([share])


def test_a_client_has_at_most_max_examples() -> None:
    full = hundred_examples()
    crowded = full.clone()
    crowded[0, 1, 15] = 1
    shares = [Share(EXACT, FLAT, full) for _ in range(3)]
    assert Release.sum(shares, max_examples=100).shares == 3
    part = Release((Sum(EXACT, FLAT, full + crowded, shares=3),))
    assert Release.sum([part], max_examples=100).shares == 3
    for bad in (
        Share(EXACT, FLAT, crowded),
        Release((Sum(EXACT, FLAT, 2 * crowded, shares=2),)),
    ):
        with pytest.raises(ImpossibleCountsError, match="max_examples=100"):
            Release.sum([shares[0], bad], max_examples=100)
    with pytest.raises(InputError, match="max_examples"):
        Release.sum(shares, max_examples=0)


def test_max_examples_holds_on_every_level() -> None:
    full = hundred_examples()
    check_counts(Share(EXACT, TREE, EXACT.cells(TREE, full)), "ann", max_examples=100)
    full[0, 1, 15] = 1
    with pytest.raises(ImpossibleCountsError, match="max_examples=100"):
        check_counts(Share(EXACT, TREE, EXACT.cells(TREE, full)), "ann", max_examples=100)


@pytest.mark.parametrize("weights", [(1, 1), (8, 1), (1, 8)])
@pytest.mark.parametrize(
    "privacy", [LocalDP(1.0), DistributedDP(1.0, min_clients=3, trusted_aggregator=True)]
)
def test_noise_is_not_taken_for_examples(privacy: LocalDP, weights: tuple[int, ...]) -> None:
    spec = Spec("binary", 1, ScoreGrid(bins=16), privacy)
    query = weighted(Tree((4, 4)), *weights)
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 100
    shares = [Share(spec, query, noisy_cells(spec, query, counts)) for _ in range(300)]
    assert Release.sum(shares, max_examples=100).shares == 300


@pytest.mark.parametrize(
    ("place", "amount"),
    [(0, 200), (9, 200), (9, -200)],
    ids=["upper level", "leaf", "below zero"],
)
def test_poison_beyond_the_noise_is_refused(place: int, amount: int) -> None:
    counts = torch.zeros(1, 2, 16, dtype=torch.int64)
    counts[0, 0, 3] = 100
    poisoned = noisy_cells(PRIVATE, TREE, counts)
    poisoned[0, 1, place] += amount
    with pytest.raises(ImpossibleCountsError, match="because of noise"):
        Release.sum([Share(PRIVATE, TREE, poisoned)], max_examples=100)


def test_a_level_that_is_counted_more_often_is_checked_more_closely() -> None:
    """Its noise is 8 times less: 200 examples too many stand out, and on the leaves they do not."""
    query = weighted(Tree((4, 4)), 8, 1)
    noisy = noisy_cells(PRIVATE, query, torch.zeros(1, 2, 16, dtype=torch.int64))
    top_level = noisy.clone()
    top_level[0, 1, 2] += 8 * 200
    leaves = noisy.clone()
    leaves[0, 1, 4 + 5] += 200
    with pytest.raises(ImpossibleCountsError, match="because of noise"):
        check_counts(Share(PRIVATE, query, top_level), "ann", max_examples=100)
    check_counts(Share(PRIVATE, query, leaves), "ann", max_examples=100)


@pytest.mark.parametrize("weight", [1 / 7, 1.0, 50.0])
@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_the_tail_of_the_noise_bounds_it_and_is_not_wide(weight: float, rate: float) -> None:
    """The reference is the exact quantile of the difference of two negative binomials."""
    size = int((400 + 60 * weight**0.5) / rate)
    half = stats.nbinom(weight, -math.expm1(-rate)).pmf(np.arange(size))
    tail = np.convolve(half, half[::-1])[size - 1 :][::-1].cumsum()[::-1]
    variance = 2 * math.exp(-rate) / math.expm1(-rate) ** 2
    for probability in (1e-3, 1e-9):
        quantile = int(np.flatnonzero(tail > probability)[-1])
        bound = noise_tail(variance, weight, probability)
        assert quantile <= bound <= 2 * quantile + 5
