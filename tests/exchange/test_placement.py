"""Placement: leaves from a private release only, fractions that add up to one epsilon, estimates on every bin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grids import grid_for
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    ScoreGrid,
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    federated_collection,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import LedgerConflictError, SpecMismatchError
from torchmetrics_fed.exchange import next_query
from torchmetrics_fed.exchange.placement import (
    ScoreMass,
    pilot_query,
    placed_query,
    snapped,
)
from torchmetrics_fed.functional import auroc
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts
from torchmetrics_fed.release import Sum

ONE = CentralDP(1.0)


def updated(examples: int = 20_000, seed: int = 0, **options: Any) -> FederatedROC:
    metric = FederatedROC(**({"privacy": ONE} | options))
    count(metric, examples, seed)
    return metric


def count(metric: FederatedROC, examples: int = 20_000, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    metric.update((torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target)


def test_a_query_is_never_placed_by_exact_counts() -> None:
    with pytest.raises(InputError, match="private release"):
        placed_query(updated(privacy=None).release().last, 1.0)


def test_both_queries_spend_epsilon_once_in_one_entry() -> None:
    ledger = PrivacyLedger(budget=1.0)
    release = updated(plan="adaptive", ledger=ledger).release()
    assert len(ledger) == 1
    assert ledger.spent().epsilon == 1.0
    pilot, last = release.queries
    assert pilot == pilot_query(ScoreGrid.two_sided())
    assert pilot.fraction + last.fraction == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 0.7, 3.3])
def test_the_noise_of_both_queries_adds_up_to_epsilon_exactly(epsilon: float) -> None:
    """Pure noise of rate r loses r for each cell that an example is in: one of every level of both queries."""
    release = updated(privacy=CentralDP(epsilon), plan="adaptive").release()
    assert len(release.sums) == 2
    loss = 0.0
    for one in release.sums:
        rate = 2 * math.asinh(math.sqrt(0.5 / one.noise_variance))
        loss += rate * sum(one.query.level_weights)
    assert loss == pytest.approx(epsilon, rel=1e-9)


def test_leaves_follow_the_scores() -> None:
    narrow = FederatedROC(privacy=ONE, plan="adaptive")
    target = torch.randint(0, 2, (50_000,))
    narrow.update(0.4 + 0.02 * torch.rand(50_000), target)
    release = narrow.release()
    pilot, edges = release.sums[0].edges, release.last.edges
    low, high = (
        pilot[pilot < 0.4][-1],
        pilot[pilot > 0.42][0],
    )  # all that the pilot can know of where the scores are
    assert bool(((edges >= low) & (edges <= high)).double().mean() > 0.7)
    assert release.last.query.tree.branching == (
        16,
        16,
    )  # most of the mass in one leaf of the pilot: more leaves


def answered(counts: torch.Tensor) -> Sum:
    """The sum of a pilot over these counts, its noise too small to matter."""
    spec = FederatedROC(privacy=CentralDP(1.0)).spec
    query = pilot_query(spec.grid)
    return Sum(spec, query, spec.cells(query, counts.long()), 1)


def test_an_end_bin_is_a_leaf_of_its_own_only_where_scores_crowd_at_that_end() -> None:
    grid = ScoreGrid.two_sided()
    spread = 20_000 * torch.from_numpy(np.diff(grid.coordinate)).expand(1, 2, -1)
    for zeros, ones in ((0, 0), (8_000, 0), (0, 8_000), (20_000, 20_000)):
        counts = spread.clone()
        counts[..., 0] += zeros
        counts[..., -1] += ones
        seen = answered(counts)
        places = placed_query(seen, 61 / 64).tree.places(grid.bins).numpy()
        assert (places[1] == 1, places[-2] == grid.bins - 1) == (zeros > 0, ones > 0)
        assert (np.diff(places) > 0).all()
        if not zeros and not ones:
            even = np.linspace(0, 1, len(places))
            at = np.interp(even, ScoreMass.of(seen).below, grid.coordinate)
            assert np.array_equal(places, snapped(at, grid))


@pytest.mark.parametrize("plan", [None, "single", "adaptive", "carry_over", "paper"])
def test_every_plan_finds_the_area(plan: Any) -> None:
    metric = updated(40_000, plan=plan, grid=grid_for(plan))
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (40_000,), generator=generator)
    exact = auroc((torch.randn(40_000, generator=generator) + 1.5 * target).sigmoid(), target)
    assert abs(FederatedAUROC.from_release(metric.release()).compute() - exact) < 0.02


def test_the_next_evaluation_is_placed_by_the_last_release() -> None:
    metric = updated(plan="carry_over")
    first = metric.release()
    assert len(first.queries) == 2  # nothing to carry yet
    metric.reset()
    count(metric, seed=1)
    assert metric.release().queries == (placed_query(first.last, 1.0),)
    assert metric.ledger.spent().epsilon == 2


def test_a_collection_carries_over_for_all_its_metrics() -> None:
    collection = federated_collection(metrics=["roc", "auroc"], privacy=ONE, plan="carry_over")
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        collection.update(
            torch.rand(5_000, generator=generator),
            torch.randint(0, 2, (5_000,), generator=generator),
        )
        collection.compute()
        roc: Any = collection["roc"]
        release = roc.release()
        collection.reset()
    (query,) = release.queries
    assert query.tree.edges is not None


def clients(privacy: Any, number: int = 4) -> dict[str, FederatedROC]:
    return {
        f"client {seed}": updated(5_000, seed, privacy=privacy, plan="adaptive")
        for seed in range(number)
    }


def exchanged(metrics: dict[str, FederatedROC]) -> Release:
    """The release of clients that a coordinator asks, each query as bytes."""
    coordinator = Coordinator(next(iter(metrics.values())), round="round")
    while (query := coordinator.query) is not None:
        for name, metric in metrics.items():
            coordinator.receive(
                name, bytes(metric.share(round="round", query=Query.from_bytes(bytes(query))))
            )
        coordinator.advance()
    return coordinator.release


VISIBLE = [LocalDP(2.0), DistributedDP(2.0, min_clients=3, trusted_aggregator=True)]


@pytest.mark.parametrize("privacy", VISIBLE, ids=["local", "trusted"])
def test_clients_answer_two_queries_and_no_third(privacy: Any) -> None:
    metrics = clients(privacy)
    release = exchanged(metrics)
    first, second = release.queries
    assert second == placed_query(release.sums[0], 1 - first.fraction)
    assert FederatedROC.from_release(release).compute().tpr[-1] == 1
    assert all(metric.ledger.spent().epsilon == 2.0 for metric in metrics.values())
    asked = metrics["client 0"]
    again = [asked.share(round="round", query=query) for query in release.queries]
    assert all(share is asked.share(round="round", query=share.query) for share in again)
    with pytest.raises(LedgerConflictError, match="spend its epsilon once"):
        asked.share(round="round", query=Query(Tree((16,)), 0.5))
    with pytest.raises(ReleaseError, match="round"):
        asked.share(round="another", query=second)
    assert asked.ledger.spent().epsilon == 2.0


@pytest.mark.parametrize("privacy", VISIBLE, ids=["local", "trusted"])
def test_a_server_that_asks_for_more_than_the_fraction_left_is_refused(privacy: Any) -> None:
    """Not by the plan, which is the aggregator's, but by the ledger, and what is left can still be asked for."""
    metric = updated(1_000, privacy=privacy)
    first = pilot_query(ScoreGrid.two_sided())
    metric.share(round="round", query=first)
    for fraction in (1.0, 1 - first.fraction + 2.0**-10):
        with pytest.raises(LedgerConflictError, match="fraction that is left"):
            metric.share(round="round", query=Query(Tree((16,)), fraction))
    metric.share(round="round", query=Query(Tree((16,)), 1 - first.fraction))
    with pytest.raises(LedgerConflictError, match="fraction that is left"):
        metric.share(round="round", query=Query(Tree((32,)), 2.0**-10))
    assert [entry.epsilon for entry in metric.ledger] == [2.0]


