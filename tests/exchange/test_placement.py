"""Placement: leaves from a private sum only, where the scores are, with a bin for every leaf."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.grids import grid_for
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    Query,
    Release,
    ScoreGrid,
    Spec,
    federated_collection,
)
from torchmetrics_fed.exchange import next_query, plan_from
from torchmetrics_fed.exchange.placement import (
    pilot_query,
    placed_query,
    single_query,
    snapped,
)
from torchmetrics_fed.exchange.plans import PlanName
from torchmetrics_fed.functional import auroc
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Sum
from torchmetrics_fed.typing import MultiClass

GRID = ScoreGrid.two_sided()
SPEC = FederatedROC(privacy=CentralDP(1.0)).spec
LAST_FRACTION = 1 - pilot_query(SPEC).fraction


def normal(examples: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return scores and labels of two normal classes."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target


def pilot_sum(counts: Tensor) -> Sum:
    """Return the sum of a pilot over these counts, without noise in its cells."""
    query = pilot_query(SPEC)
    return Sum(SPEC, query, SPEC.cells(query, counts.long()))


def leaves_of(counts: Tensor, epsilon: float) -> int:
    """Return the number of leaves that a pilot over these counts asks for."""
    spec = FederatedROC(privacy=CentralDP(epsilon)).spec
    query = pilot_query(spec)
    total = Sum(spec, query, spec.cells(query, counts.long()))
    return placed_query(total, LAST_FRACTION).tree.leaves


def even_counts(examples: float) -> Tensor:
    """Return counts that are even in the grid's own coordinate, ``(1, 2, bins)``."""
    widths = torch.from_numpy(np.diff(GRID.coordinate))
    return (examples * widths).expand(1, 2, -1).clone()


def test_a_query_is_never_placed_by_exact_counts() -> None:
    metric = FederatedROC()
    metric.update(*normal())
    with pytest.raises(InputError, match="private release"):
        placed_query(metric.release().last, 1.0)


