"""Metrics through secure aggregation: the same release as without it, and no visible share."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.aggregation.counted import same_curve
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
from torchmetrics_fed.functional import ROCCurve, roc

CLIENTS = "abcde"
SIXTEEN = Query(Tree((4, 16)))


def clients_of(config: SecureAggregationConfig, names: str) -> dict[str, SecureAggregationClient]:
    if not config.signed:
        return {name: SecureAggregationClient(name, config) for name in names}
    keys = {name: new_signing_keys() for name in names}
    verification_keys = {name: pair.verification for name, pair in keys.items()}
    return {
        name: SecureAggregationClient(name, config, keys[name].signing, verification_keys)
        for name in names
    }


class Aggregation:
    """One aggregation in one process, up to the boxes."""

    def __init__(self, config: SecureAggregationConfig, names: str = CLIENTS) -> None:
        self.server = SecureAggregationServer(config)
        self.clients = clients_of(config, names)
        for name, client in self.clients.items():
            self.server.receive(name, client.advertise())
        message = self.server.keys()
        for name, client in self.clients.items():
            self.server.receive(name, client.share_keys(message))
        self.boxes = self.server.ciphertexts()

    def finish(
        self, metrics: Mapping[str, FederatedROC], query: Query, round: str = "1", dropped: str = ""
    ) -> SecureAggregationServer:
        """Run to the end. Dropped clients send nothing from the masked vector on."""
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
    """Return the metric of each client, with its part of the scores."""
    clients = {}
    preds, target = scored
    for name, part, labels in zip(CLIENTS, preds.chunk(5), target.chunk(5), strict=True):
        clients[name] = FederatedROC(**({"quantiles": 16} | options))
        clients[name].update(part, labels)
    return clients


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
    release = released(metrics(scored, secure=True), signed=signed)
    assert release.shares == 5
    assert len(release.queries) == 1
    curve = FederatedROC.from_release(release).compute()
    assert same_curve(curve, roc(*scored, quantiles=16))


@pytest.mark.parametrize("plan", ["adaptive", "single"])
def test_a_private_release_takes_the_survivors_and_charges_them_once(
    scored: tuple[Tensor, Tensor], plan: str
) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=3), quantiles=64, plan=plan)
    release = released(clients, dropped="c")
    assert release.shares == 4
    assert len(release.queries) == (2 if plan == "adaptive" else 1)
    charges = {name: len(metric.ledger) for name, metric in clients.items()}
    assert charges == {"a": 1, "b": 1, "c": 0, "d": 1, "e": 1}
    assert FederatedROC.from_release(release).compute().tpr.isfinite().all()


@pytest.mark.filterwarnings("ignore:epsilon=35")
def test_the_sum_is_that_of_the_survivors_replies(scored: tuple[Tensor, Tensor]) -> None:
    """With an epsilon of 35, the noise is 0 except for one of 1e12 sums: the sum is exact."""
    clients = metrics(scored, privacy=DistributedDP(35.0, min_clients=3))
    query = Query(Tree.flat(64))
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


def mask_once(metric: FederatedROC, aggregation_name: str, round: str, query: Query) -> bytes:
    """Return the metric's masked reply in a fresh aggregation."""
    config = SecureAggregationConfig.for_query(metric.spec, query, aggregation_name)
    aggregation = Aggregation(config)
    return metric.mask(aggregation.clients["a"], aggregation.boxes["a"], round=round, query=query)


def test_a_draw_enters_one_aggregation_and_a_retry_is_a_fresh_one(
    scored: tuple[Tensor, Tensor],
) -> None:
    """The same round raises, whatever the name of the aggregation; a new round is charged again."""
    ledger = PrivacyLedger()
    metric = metrics(scored, privacy=DistributedDP(0.1, min_clients=3), ledger=ledger)["a"]
    assert mask_once(metric, "1", "1", SIXTEEN)
    for name in ("1", "1 again", "2"):
        with pytest.raises(ReleaseError, match="it has entered one before"):
            mask_once(metric, name, "1", SIXTEEN)
    assert len(ledger) == 1
    assert mask_once(metric, "2", "2", SIXTEEN)
    assert len(ledger) == 2


