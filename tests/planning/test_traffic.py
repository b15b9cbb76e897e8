"""Bytes that a client sends: those of a real answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Query,
    SecureAggregationClient,
    SecureAggregationServer,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.planning import bytes_per_client


@pytest.mark.parametrize("clients", [5, 12])
def test_secure_aggregations_bytes_are_those_of_a_real_one(clients: int) -> None:
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(epsilon=1.0, min_clients=4))
    coordinator = Coordinator(metric, round="round")
    query = coordinator.query
    assert query is not None
    config = coordinator.config
    server = SecureAggregationServer(config)
    members = {
        f"{number:020d}": SecureAggregationClient(f"{number:020d}", config)
        for number in range(clients)
    }
    sent = dict.fromkeys(members, 0)

    def send(name: str, message: bytes) -> None:
        sent[name] += len(message)
        server.receive(name, message)

    for name, member in members.items():
        send(name, member.advertise())
    keys = server.keys()
    for name, member in members.items():
        send(name, member.share_keys(keys))
    boxes = server.ciphertexts()
    for name, member in members.items():
        send(name, member.mask(boxes[name], lambda: np.zeros(config.cells, dtype=np.int64)))
    request = server.request()
    for name, member in members.items():
        send(name, member.unmask(request))
    assert set(sent.values()) == {bytes_per_client(metric.spec, query, clients)}


@pytest.mark.parametrize(
    "privacy",
    [LocalDP(1.0), DistributedDP(epsilon=1.0, min_clients=4, trusted_aggregator=True)],
    ids=str,
)
def test_shares_bytes_are_those_of_a_real_one(privacy: LocalDP | DistributedDP) -> None:
    metric = FederatedROC(privacy=privacy)
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    share = metric.share(round="round-1")
    assert bytes_per_client(metric.spec, share.query, 20) == len(bytes(share))


def test_a_trusted_party_is_sent_raw_counts() -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    assert bytes_per_client(metric.spec, Query(Tree((16,))), 20) == metric.counts.numel() * 8


def test_secure_aggregation_has_its_limits() -> None:
    spec = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=2)).spec
    for clients in (2, 2000):
        with pytest.raises(
            InputError, match=f"3 to 1024 clients of one secure aggregation but got {clients}"
        ):
            bytes_per_client(spec, Query(Tree((16,))), clients)
