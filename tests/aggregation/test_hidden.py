"""Metrics through the secure sum: the same release as in the clear, and no share for anybody to see."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.ranks import RankPool
from torchmetrics_fed import (
    DistributedDP,
    FederatedROC,
    PrivacyLedger,
    Release,
    ReleaseError,
    SecureAggregationClient,
    SecureAggregationServer,
)
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.functional import roc

CLIENTS = 5


def summed(
    vectors: list[Callable[[], NDArray[np.int64]]], config: Any, dropped: set[int] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Run the protocol in one process; the dropped clients send nothing from the masked vector on."""
    server = SecureAggregationServer(config)
    clients = {f"client-{index}": SecureAggregationClient(f"client-{index}", config) for index in range(len(vectors))}
    alive = [name for index, name in enumerate(clients) if index not in (dropped or set())]
    for name, client in clients.items():
        server.receive(name, client.advertise())
    keys = server.keys()
    for name, client in clients.items():
        server.receive(name, client.share_keys(keys))
    ciphertexts = server.ciphertexts()
    for name in alive:
        server.receive(name, clients[name].mask(ciphertexts[name], vectors[int(name[-1])]))
    request = server.request()
    for name in alive:
        server.receive(name, clients[name].unmask(request))
    return server.sum()


def metrics(scored: tuple[Tensor, Tensor], **options: Any) -> list[Any]:
    result = []
    for preds, target in zip(scored[0].chunk(CLIENTS), scored[1].chunk(CLIENTS), strict=True):
        metric = FederatedROC(quantiles=16, **options)
        metric.update(preds, target)
        result.append(metric)
    return result


def test_exact_counts_are_pooled_to_the_bit(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, secure=True)
    config = secure_sum_config(clients[0].spec, "round-1")
    vector, survivors = summed([partial(m.vector, "round-1") for m in clients], config)
    total = Release.from_vector(clients[0].spec, vector, len(survivors), "round-1")
    assert total.shares == CLIENTS
    curve = FederatedROC.from_release(total).compute()
    assert all(torch.equal(a, b) for a, b in zip(curve, roc(*scored, quantiles=16), strict=True))


def test_the_private_release_is_the_sum_of_the_shares(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=3))
    config = secure_sum_config(clients[0].spec, "round-1")
    vector, survivors = summed([partial(m.vector, "round-1") for m in clients], config, dropped={2})
    total = Release.from_vector(clients[0].spec, vector, len(survivors), "round-1")
    assert total.shares == 4
    expected = sum(m.vector("round-1") for index, m in enumerate(clients) if index != 2)
    assert np.array_equal(vector, expected)
    assert [len(m.ledger) for m in clients] == [1, 1, 0, 1, 1]  # who sent nothing has spent nothing
    assert FederatedROC.from_release(total).compute().tpr.isfinite().all()


def test_fewer_than_min_clients_open_nothing(scored: tuple[Tensor, Tensor]) -> None:
    clients = metrics(scored, privacy=DistributedDP(1.0, min_clients=4))
    config = secure_sum_config(clients[0].spec, "round-1")
    with pytest.raises(SecureAggregationError):
        summed([partial(m.vector, "round-1") for m in clients], config, dropped={0, 1})


def test_a_retry_is_a_fresh_draw_and_a_new_charge(scored: tuple[Tensor, Tensor]) -> None:
    ledger = PrivacyLedger()
    metric = metrics(scored, privacy=DistributedDP(0.1, min_clients=3), ledger=ledger)[0]
    first, again, retry = metric.vector("round-1"), metric.vector("round-1"), metric.vector("round-1-retry")
    assert np.array_equal(first, again)
    assert not np.array_equal(first, retry)
    assert len(ledger) == 2


def test_shares_of_distributed_noise_do_not_travel_alone(scored: tuple[Tensor, Tensor]) -> None:
    private = metrics(scored, privacy=DistributedDP(1.0, min_clients=3))[0]
    for metric in (private, metrics(scored, secure=True)[0]):
        share = metric.share(round="round-1")
        for attempt in (bytes, pickle.dumps):
            for alone in (share, Release.sum([share])):  # a sum of one is no sum
                with pytest.raises(ReleaseError, match="secure sum"):
                    attempt(alone)
    trusted = metrics(scored, privacy=DistributedDP(1.0, min_clients=3, trusted_aggregator=True))[0]
    assert bytes(trusted.share(round="round-1"))
    shares = [m.share(round="round-1") for m in metrics(scored, privacy=DistributedDP(1.0, min_clients=3))]
    assert bytes(Release.sum(shares))  # what may be opened may travel


def test_the_repr_says_towards_whom_epsilon_holds() -> None:
    assert "and who sums" in str(DistributedDP(1.0, min_clients=3))
    assert "not the trusted aggregator" in str(DistributedDP(1.0, min_clients=3, trusted_aggregator=True))


class Wire(TorchDispatchMode):
    """Keeps what goes into sums of many cells."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "allreduce" in str(func):
            self.sent += [tensor.clone() for tensor in args[0] if tensor.numel() > 100]
        return func(*args, **(kwargs or {}))


def across_ranks(rank: int, secure: bool) -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    metric, wire = FederatedROC(quantiles=64, secure=secure), Wire()
    metric.update(torch.rand(1_000, generator=generator), torch.randint(0, 2, (1_000,), generator=generator))
    with wire:
        return metric.compute(), wire.sent


@pytest.mark.slow
def test_ranks_send_masked_counts_and_get_the_same_curve(ranks: RankPool) -> None:
    plain, secure = ranks.run(across_ranks, False), ranks.run(across_ranks, True)
    for (curve, clear), (hidden, masked) in zip(plain, secure, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(curve, hidden, strict=True))
        assert max(int(tensor.abs().max()) for tensor in clear) < 1_000
        # of uniform 64-bit words none is as small as a count
        assert all(int(tensor.abs().min()) > 2**40 for tensor in masked)
        assert len(masked) == 1