def test_sums_of_another_spec_or_of_too_much_make_no_release() -> None:
    release = exchanged(clients(LocalDP(1.0)))
    pilot, _ = release.sums
    whole = Release.sum([updated(privacy=LocalDP(1.0)).share(round="round")]).last
    with pytest.raises(ReleaseError, match="spend all of epsilon"):
        Release((pilot, whole))
    with pytest.raises(ReleaseError, match="Coordinator"):
        Release((pilot,))
    other = exchanged(clients(LocalDP(0.5))).last
    with pytest.raises(SpecMismatchError):
        Release((pilot, other))


def test_a_plan_without_privacy_or_with_too_few_bins_is_refused() -> None:
    with pytest.raises(InputError, match="without `privacy`"):
        FederatedROC(plan="adaptive")
    with pytest.raises(InputError, match="at least 256 bins"):
        FederatedROC(privacy=ONE, quantiles=16, plan="adaptive")
    with pytest.raises(InputError, match="plan"):
        FederatedROC(privacy=ONE, plan="three_round")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no epsilon to divide"):
        updated(privacy=None).share(query=Query(Tree((16,)), 0.5))


@pytest.mark.parametrize(
    "options", [{"task": "multiclass", "num_classes": 3}, {"task": "multilabel", "num_labels": 3}]
)
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_several_classes_share_the_leaves(options: dict[str, Any], multi_class: Any) -> None:
    if options["task"] == "multilabel" and multi_class == "ovo":
        pytest.skip("only classes can be one against one")
    metric = FederatedAUROC(privacy=CentralDP(3.0), multi_class=multi_class, **options)
    target = (
        torch.randint(0, 3, (6_000,))
        if "num_classes" in options
        else torch.randint(0, 2, (6_000, 3))
    )
    one_hot = torch.nn.functional.one_hot(target, 3) if target.ndim == 1 else target
    metric.update((torch.randn(6_000, 3) + 2 * one_hot).sigmoid(), target)
    assert 0.85 < metric.compute() < 0.97
    assert len(metric.release().queries) == 2  # several classes are placed like one


