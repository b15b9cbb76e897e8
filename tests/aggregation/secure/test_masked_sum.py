"""masked_sum: the sum is exact, only masked vectors travel, and every rank sees a disagreement."""

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

Tamper = Callable[[list[bytes]], list[bytes]]


class Group:
    """Ranks that are threads, and the messages between them."""

    def __init__(self, world: int, tamper: Tamper = lambda payloads: payloads) -> None:
        self.barrier = Barrier(world, timeout=20)
        self.tamper = tamper
        self.payloads = [b""] * world
        self.vectors: list[Tensor | None] = [None] * world
        """The vectors that the ranks have sent."""

    def run(self, vectors: list[Any], views: list[bytes]) -> list[Any]:
        """Return the sum on each rank, or the exception that it raised."""
        members = [
            Member(self, rank, vector, view)
            for rank, (vector, view) in enumerate(zip(vectors, views, strict=True))
        ]
        for member in members:
            member.start()
        for member in members:
            member.join()
        return [member.result for member in members]


class Member(Thread):
    """One rank of a group."""

    def __init__(self, group: Group, rank: int, vector: Any, view: bytes) -> None:
        super().__init__()
        self.group = group
        self.rank = rank
        self.vector = vector
        self.view = view
        self.result: Any = None

    def run(self) -> None:
        try:
            self.result = masked_sum(self.vector, self.rank, self.view, self.exchange, self.add_up)
        except Exception as error:
            self.result = error

    def exchange(self, payload: bytes) -> list[bytes]:
        self.group.payloads[self.rank] = payload
        self.group.barrier.wait()
        return self.group.tamper(list(self.group.payloads))

    def add_up(self, tensor: Tensor) -> Tensor:
        self.group.vectors[self.rank] = tensor
        self.group.barrier.wait()
        vectors = [vector for vector in self.group.vectors if vector is not None]
        return torch.stack(vectors).sum(0)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_rank_has_the_exact_sum_and_sends_no_value_of_its_vector(world: int) -> None:
    group = Group(world)
    vectors = [torch.randint(-(2**62), 2**62, (2, 3, 50)) for _ in range(world)]
    before = [vector.clone() for vector in vectors]
    for total in group.run(vectors, [b"view"] * world):
        assert torch.equal(total, torch.stack(vectors).sum(0))
    assert all(torch.equal(*pair) for pair in zip(vectors, before, strict=True))
    assert all(len(payload) == PAYLOAD_BYTES == 80 for payload in group.payloads)
    if world == 1:
        assert group.vectors == [None]
        return
    for vector, masked in zip(vectors, group.vectors, strict=True):
        assert masked is not None
        assert int((masked == vector).sum()) == 0


@pytest.mark.parametrize("odd", ["view", "shape", "dtype", "type"])
def test_a_disagreement_is_an_error_on_every_rank(odd: str) -> None:
    group = Group(3)
    vectors: list[Any] = [torch.zeros(4, dtype=torch.int64)] * 3
    views = [b"view"] * 3
    if odd == "view":
        views[1] = b"another view"
    else:
        odd_vectors = {
            "shape": torch.zeros(5, dtype=torch.int64),
            "dtype": torch.zeros(4),
            "type": None,
        }
        vectors[1] = odd_vectors[odd]
    errors: list[type[Exception]] = [SyncError] * 3
    if odd in ("dtype", "type"):
        errors[1] = InputError
    results = group.run(vectors, views)
    assert [type(result) for result in results] == errors
    assert all("nothing was sent" in str(result) for result in results)
    assert group.vectors == [None] * 3


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
def test_wrong_payloads_are_refused(tamper: Tamper) -> None:
    group = Group(3, tamper)
    for result in group.run([torch.zeros(4, dtype=torch.int64)] * 3, [b"view"] * 3):
        assert isinstance(result, SyncError)
    assert group.vectors == [None] * 3


def gloo_exchange(payload: bytes) -> list[bytes]:
    tensor = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    return [received.numpy().tobytes() for received in gathered]


def gloo_sum(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def on_gloo(rank: int) -> tuple[Tensor, Tensor]:
    vector = torch.arange(5_000) * (rank + 1) - 2**62
    return masked_sum(vector, rank, b"view", gloo_exchange, gloo_sum), vector


@pytest.mark.slow
def test_gloo_wraps_around(ranks: RankPool) -> None:
    results = ranks.run(on_gloo)
    expected = torch.stack([vector for _, vector in results]).sum(0)
    assert all(torch.equal(total, expected) for total, _ in results)
