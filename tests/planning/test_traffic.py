"""Bytes that a client sends: those of real messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, InputError, LocalDP
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationServer
from torchmetrics_fed.planning.traffic import bytes_per_client


@pytest.mark.parametrize("clients", [5, 12])
def test_the_secure_sums_bytes_are_those_of_a_real_one(clients: int) -> None:
    metric = FederatedROC(quantiles=16, privacy=DistributedDP(epsilon=1.0, min_clients=4))
    config, size = secure_sum_config(metric.spec, "round-1"), int(np.prod(metric.spec.shape))
    server = SecureAggregationServer(config)
    members = {f"{number:020d}": SecureAggregationClient(f"{number:020d}", config) for number in range(clients)}
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
        send(name, member.mask(boxes[name], lambda: np.zeros(size, dtype=np.int64)))
    request = server.request()
    for name, member in members.items():
        send(name, member.unmask(request))
    assert set(sent.values()) == {bytes_per_client(metric.spec, clients)}


@pytest.mark.parametrize(
    "privacy", [LocalDP(1.0), DistributedDP(epsilon=1.0, min_clients=4, trusted_aggregator=True)], ids=str
)
def test_shares_bytes_are_those_of_a_real_one(privacy: LocalDP | DistributedDP) -> None:
    metric = FederatedROC(privacy=privacy)
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    share = metric.share(round="round-1")
    assert bytes_per_client(metric.spec, 20) == len(bytes(share))


def test_a_trusted_party_is_sent_raw_counts() -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    assert bytes_per_client(metric.spec, 20) == metric.counts.numel() * 8


def test_a_secure_sum_has_its_limits() -> None:
    spec = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=2)).spec
    for clients in (2, 2000):
        with pytest.raises(InputError, match=f"3 to 1024 clients of one secure sum but got {clients}"):
            bytes_per_client(spec, clients)
