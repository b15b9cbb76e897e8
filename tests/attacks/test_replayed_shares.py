"""Attack 2: the same bytes, delivered again or under several names, are one share of a client."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    Privacy,
    Query,
    Release,
    ReleaseError,
    Share,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import DuplicateClientError, WireError

NEEDED = 8
TRUSTED = DistributedDP(1.0, min_clients=NEEDED, trusted_aggregator=True)


def client(privacy: Privacy | None = TRUSTED) -> FederatedROC:
    metric = FederatedROC(quantiles=64, privacy=privacy)
    metric.update(torch.rand(50), torch.randint(0, 2, (50,)))
    return metric


def only_query(metric: FederatedROC) -> Query:
    """Return a query that spends all of epsilon at once."""
    return Query(Tree.balanced(metric.spec.grid.bins))


def test_eight_copies_of_one_payload_are_not_eight_clients() -> None:
    """With noise for ``min_clients=8``, a single share hides almost nothing and is not opened."""
    victim = client()
    query = only_query(victim)
    payload = bytes(victim.share(round="7", query=query))
    copies = [Share.from_bytes(payload, victim.spec, query) for _ in range(NEEDED)]
    with pytest.raises(
        DuplicateClientError, match="share 1, counted from 0, holds 1 that came before"
    ):
        Release.sum(copies)
    sum_of_one = Release.sum(copies[:1])
    assert sum_of_one.shares == 1
    with pytest.raises(ReleaseError, match="min_clients=8"):
        _ = sum_of_one.leaf
    with pytest.raises(ReleaseError, match="min_clients=8"):
        FederatedROC.from_release(sum_of_one).compute()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_coordinator_counts_bytes_once_whoever_sends_them(resumed: bool) -> None:
    metric = FederatedROC(quantiles=64, privacy=TRUSTED)
    coordinator = Coordinator(metric, round="7")
    assert coordinator.query is not None
    payload = bytes(client().share(round="7", query=coordinator.query))
    coordinator.receive("victim", payload)
    if resumed:
        coordinator = Coordinator.from_bytes(coordinator.to_bytes(), metric)
    for number in range(NEEDED):
        with pytest.raises(DuplicateClientError, match="holds 1 that came before"):
            coordinator.receive(f"invented {number}", payload)
    with pytest.raises(DuplicateClientError, match="'victim' has answered"):
        coordinator.receive("victim", payload)
    assert coordinator.received == 1
    with pytest.raises(ReleaseError, match="min_clients=8 clients but got 1"):
        coordinator.advance()
    with pytest.raises(ReleaseError):
        _ = coordinator.release


@pytest.mark.parametrize("resumed", [False, True])
def test_a_sender_is_one_client_whatever_it_sends(resumed: bool) -> None:
    metric = FederatedROC(quantiles=64, privacy=TRUSTED)
    coordinator = Coordinator(metric, round="7")
    query = coordinator.query
    assert query is not None
    coordinator.receive("liar", bytes(client().share(round="7", query=query)))
    if resumed:
        coordinator = Coordinator.from_bytes(coordinator.to_bytes(), metric)
    for _ in range(NEEDED):
        with pytest.raises(DuplicateClientError, match="'liar' has answered"):
            coordinator.receive("liar", bytes(client().share(round="7", query=query)))
    assert coordinator.received == 1


def test_a_replay_is_refused_wherever_it_hides() -> None:
    """It may hide in a part of the sum, in a part of a part, and in a part that has travelled."""
    metrics = [client(None) for _ in range(4)]
    a, b, c, d = (metric.share(round="7") for metric in metrics)
    part = Release.sum([a, b])
    replaying = Release.sum([c, Release.sum([a, d])])
    travelled = Release.from_bytes(bytes(replaying))
    with pytest.raises(DuplicateClientError, match="holds 1 that came before"):
        Release.sum([part, travelled])
    assert Release.sum([part, Release.sum([c, d])]).shares == 4


def test_answers_to_the_first_query_do_not_answer_the_second() -> None:
    clients = {name: client(LocalDP(1.0)) for name in "abc"}
    coordinator = Coordinator(FederatedROC(quantiles=64, privacy=LocalDP(1.0)), round="7")
    first = coordinator.query
    assert first is not None
    payloads = {}
    for name, metric in clients.items():
        payloads[name] = bytes(metric.share(round="7", query=first))
        coordinator.receive(name, payloads[name])
    coordinator.advance()
    assert coordinator.query not in (None, first)
    for name, payload in payloads.items():
        with pytest.raises(WireError, match="answers another"):
            coordinator.receive(name, payload)
    with pytest.raises(ReleaseError, match="answers another"):
        coordinator.receive("a", Share.from_bytes(payloads["a"], coordinator.spec, first))
    assert coordinator.received == 0


def test_an_id_is_made_with_the_draw() -> None:
    """A repeated query gets the same share, so that a retry is no second client."""
    metric = client(LocalDP(1.0))
    query = only_query(metric)
    share = metric.share(round="7", query=query)
    assert bytes(metric.share(round="7", query=query)) == bytes(share)
    with pytest.raises(DuplicateClientError):
        Release.sum([share, metric.share(round="7", query=query)])
    ids = {client(LocalDP(1.0)).share(round="7", query=query).id for _ in range(20)}
    assert len(ids | {share.id}) == 21
    assert {len(name) for name in ids} == {16}


def test_exact_counts_that_are_sent_again_are_the_same_share() -> None:
    """They have no draw: their id comes from the client, its counts, the query and the round."""
    metric = FederatedROC(quantiles=64)
    twin = FederatedROC(quantiles=64)
    for counting in (metric, twin):
        counting.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    share = metric.share(round="7")
    assert bytes(metric.share(round="7")) == bytes(share)
    with pytest.raises(DuplicateClientError):
        Release.sum([share, metric.share(round="7")])
    # Equal data of two clients are two shares.
    assert Release.sum([share, twin.share(round="7")]).shares == 2
    assert metric.share(round="8").id != share.id
    metric.update(torch.tensor([0.3]), torch.tensor([1]))
    assert metric.share(round="7").id != share.id
