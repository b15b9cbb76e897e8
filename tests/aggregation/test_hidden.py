"""Metrics through secure aggregation: the same release as in the clear, and no share for anybody to see."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedROC,
    InputError,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    Share,
)
from torchmetrics_fed.aggregation.secure import new_signing_keys
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.functional import roc

CLIENTS = "abcde"
SIXTEEN = Query(Tree((4, 16)))


class Aggregation:
    """One aggregation in one process, up to the boxes; the dropped clients send nothing from the masked vector on."""

    def __init__(self, config: SecureAggregationConfig, names: str = CLIENTS) -> None:
        keys = {name: new_signing_keys() for name in names} if config.signed else {}
        verification = (
            {name: pair.verification for name, pair in keys.items()} if config.signed else None
        )
        self.server = SecureAggregationServer(config)
        self.clients = {
            name: SecureAggregationClient(
                name, config, keys[name].signing if keys else None, verification
            )
            for name in names
        }
        for name, client in self.clients.items():
            self.server.receive(name, client.advertise())
        message = self.server.keys()
        for name, client in self.clients.items():
            self.server.receive(name, client.share_keys(message))
        self.boxes = self.server.ciphertexts()

    def finish(
        self, metrics: Mapping[str, FederatedROC], query: Query, round: str = "1", dropped: str = ""
    ) -> SecureAggregationServer:
        alive = [name for name in self.clients if name not in dropped]
        for name in alive:
            message = metrics[name].mask(
                self.clients[name], self.boxes[name], round=round, query=query
            )
            self.server.receive(name, message)
        if self.server.config.signed:
            survivors = self.server.survivors()
            for name in alive:
                self.server.receive(name, self.clients[name].sign_survivors(survivors))
        request = self.server.request()
        for name in alive:
            self.server.receive(name, self.clients[name].unmask(request))
        return self.server


def metrics(scored: tuple[Tensor, Tensor], **options: Any) -> dict[str, FederatedROC]:
    result = {}
    for name, preds, target in zip(CLIENTS, scored[0].chunk(5), scored[1].chunk(5), strict=True):
        result[name] = FederatedROC(**({"quantiles": 16} | options))
        result[name].update(preds, target)
    return result


def released(clients: Mapping[str, FederatedROC], dropped: str = "", **options: Any) -> Release:
    """Run a whole release through a coordinator."""
    coordinator = Coordinator(clients["a"], round="1")
    while (query := coordinator.query) is not None:
        names = "".join(sorted(coordinator.senders or CLIENTS))
        aggregation = Aggregation(coordinator.config_for(**options), names)
        coordinator.accept(aggregation.finish(clients, query, dropped=dropped))
        coordinator.advance()
        dropped = ""
    return coordinator.release


@pytest.mark.parametrize("signed", [False, True])
def test_exact_counts_are_pooled_to_the_bit(scored: tuple[Tensor, Tensor], signed: bool) -> None:
    total = released(metrics(scored, secure=True), signed=signed)
    assert (total.shares, len(total.queries)) == (5, 1)
    curve = FederatedROC.from_release(total).compute()
    assert all(torch.equal(a, b) for a, b in zip(curve, roc(*scored, quantiles=16), strict=True))


@pytest.mark.parametrize("plan", ["adaptive", "single"])
def test_a_private_release_takes_the_survivors_and_charges_them_once(
    scored: tuple[Tensor, Tensor], plan: str
) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=3), quantiles=64, plan=plan)
    total = released(clients, dropped="c")
    assert (total.shares, len(total.queries)) == (4, 2 if plan == "adaptive" else 1)
    assert [len(metric.ledger) for metric in clients.values()] == [
        1,
        1,
        0,
        1,
        1,
    ]  # who sent nothing has spent nothing
    assert FederatedROC.from_release(total).compute().tpr.isfinite().all()


@pytest.mark.filterwarnings("ignore:epsilon=35")
def test_the_sum_is_that_of_the_survivors_answers(scored: tuple[Tensor, Tensor]) -> None:
    """With an epsilon of 35 noise is 0 but for once in 1e12 sums, so that the sum is the exact one."""
    clients, query = (
        metrics(scored, privacy=DistributedDP(35.0, min_clients=3)),
        Query(Tree.flat(64)),
    )
    config = SecureAggregationConfig.for_query(clients["a"].spec, query, "1")
    vector, names = Aggregation(config).finish(clients, query, dropped="c").sum()
    assert names == ("a", "b", "d", "e")
    counts = torch.stack([clients[name].counts for name in names]).sum(0)
    assert torch.equal(torch.from_numpy(vector).reshape(counts.shape), counts)


def test_fewer_than_min_clients_open_nothing(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=4))
    config = SecureAggregationConfig.for_query(clients["a"].spec, SIXTEEN, "1")
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        Aggregation(config).finish(clients, SIXTEEN, dropped="ab")


def test_a_draw_enters_one_aggregation_and_a_retry_is_a_fresh_one(
    scored: tuple[Tensor, Tensor],
) -> None:
    """The same round again gets an error, whatever the aggregation calls itself; another round is charged again."""
    ledger = PrivacyLedger()
    metric = metrics(scored, privacy=DistributedDP(0.1, min_clients=3), ledger=ledger)["a"]

    def attempt(name: str, round: str) -> bytes:
        aggregation = Aggregation(SecureAggregationConfig.for_query(metric.spec, SIXTEEN, name))
        return metric.mask(
            aggregation.clients["a"], aggregation.boxes["a"], round=round, query=SIXTEEN
        )

    assert attempt("1", "1")
    for name in ("1", "1 again", "2"):
        with pytest.raises(ReleaseError, match="it has entered one before"):
            attempt(name, "1")
    assert len(ledger) == 1
    assert attempt("2", "2")
    assert len(ledger) == 2


def test_exact_counts_enter_one_aggregation_in_a_session(scored: tuple[Tensor, Tensor]) -> None:
    """There is no fresh draw of them: two sums, over n and n - 1 clients, give a client away."""
    metric = metrics(scored, secure=True)["a"]
    for name, refused in (("1", False), ("1", True), ("2", True)):
        aggregation = Aggregation(
            SecureAggregationConfig.for_query(metric.spec, Query(Tree.flat(64)), name)
        )
        if refused:
            with pytest.raises(ReleaseError, match="it has entered one before"):
                metric.mask(aggregation.clients["a"], aggregation.boxes["a"], round=name)
        else:
            assert metric.mask(aggregation.clients["a"], aggregation.boxes["a"], round=name)


def test_shares_that_must_be_hidden_are_not_made(scored: tuple[Tensor, Tensor]) -> None:
    for options in ({"privacy": DistributedDP(1.0, min_clients=3)}, {"secure": True}):
        metric = metrics(scored, **options)["a"]
        with pytest.raises(ReleaseError, match="secure aggregation"):
            metric.share(round="1")
        assert len(metric.ledger) == 0
        cells = torch.zeros(metric.spec.shape(SIXTEEN), dtype=torch.int64)
        share = Share(metric.spec, SIXTEEN, cells)
        for attempt in (bytes, pickle.dumps):
            for alone in (share, Release.sum([share])):  # a sum of one is no sum
                with pytest.raises(ReleaseError, match="secure aggregation"):
                    attempt(alone)
        with pytest.raises(ReleaseError, match="secure aggregation"):
            Coordinator(metric, round="1").receive("a", share)
        many = Release.sum(Share(metric.spec, SIXTEEN, cells) for _ in range(3))
        assert bytes(many)  # what may be opened may travel
    trusted = metrics(scored, privacy=DistributedDP(1.0, min_clients=3, trusted_aggregator=True))[
        "a"
    ]
    assert bytes(trusted.share(round="1"))


def test_a_coordinator_accepts_its_own_aggregation_only(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=3))
    coordinator = Coordinator(clients["a"], round="1")
    query = coordinator.query
    assert query is not None
    other = SecureAggregationConfig.for_query(clients["a"].spec, query, "an older round")
    server = Aggregation(other).finish(clients, query)
    with pytest.raises(InputError, match="Expected the aggregation"):
        coordinator.accept(server)
    assert coordinator.received == 0


def test_the_privacy_says_against_whom_it_holds() -> None:
    assert "holds against the aggregator" in str(DistributedDP(1.0, min_clients=3))
    assert "not the trusted aggregator" in str(
        DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
    )


def across_ranks(rank: int, secure: bool) -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    metric, wire = FederatedROC(quantiles=64, secure=secure), Collectives()
    metric.update(
        torch.rand(1_000, generator=generator), torch.randint(0, 2, (1_000,), generator=generator)
    )
    with wire:
        return metric.compute(), [tensor for _, tensor in wire.sent if tensor.numel() > 100]


@pytest.mark.slow
def test_ranks_send_masked_counts_and_get_the_same_curve(ranks: RankPool) -> None:
    plain, secure = ranks.run(across_ranks, False), ranks.run(across_ranks, True)
    for (curve, clear), (hidden, masked) in zip(plain, secure, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(curve, hidden, strict=True))
        assert max(int(tensor.abs().max()) for tensor in clear) < 1_000
        # of uniform 64-bit words none is as small as a count
        assert all(int(tensor.abs().min()) > 2**40 for tensor in masked)
        assert len(masked) == 1