@given(
    places=st.lists(st.floats(0, 1), min_size=2, max_size=60),
    bins=st.sampled_from([64, 256, 4096]),
)
@settings(max_examples=100, deadline=None)
def test_every_leaf_has_a_bin(places: list[float], bins: int) -> None:
    grid = ScoreGrid.two_sided(bins // 4)
    result = snapped(np.sort(places), grid)
    assert result[0] == 0
    assert result[-1] == bins
    assert bool((np.diff(result) >= 1).all())


def test_coordinates_that_are_far_apart_snap_to_the_nearest_edges() -> None:
    coordinates = np.array([0.0, 0.31, 0.5, 0.62, 1.0])
    distances = np.abs(GRID.coordinate[:, None] - coordinates)
    assert np.array_equal(snapped(coordinates, GRID), distances.argmin(0))


@pytest.mark.parametrize("query", [pilot_query(SPEC), single_query(SPEC)])
def test_leaves_that_need_no_data_are_even_in_the_coordinate(query: Query) -> None:
    edges = GRID.coordinate[query.tree.places(GRID.bins).numpy()]
    widths = np.diff(edges)
    assert np.median(widths) == pytest.approx(1 / query.tree.leaves, rel=0.02)


@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_a_single_query_asks_for_all_of_few_bins(epsilon: float) -> None:
    spec = FederatedROC(quantiles=16, privacy=CentralDP(epsilon), plan="single").spec
    tree = single_query(spec).tree
    assert tree.edges is None
    assert tree.leaves == 64


def test_placed_leaves_have_equal_mass() -> None:
    counts = torch.zeros(1, 2, GRID.bins)
    metric = FederatedROC()
    metric.update(*normal(100_000))
    counts += metric.counts
    total = pilot_sum(counts)
    places = placed_query(total, LAST_FRACTION).tree.places(GRID.bins).numpy()
    mass = np.diff(ScoreMass.of(total).below[places])
    assert mass == pytest.approx(np.full(len(mass), 1 / len(mass)), rel=0.1)


def test_leaves_follow_the_scores() -> None:
    """Scores in [0.4, 0.42] lie in one or two leaves of the pilot, and so do most new leaves."""
    metric = FederatedROC(privacy=CentralDP(1.0), plan="adaptive")
    metric.update(0.4 + 0.02 * torch.rand(50_000), torch.randint(0, 2, (50_000,)))
    pilot, last = metric.release().sums
    low = pilot.edges[pilot.edges < 0.4][-1]
    high = pilot.edges[pilot.edges > 0.42][0]
    is_inside = (last.edges >= low) & (last.edges <= high)
    assert float(is_inside.double().mean()) > 0.7
    assert len(last.query.tree.branching) == 2  # a crowded pilot leaf: more leaves, on two levels


def test_more_examples_and_more_epsilon_feed_more_leaves() -> None:
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    by_size = [leaves_of(even_counts(size), epsilon=1.0) for size in sizes]
    by_epsilon = [leaves_of(even_counts(20_000), epsilon) for epsilon in (0.1, 0.5, 1.0, 3.0)]
    assert by_size == sorted(by_size)
    assert by_size[-1] > by_size[0]
    assert by_epsilon == sorted(by_epsilon)
    assert by_epsilon[-1] > by_epsilon[0]


@pytest.mark.parametrize(
    ("zeros", "ones"), [(0, 0), (8_000, 0), (0, 8_000), (20_000, 20_000)], ids=str
)
def test_an_end_bin_is_a_leaf_only_where_scores_crowd_at_that_end(zeros: int, ones: int) -> None:
    counts = even_counts(20_000)
    counts[..., 0] += zeros
    counts[..., -1] += ones
    places = placed_query(pilot_sum(counts), LAST_FRACTION).tree.places(GRID.bins).numpy()
    assert (places[1] == 1) == (zeros > 0)
    assert (places[-2] == GRID.bins - 1) == (ones > 0)
    assert bool((np.diff(places) > 0).all())


@pytest.mark.parametrize("plan", [None, "single", "adaptive", "carry_over", "paper"])
def test_every_plan_finds_the_area(plan: PlanName | None) -> None:
    scored = normal(40_000)
    metric = FederatedAUROC(privacy=CentralDP(1.0), plan=plan, grid=grid_for(plan))
    metric.update(*scored)
    assert metric.compute() == pytest.approx(float(auroc(*scored)), abs=0.02)


def test_the_next_evaluation_is_placed_by_the_last_release() -> None:
    metric = FederatedROC(privacy=CentralDP(1.0), plan="carry_over")
    metric.update(*normal())
    first = metric.release()
    assert len(first.queries) == 2  # nothing to carry yet
    metric.reset()
    metric.update(*normal(seed=1))
    assert metric.release().queries == (placed_query(first.last, 1.0),)
    assert metric.ledger.spent().epsilon == 2


def test_a_collection_carries_over_for_all_its_metrics() -> None:
    collection = federated_collection(
        metrics=["roc", "auroc"], privacy=CentralDP(1.0), plan="carry_over"
    )
    for seed in range(2):
        collection.reset()
        collection.update(*normal(5_000, seed))
        collection.compute()
    roc = collection["roc"]
    assert isinstance(roc, FederatedROC)
    (query,) = roc.release().queries
    assert query.tree.edges is not None


@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_classes_share_the_leaves(multi_class: MultiClass) -> None:
    target = torch.randint(0, 3, (6_000,))
    positives = torch.nn.functional.one_hot(target, 3)
    metric = FederatedAUROC(
        "multiclass", num_classes=3, multi_class=multi_class, privacy=CentralDP(3.0)
    )
    scores = (torch.randn(6_000, 3) + 2 * positives).softmax(1)
    metric.update(scores, target)
    exact = FederatedAUROC("multiclass", num_classes=3, multi_class=multi_class)
    exact.update(scores, target)
    assert abs(metric.compute() - exact.compute()) < 0.05
    assert len(metric.release().queries) == 2


def test_labels_share_the_leaves() -> None:
    target = torch.randint(0, 2, (6_000, 3))
    metric = FederatedAUROC("multilabel", num_labels=3, privacy=CentralDP(3.0))
    metric.update((torch.randn(6_000, 3) + 2 * target).sigmoid(), target)
    assert 0.85 < metric.compute() < 0.97
    assert len(metric.release().queries) == 2


def check_estimate(release: Release, bins: int) -> None:
    """Assert that counts on every bin are numbers, not negative, and place another query."""
    counts = bin_counts(release)
    assert counts.shape == (1, 2, bins)
    assert bool(counts.isfinite().all())
    assert bool((counts >= 0).all())
    assert placed_query(release.last, 1.0).tree.fits(bins)


def second_query(pilot: Sum, spec: Spec) -> Query:
    query = next_query(plan_from("adaptive", spec), [pilot], spec=spec)
    assert query is not None
    return query


@given(
    pilot_cells=st.lists(
        st.sampled_from([-50, -1, 0, 0, 0, 1, 3, 1_000, 10**6, 10**9]), min_size=48, max_size=48
    ),
    last_cells=st.lists(
        st.sampled_from([-50, -1, 0, 0, 1, 3, 1_000, 10**6]), min_size=2, max_size=80
    ),
    epsilon=st.sampled_from([1e-3, 0.1, 1.0, 20.0]),
    bins=st.sampled_from([256, 4096]),
)
@settings(max_examples=150, deadline=None)
def test_any_integers_give_a_query_and_finite_counts(
    pilot_cells: list[int], last_cells: list[int], epsilon: float, bins: int
) -> None:
    """Whatever noise makes of the sums, of two queries and of one."""
    spec = FederatedROC(quantiles=bins // 4, privacy=CentralDP(epsilon)).spec
    first = pilot_query(spec)
    pilot = Sum(spec, first, torch.tensor(pilot_cells).reshape(spec.shape(first)))
    second = second_query(pilot, spec)
    assert first.fraction + second.fraction == 1
    cells = torch.from_numpy(np.resize(last_cells, spec.shape(second)))
    check_estimate(Release((pilot, Sum(spec, second, cells))), bins)
    check_estimate(Release((Sum(spec, Query(second.tree), cells),)), bins)


def test_groups_share_leaves_that_each_of_them_can_feed() -> None:
    names = tuple("abcd")
    few = FederatedROC(privacy=CentralDP(1.0), groups=names).spec
    query = pilot_query(few)
    shape = few.shape(query)
    leaves = []
    for examples in (1_000, 100_000):
        cells = torch.full(shape, examples // math.prod(shape[1:]))
        tree = placed_query(Sum(few, query, cells), LAST_FRACTION).tree
        assert len(tree.branching) == 1
        leaves.append(tree.leaves)
    assert leaves == sorted(leaves)
