"""ScoreMass: it rises from 0 to 1, follows the scores, and reads the levels that are known best."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.queries import weighted
from torchmetrics_fed import CentralDP, FederatedROC, Query
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.placement import pilot_query
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass, noisy_leaves
from torchmetrics_fed.release import Sum

SPEC = FederatedROC(privacy=CentralDP(1.0)).spec
PILOT = pilot_query(SPEC)
BINS = SPEC.grid.bins


def counts_of(scores: Tensor, target: Tensor) -> Tensor:
    metric = FederatedROC()
    metric.update(scores, target)
    return metric.counts


def normal_counts(examples: int = 20_000) -> Tensor:
    """Return the counts of two normal classes."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (examples,), generator=generator)
    logits = torch.randn(examples, generator=generator) + 1.5 * target
    return counts_of(logits.sigmoid(), target)


def summed(query: Query, counts: Tensor) -> Sum:
    """Return the sum of a query over these counts, without noise in its cells."""
    return Sum(SPEC, query, SPEC.cells(query, counts))


@given(cells=st.lists(st.integers(-100, 10**6), min_size=48, max_size=48))
@settings(max_examples=50, deadline=None)
def test_a_mass_rises_from_0_to_1_whatever_the_noise(cells: list[int]) -> None:
    total = Sum(SPEC, PILOT, torch.tensor(cells).reshape(SPEC.shape(PILOT)))
    below = ScoreMass.of(total).below
    assert below[0] == 0
    assert below[-1] == pytest.approx(1)
    assert bool((np.diff(below) > 0).all())


def test_the_mass_of_smooth_scores_is_theirs() -> None:
    counts = normal_counts()
    mass = ScoreMass.of(summed(PILOT, counts))
    assert mass.smooth == (True,)
    shares = counts[0] / counts[0].sum(-1, keepdim=True)
    exact = np.pad(shares.double().cumsum(-1).numpy(), ((0, 0), (1, 0)))
    assert mass.rows_below() == pytest.approx(exact, abs=0.02)
    assert mass.sizes[0] == pytest.approx(counts[0].sum(-1).numpy())


def test_tied_scores_have_no_smooth_mass() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (20_000,), generator=generator)
    scores = torch.randint(1, 5, (20_000,), generator=generator) / 5
    total = summed(PILOT, counts_of(scores, target))
    mass = ScoreMass.of(total)
    assert mass.smooth == (False,)
    shares = total.leaf[0].double() / total.leaf[0].sum(-1, keepdim=True)
    assert mass.spread[0] == pytest.approx(shares.numpy(), abs=1e-9)


def test_an_empty_sum_is_spread_over_the_whole_range() -> None:
    mass = ScoreMass.of(summed(PILOT, torch.zeros(1, 2, BINS, dtype=torch.int64)))
    assert mass.below == pytest.approx(SPEC.grid.coordinate, abs=0.1)


def test_a_mass_is_computed_once_for_a_sum() -> None:
    total = summed(PILOT, normal_counts())
    assert ScoreMass.of(total) is ScoreMass.of(total)


EDGES = tuple(range(0, BINS + 1, BINS // 64))


def test_leaves_of_one_level_are_all_that_the_model_is_fitted_to() -> None:
    total = summed(Query(Tree((64,), EDGES)), normal_counts())
    ((leaves,),) = noisy_leaves(total)
    assert np.array_equal(leaves.counts, total.leaf[0].numpy())
    assert np.array_equal(leaves.edges, EDGES)
    assert np.all(leaves.variance == total.noise_variance)


def test_of_three_levels_the_upper_two_are_known_best() -> None:
    """The third level is added up into the second one, by inverse variance."""
    total = summed(weighted(Tree((4, 4, 4), EDGES), 4, 1, 1), normal_counts())
    ((middle, top),) = noisy_leaves(total)
    sums = total.leaf[0].double()
    assert middle.counts == pytest.approx(sums.unflatten(-1, (16, 4)).sum(-1).numpy())
    assert top.counts == pytest.approx(sums.unflatten(-1, (4, 16)).sum(-1).numpy())
    assert middle.variance == pytest.approx(total.noise_variance / (1 + 1 / 4))
    assert top.variance == pytest.approx(total.noise_variance / 16)


@pytest.mark.parametrize(
    "query",
    [Query(Tree((8, 8), EDGES)), Query(Tree((4, 4, 4), EDGES))],
    ids=["two levels", "three levels counted once"],
)
def test_other_trees_need_no_model(query: Query) -> None:
    total = summed(query, normal_counts())
    assert noisy_leaves(total) == []
    assert ScoreMass.of(total).smooth == (False,)
