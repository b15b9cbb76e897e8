"""Releases of two queries: one epsilon, one ledger entry, no third query."""

from __future__ import annotations

import math

import pytest
import torch

from tests.queries import level_weights
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import LedgerConflictError, SpecMismatchError
from torchmetrics_fed.exchange.placement import pilot_query, placed_query
from torchmetrics_fed.exchange.plans import PlanName

PILOT = pilot_query(Spec.build("binary", privacy=LocalDP(2.0)))
LAST_FRACTION = 1 - PILOT.fraction
VISIBLE = [LocalDP(2.0), DistributedDP(2.0, min_clients=3, trusted_aggregator=True)]
"""Settings under which the aggregator sees shares."""


def updated(
    privacy: Privacy | None,
    *,
    plan: PlanName | None = None,
    examples: int = 5_000,
    seed: int = 0,
    ledger: PrivacyLedger | None = None,
) -> FederatedROC:
    """Return a metric with the scores of two normal classes."""
    metric = FederatedROC(privacy=privacy, plan=plan, ledger=ledger)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    metric.update((torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target)
    return metric


def clients(privacy: Privacy, number: int = 4) -> dict[str, FederatedROC]:
    return {
        f"client {seed}": updated(privacy, plan="adaptive", seed=seed) for seed in range(number)
    }


def exchanged(metrics: dict[str, FederatedROC]) -> Release:
    """Return the release of clients that a coordinator asks, each query as bytes."""
    coordinator = Coordinator(next(iter(metrics.values())), round="round")
    while coordinator.query is not None:
        query = Query.from_bytes(bytes(coordinator.query))
        for name, metric in metrics.items():
            coordinator.receive(name, bytes(metric.share(round="round", query=query)))
        coordinator.advance()
    return coordinator.release


def test_both_queries_spend_epsilon_once_in_one_entry() -> None:
    ledger = PrivacyLedger(budget=1.0)
    release = updated(CentralDP(1.0), plan="adaptive", ledger=ledger).release()
    assert len(ledger) == 1
    assert ledger.spent().epsilon == 1.0
    pilot, last = release.queries
    assert pilot == PILOT
    assert pilot.fraction + last.fraction == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 0.7, 3.3])
def test_the_noise_of_both_queries_adds_up_to_epsilon_exactly(epsilon: float) -> None:
    """Noise of rate r loses r for each cell of an example: one of every level of both queries."""
    release = updated(CentralDP(epsilon), plan="adaptive").release()
    assert len(release.sums) == 2
    loss = 0.0
    for part in release.sums:
        rate = 2 * math.asinh(math.sqrt(0.5 / part.noise_variance))
        loss += rate * sum(level_weights(part.query))
    assert loss == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("privacy", VISIBLE, ids=["local", "trusted"])
def test_a_coordinator_asks_two_queries(privacy: Privacy) -> None:
    metrics = clients(privacy)
    release = exchanged(metrics)
    first, second = release.queries
    assert second == placed_query(release.sums[0], 1 - first.fraction)
    assert FederatedROC.from_release(release).compute().tpr[-1] == 1
    assert all(metric.ledger.spent().epsilon == 2.0 for metric in metrics.values())


@pytest.mark.parametrize("privacy", VISIBLE, ids=["local", "trusted"])
def test_a_client_answers_two_queries_again_and_no_third(privacy: Privacy) -> None:
    metrics = clients(privacy)
    queries = exchanged(metrics).queries
    client = metrics["client 0"]
    for query in queries:
        share = client.share(round="round", query=query)
        assert share is client.share(round="round", query=query)
    with pytest.raises(LedgerConflictError, match="spend its epsilon once"):
        client.share(round="round", query=Query(Tree((16,)), 0.5))
    with pytest.raises(ReleaseError, match="round"):
        client.share(round="another", query=queries[1])
    assert client.ledger.spent().epsilon == 2.0


@pytest.mark.parametrize("privacy", VISIBLE, ids=["local", "trusted"])
def test_the_ledger_refuses_more_than_the_fraction_left(privacy: Privacy) -> None:
    """The plan is the aggregator's, so the client's ledger has to refuse."""
    metric = updated(privacy, examples=1_000)
    metric.share(round="round", query=PILOT)
    for fraction in (1.0, LAST_FRACTION + 2.0**-10):
        with pytest.raises(LedgerConflictError, match="fraction that is left"):
            metric.share(round="round", query=Query(Tree((16,)), fraction))
    metric.share(round="round", query=Query(Tree((16,)), LAST_FRACTION))
    with pytest.raises(LedgerConflictError, match="fraction that is left"):
        metric.share(round="round", query=Query(Tree((32,)), 2.0**-10))
    assert [entry.epsilon for entry in metric.ledger] == [2.0]


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1e-6, 1.5, math.nan])
def test_a_fraction_outside_0_and_1_is_refused(fraction: float) -> None:
    metric = updated(LocalDP(1.0), examples=100)
    with pytest.raises(InputError, match="fraction"):
        metric.share(round="round", query=Query(Tree((16,)), fraction))
    assert len(metric.ledger) == 0


def test_exact_counts_have_no_epsilon_to_divide() -> None:
    with pytest.raises(InputError, match="no epsilon to divide"):
        updated(None).share(query=Query(Tree((16,)), 0.5))


def test_sums_of_another_spec_or_of_too_much_make_no_release() -> None:
    pilot, _ = exchanged(clients(LocalDP(1.0))).sums
    share = updated(LocalDP(1.0)).share(round="round")
    with pytest.raises(ReleaseError, match="spend all of epsilon"):
        Release((pilot, Release.sum([share]).last))
    with pytest.raises(ReleaseError, match="Coordinator"):
        Release((pilot,))
    last_of_another_spec = exchanged(clients(LocalDP(0.5))).last
    with pytest.raises(SpecMismatchError):
        Release((pilot, last_of_another_spec))


def masked(metric: FederatedROC, query: Query, round: str) -> bytes:
    """Return this metric's masked vector in an aggregation with two other clients."""
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
    metric = updated(DistributedDP(1.0, min_clients=3), examples=100)
    for round in ("first", "second"):
        masked(metric, PILOT, round)
        masked(metric, Query(Tree((16,)), LAST_FRACTION), round)
        with pytest.raises(LedgerConflictError, match="fraction that is left"):
            masked(metric, Query(Tree((32,)), 0.5), round)
    assert [entry.round for entry in metric.ledger] == ["first", "second"]
    assert metric.ledger.spent().epsilon == 2.0