def test_exact_counts_enter_one_aggregation(scored: tuple[Tensor, Tensor]) -> None:
    """They have no fresh draw: two sums, over n and n - 1 clients, give a client away."""
    metric = metrics(scored, secure=True)["a"]
    assert mask_once(metric, "1", "1", Query(Tree.flat(64)))
    for name in ("1", "2"):
        with pytest.raises(ReleaseError, match="it has entered one before"):
            mask_once(metric, name, name, Query(Tree.flat(64)))


@pytest.mark.parametrize(
    "options",
    [{"privacy": DistributedDP(1.0, min_clients=3)}, {"secure": True}],
    ids=["private", "exact"],
)
def test_shares_that_must_be_hidden_are_not_made(
    scored: tuple[Tensor, Tensor], options: dict[str, Any]
) -> None:
    metric = metrics(scored, **options)["a"]
    with pytest.raises(ReleaseError, match="secure aggregation"):
        metric.share(round="1")
    assert len(metric.ledger) == 0
    cells = torch.zeros(metric.spec.shape(SIXTEEN), dtype=torch.int64)
    share = Share(metric.spec, SIXTEEN, cells)
    sum_of_one = Release.sum([share])
    for write in (bytes, pickle.dumps):
        for hidden in (share, sum_of_one):
            with pytest.raises(ReleaseError, match="secure aggregation"):
                write(hidden)
    with pytest.raises(ReleaseError, match="secure aggregation"):
        Coordinator(metric, round="1").receive("a", share)
    sum_of_three = Release.sum(Share(metric.spec, SIXTEEN, cells) for _ in range(3))
    assert bytes(sum_of_three)  # a sum that may be opened may travel


def test_a_trusted_aggregator_may_see_shares(scored: tuple[Tensor, Tensor]) -> None:
    trusted = DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
    assert bytes(metrics(scored, privacy=trusted)["a"].share(round="1"))


def test_a_coordinator_accepts_its_own_aggregation_only(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=3))
    coordinator = Coordinator(clients["a"], round="1")
    query = coordinator.query
    assert query is not None
    config = SecureAggregationConfig.for_query(clients["a"].spec, query, "an older round")
    server = Aggregation(config).finish(clients, query)
    with pytest.raises(InputError, match="Expected the aggregation"):
        coordinator.accept(server)
    assert coordinator.received == 0


def test_the_privacy_says_against_whom_it_holds() -> None:
    hidden = DistributedDP(1.0, min_clients=3)
    assert "holds against the aggregator" in str(hidden)
    trusted = DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
    assert "not the trusted aggregator" in str(trusted)


def compute_across_ranks(rank: int, secure: bool) -> tuple[ROCCurve, list[Tensor]]:
    """Return the curve, and the large tensors that this rank has sent."""
    generator = torch.Generator().manual_seed(rank)
    metric = FederatedROC(quantiles=64, secure=secure)
    preds = torch.rand(1_000, generator=generator)
    metric.update(preds, torch.randint(0, 2, (1_000,), generator=generator))
    collectives = Collectives()
    with collectives:
        curve = metric.compute()
    return curve, [tensor for _, tensor in collectives.sent if tensor.numel() > 100]


@pytest.mark.slow
def test_ranks_send_masked_counts_and_get_the_same_curve(ranks: RankPool) -> None:
    plain = ranks.run(compute_across_ranks, False)
    secure = ranks.run(compute_across_ranks, True)
    for (curve, visible), (hidden_curve, masked) in zip(plain, secure, strict=True):
        assert same_curve(hidden_curve, curve)
        assert max(int(tensor.abs().max()) for tensor in visible) < 1_000
        assert len(masked) == 1
        # none of these uniform 64-bit words is as small as a count
        assert int(masked[0].abs().min()) > 2**40