@given(
    cells=st.lists(
        st.sampled_from([-50, -1, 0, 0, 0, 1, 3, 1_000, 10**6, 10**9]), min_size=48, max_size=48
    ),
    more=st.lists(st.sampled_from([-50, -1, 0, 0, 1, 3, 1_000, 10**6]), min_size=2, max_size=80),
    epsilon=st.sampled_from([1e-3, 0.1, 1.0, 20.0]),
    bins=st.sampled_from([256, 4096]),
)
@settings(max_examples=150, deadline=None)
def test_any_integers_give_finite_counts(
    cells: list[int], more: list[int], epsilon: float, bins: int
) -> None:
    """Whatever noise makes of the sums: a query, and counts on every bin that are numbers and not negative."""
    spec = FederatedROC(quantiles=bins // 4, privacy=CentralDP(epsilon)).spec
    first = pilot_query(ScoreGrid.two_sided(bins // 4))
    pilot = Sum(spec, first, torch.tensor(cells).reshape(spec.shape(first)))
    second = next_query("adaptive", [pilot], spec=spec)
    assert second is not None
    assert first.fraction + second.fraction == 1
    noisy = torch.from_numpy(np.resize(more, spec.shape(second)))
    whole = Query(second.tree)
    for release in (
        Release((pilot, Sum(spec, second, noisy))),
        Release((Sum(spec, whole, noisy),)),
    ):
        counts = bin_counts(release)
        assert counts.shape == (1, 2, bins)
        assert bool(counts.isfinite().all())
        assert bool((counts >= 0).all())
        assert placed_query(release.last, 1.0).tree.fits(bins)


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1e-6, 1.5, math.nan])
def test_a_server_cannot_ask_for_a_fraction_that_is_none(fraction: float) -> None:
    metric = updated(100, privacy=LocalDP(1.0))
    with pytest.raises(InputError, match="fraction"):
        metric.share(round="round", query=Query(Tree((16,)), fraction))
    assert len(metric.ledger) == 0


def masked(metric: FederatedROC, query: Query, round: str) -> bytes:
    """This metric's answer in an aggregation with two others, up to the masked vector."""
    config = SecureAggregationConfig.for_query(metric.spec, query, f"{round}/{query.fraction}")
    server = SecureAggregationServer(config)
    members = {name: SecureAggregationClient(name, config) for name in ("ann", "ben", "eve")}
    for name, member in members.items():
        server.receive(name, member.advertise())
    keys = server.keys()
    for name, member in members.items():
        server.receive(name, member.share_keys(keys))
    return metric.mask(members["ann"], server.ciphertexts()["ann"], round=round, query=query)


def test_a_redraw_for_another_round_starts_over() -> None:
    metric = updated(100, privacy=DistributedDP(1.0, min_clients=3))
    first = pilot_query(ScoreGrid.two_sided())
    queries = first, Query(Tree((16,)), 1 - first.fraction)
    for round in ("first", "second"):
        for query in queries:
            masked(metric, query, round)
        with pytest.raises(LedgerConflictError, match="fraction that is left"):
            masked(metric, Query(Tree((32,)), 0.5), round)
    assert [entry.round for entry in metric.ledger] == ["first", "second"]
    assert metric.ledger.spent().epsilon == 2.0
