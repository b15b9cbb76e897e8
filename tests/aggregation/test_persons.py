"""Ranks of one client: no person has more examples on all ranks together than allowed.

Otherwise every rank raises before any charge.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.aggregation.threads import run_threads
from tests.ranks import RankPool
from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, LocalDP
from torchmetrics_fed.aggregation.ranks import Gather, Ranks
from torchmetrics_fed.counting.persons import Persons
from torchmetrics_fed.errors import ReleaseError

KINDS: dict[str, Any] = {"central": CentralDP, "local": LocalDP}


def counted(rank: int, kind: str, people: str, group: Any = None) -> tuple[str, int, bool]:
    """Return the outcome, the number of charges, and whether the bound held on this rank.

    The first rank never sees a batch.
    """
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
    # and one without any data
    assert ranks.run(counted, kind, "nobody") == [("released", 1, False)] * 3
    for people, message in (
        ("together", "Divide the data by person"),
        ("none at 2", "on every rank or on none"),
    ):
        for text, charged, _ in ranks.run(counted, kind, people):
            assert message in text
            assert charged == 0


def subgroup(rank: int) -> tuple[str, int, bool]:
    group = dist.new_group([1, 2])
    return counted(rank, "local", "together", group) if rank else ("", 0, False)


def as_clients(rank: int) -> int:
    """Release with ranks that are clients: their persons are not compared."""
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
    """A torchmetrics `dist_sync_fn` is enough, without torch.distributed."""

    def check(gather: Gather) -> None:
        ranks = Ranks(torch.device("cpu"), gather=gather)
        ids = [1, 1, 2] if together or ranks.is_first else [8, 9]
        table = Persons(2)
        table.admit(ids)
        Ranks(torch.device("cpu"), gather=gather, persons=table).check_persons(2)

    for error in run_threads(check, world=2):
        assert ("Divide the data by person" in str(error)) == together
