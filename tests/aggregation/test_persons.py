"""Ranks of one client: nobody has more examples on all of them than allowed, and all hear of it before any charge."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import RankPool
from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, LocalDP
from torchmetrics_fed.aggregation.ranks import Ranks
from torchmetrics_fed.counting.persons import Persons
from torchmetrics_fed.errors import ReleaseError

KINDS: dict[str, Any] = {"central": CentralDP, "local": LocalDP}


def counted(rank: int, kind: str, people: str, group: Any = None) -> tuple[str, int, bool]:
    """What came of it, what was charged, and whether the bound held here. The first rank never sees a batch."""
    privacy = KINDS[kind](1.0, examples_per_person=2)
    metric = FederatedROC(privacy=privacy, quantiles=4, process_group=group)
    for _ in range(rank):  # ranks need not update equally often
        ids: Any = [f"{rank}" if people == "apart" else "everywhere"] * 3
        metric.update(
            torch.rand(3),
            torch.tensor([0, 1, 0]),
            persons=None if people in ("nobody", f"none at {rank}") else ids,
        )
    try:
        metric.share() if kind == "local" else metric.release()
        return "released", len(metric.ledger), metric.persons.bound_enforced
    except ReleaseError as error:
        return str(error), len(metric.ledger), metric.persons.bound_enforced


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
@pytest.mark.parametrize("kind", KINDS)
def test_a_person_beyond_the_bound_across_ranks_is_refused_on_all(
    ranks: RankPool, kind: str
) -> None:
    assert ranks.run(counted, kind, "apart", timeout=300) == [
        ("released", 1, rank > 0) for rank in range(3)
    ]
    assert (
        ranks.run(counted, kind, "nobody") == [("released", 1, False)] * 3
    )  # and one without any data
    for people, said in (
        ("together", "Divide the data by person"),
        ("none at 2", "on every rank or on none"),
    ):
        for text, charged, _ in ranks.run(counted, kind, people):
            assert said in text
            assert charged == 0


def subgroup(rank: int) -> tuple[str, int, bool]:
    group = dist.new_group([1, 2])
    return counted(rank, "local", "together", group) if rank else ("", 0, False)


def as_clients(rank: int) -> int:
    """Ranks that are clients: a person is at one of them, and nobody compares."""
    privacy = DistributedDP(1.0, min_clients=3, examples_per_person=2)
    metric = FederatedROC(privacy=privacy, quantiles=4)
    metric.update(torch.rand(3), torch.tensor([0, 1, 0]), persons=[7, 7, 7])
    return metric.release().shares


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
def test_the_ranks_of_one_client_are_its_process_group(ranks: RankPool) -> None:
    assert ["Divide the data" in text for text, *_ in ranks.run(subgroup, timeout=300)] == [
        False,
        True,
        True,
    ]
    assert ranks.run(as_clients) == [3, 3, 3]


@pytest.mark.parametrize("together", [False, True])
def test_a_gather_function_will_do(together: bool) -> None:
    """As torchmetrics' `dist_sync_fn`: here threads, without torch.distributed."""
    barrier, slots, said = Barrier(2, timeout=60), [torch.empty(0)] * 2, ["", ""]

    def member(number: int) -> None:
        def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
            slots[number] = tensor
            barrier.wait()
            parts = list(slots)
            barrier.wait()
            return parts

        table = Persons(2)
        table.admit([1, 1, 2] if together or not number else [8, 9])
        try:
            Ranks(torch.device("cpu"), gather=gather, persons=table).check_persons(2)
        except ReleaseError as error:
            said[number] = str(error)

    threads = [Thread(target=member, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["Divide the data by person" in text for text in said] == [together] * 2
