"""Ranks: the sum is exact, only masked vectors travel, and a disagreement is an error everywhere."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import RankPool
from torchmetrics_fed import InputError
from torchmetrics_fed.aggregation.secure.mask import PAYLOAD_BYTES, masked_sum
from torchmetrics_fed.errors import SyncError


class Threads:
    """Ranks that are threads, and what went between them."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = Barrier(world, timeout=20)
        self.payloads = [b""] * world
        self.sent: list[Tensor | None] = [None] * world
        self.tamper: Callable[[list[bytes]], list[bytes]] = lambda payloads: payloads

    def run(self, vectors: list[Any], views: list[bytes]) -> list[Any]:
        results: list[Any] = [None] * self.world

        def work(rank: int) -> None:
            def exchange(payload: bytes) -> list[bytes]:
                self.payloads[rank] = payload
                self.barrier.wait()
                return self.tamper(list(self.payloads))

            def sum_(tensor: Tensor) -> Tensor:
                self.sent[rank] = tensor
                self.barrier.wait()
                return torch.stack([part for part in self.sent if part is not None]).sum(0)

            try:
                results[rank] = masked_sum(vectors[rank], rank, views[rank], exchange, sum_)
            except Exception as error:
                results[rank] = error

        threads = [Thread(target=work, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_rank_has_the_exact_sum_and_sent_none_of_its_own(world: int) -> None:
    ranks = Threads(world)
    vectors = [torch.randint(-(2**62), 2**62, (2, 3, 50)) for _ in range(world)]
    before = [vector.clone() for vector in vectors]
    for total in ranks.run(vectors, [b"view"] * world):
        assert torch.equal(total, torch.stack(vectors).sum(0))
    assert all(torch.equal(one, other) for one, other in zip(vectors, before, strict=True))
    assert all(len(payload) == PAYLOAD_BYTES == 80 for payload in ranks.payloads)
    for vector, sent in zip(vectors, ranks.sent, strict=True):
        if world == 1:
            assert sent is None
        else:
            assert sent is not None
            assert int((sent == vector).sum()) == 0


@pytest.mark.parametrize("odd", ["view", "shape", "dtype", "type"])
def test_a_disagreement_is_an_error_on_every_rank(odd: str) -> None:
    ranks = Threads(3)
    vectors: list[Any] = [torch.zeros(4, dtype=torch.int64)] * 3
    views = [b"view"] * 3
    if odd == "view":
        views[1] = b"other"
    else:
        vectors[1] = {
            "shape": torch.zeros(5, dtype=torch.int64),
            "dtype": torch.zeros(4),
            "type": None,
        }[odd]
    results = ranks.run(vectors, views)
    for rank, result in enumerate(results):
        local = rank == 1 and odd in ("dtype", "type")
        assert isinstance(result, InputError if local else SyncError), result
        assert "nothing was sent" in str(result)
    assert ranks.sent == [None] * 3


@pytest.mark.parametrize(
    "tamper",
    [
        lambda payloads: [payload[:-1] for payload in payloads],
        lambda payloads: [payloads[0]] * 3,
        lambda payloads: payloads[1:] + payloads[:1],
        lambda payloads: [],
        lambda payloads: [payloads[0], payloads[1], payloads[0]],
    ],
)
def test_wrong_payloads_are_refused(tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    ranks = Threads(3)
    ranks.tamper = tamper
    for result in ranks.run([torch.zeros(4, dtype=torch.int64)] * 3, [b"view"] * 3):
        assert isinstance(result, SyncError)
    assert ranks.sent == [None] * 3


def on_gloo(rank: int) -> tuple[Tensor, Tensor]:
    vector = torch.arange(5_000) * (rank + 1) - 2**62

    def exchange(payload: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine)
        return [part.numpy().tobytes() for part in gathered]

    def sum_(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    return masked_sum(vector, rank, b"view", exchange, sum_), vector


@pytest.mark.slow
def test_gloo_wraps_around(ranks: RankPool) -> None:
    results = ranks.run(on_gloo)
    expected = torch.stack([vector for _, vector in results]).sum(0)
    assert all(torch.equal(total, expected) for total, _ in results)
