"""Bytes that a client sends: those of a real reply."""

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


class Traffic:
    """A server that counts the bytes of each client."""

    def __init__(self, server: SecureAggregationServer) -> None:
        self._server = server
        self.sizes: dict[str, int] = {}

    def send(self, name: str, message: bytes) -> None:
        self.sizes[name] = self.sizes.get(name, 0) + len(message)
        self._server.receive(name, message)


@pytest.mark.parametrize("number", [5, 12])
def test_bytes_of_secure_aggregation_are_those_of_a_real_one(number: int) -> None:
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(epsilon=1.0, min_clients=4))
    coordinator = Coordinator(metric, round="round")
    query = coordinator.query
    assert query is not None
    config = coordinator.config
    server = SecureAggregationServer(config)
    traffic = Traffic(server)
    names = [f"{client:020d}" for client in range(number)]
    clients = {name: SecureAggregationClient(name, config) for name in names}
    for name, client in clients.items():
        traffic.send(name, client.advertise())
    keys = server.keys()
    for name, client in clients.items():
        traffic.send(name, client.share_keys(keys))
    boxes = server.ciphertexts()
    vector = np.zeros(config.cells, dtype=np.int64)
    for name, client in clients.items():
        traffic.send(name, client.mask(boxes[name], lambda: vector))
    request = server.request()
    for name, client in clients.items():
        traffic.send(name, client.unmask(request))
    size = bytes_per_client(metric.spec, query, number)
    assert traffic.sizes == dict.fromkeys(names, size)


@pytest.mark.parametrize(
    "privacy",
    [LocalDP(1.0), DistributedDP(epsilon=1.0, min_clients=4, trusted_aggregator=True)],
    ids=str,
)
def test_bytes_of_a_share_are_those_of_a_real_one(privacy: LocalDP | DistributedDP) -> None:
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
        message = f"3 to 1024 clients of one secure aggregation but got {clients}"
        with pytest.raises(InputError, match=message):
            bytes_per_client(spec, Query(Tree((16,))), clients)
