"""Ranks: a gather function is enough to agree, to sum, and to release; all ranks get the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.aggregation.counted import all_scores, counted_part, same_curve
from tests.aggregation.threads import run_threads
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    InputError,
    LocalDP,
    Privacy,
    Query,
    Release,
    ScoreGrid,
    Spec,
)
from torchmetrics_fed.aggregation.ranks import Agreement, Alone, Gather, Ranks
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.functional import ROCCurve, roc

SPEC = Spec("binary", 1, ScoreGrid(bins=64))
CPU = torch.device("cpu")


class Calls(NamedTuple):
    """The results of all calls on one rank."""

    rank: int
    size: int
    is_first: bool
    sum: Tensor
    sum_to_first: Tensor
    from_first: Tensor
    query: Query
    hidden_sum: Tensor
    any_flag: bool
    any_without_flag: bool
    payloads: list[bytes]


def call_all(gather: Gather) -> Calls:
    ranks = Ranks(CPU, gather=gather)
    rank = ranks.rank
    counts = torch.arange(6).reshape(2, 3) + 10 * rank
    before = counts.clone()
    query = Query(Tree((2,), (0, 1 + rank, 64)), 0.5)
    calls = Calls(
        rank=rank,
        size=ranks.size,
        is_first=ranks.is_first,
        sum=ranks.sum(counts),
        sum_to_first=ranks.sum_to_first(counts),
        from_first=ranks.from_first(torch.full((3,), float(rank + 7))),
        query=ranks.query_from_first(query, 64),
        hidden_sum=ranks.hidden_sum(counts, b"view"),
        any_flag=ranks.any(rank == ranks.size - 1),
        any_without_flag=ranks.any(False),
        payloads=ranks.exchange(bytes([rank] * 5)),
    )
    assert torch.equal(counts, before)
    return calls


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_gather_function_is_all_that_ranks_need(world: int) -> None:
    """All calls work without torch.distributed."""
    assert not dist.is_initialized()
    results = run_threads(call_all, world)
    total = world * torch.arange(6).reshape(2, 3) + 10 * sum(range(world))
    for rank, calls in enumerate(results):
        assert isinstance(calls, Calls), calls
        assert calls.rank == rank
        assert calls.size == world
        assert calls.is_first == (rank == 0)
        assert torch.equal(calls.sum, total)
        assert torch.equal(calls.hidden_sum, total)
        assert torch.equal(calls.from_first, torch.full((3,), 7.0))
        assert calls.query == Query(Tree((2,), (0, 1, 64)), 0.5)
        assert calls.any_flag
        assert not calls.any_without_flag
        assert calls.payloads == [bytes([number] * 5) for number in range(world)]
        if rank == 0:
            assert torch.equal(calls.sum_to_first, total)


def agree(gather: Gather, odd: str = "") -> Agreement:
    """Agree with the other ranks; the last rank differs in one setting."""
    ranks = Ranks(CPU, gather=gather)
    rank = ranks.rank
    is_last = rank == 2
    bins = 32 if is_last and odd == "bins" else 64
    plan = b"single" if is_last and odd == "plan" else b"adaptive"
    spec = Spec("binary", 1, ScoreGrid(bins=bins))
    return ranks.agree(spec, {"plan": plan}, status=rank, any_data=is_last)


def test_ranks_that_agree_know_the_same() -> None:
    agreement, *copies = run_threads(agree)
    assert isinstance(agreement, Agreement), agreement
    assert copies == [agreement, agreement]
    assert agreement.statuses == (0, 2)
    assert agreement.any_data


@pytest.mark.parametrize("odd", ["bins", "plan"])
def test_a_mismatch_raises_on_every_rank_and_names_the_setting(odd: str) -> None:
    for error in run_threads(partial(agree, odd=odd)):
        assert isinstance(error, SpecMismatchError)
        assert f"differ in {odd};" in str(error)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [(None, "but 2 could not be counted"), (LocalDP(1.0), "but some could not be counted")],
    ids=["exact", "private"],
)
def test_ranks_agree_on_nothing_while_examples_could_not_be_counted(
    privacy: Privacy | None, message: str
) -> None:
    spec = Spec.build("binary", quantiles=16, privacy=privacy)

    def agree_with_refused(gather: Gather) -> Agreement:
        refused = 2 if Ranks(CPU, gather=gather).rank == 1 else 0
        return Ranks(CPU, gather=gather, refused=refused).agree(spec, {}, 0, True)

    for error in run_threads(agree_with_refused):
        assert isinstance(error, InputError)
        assert message in str(error)
        assert error.depends_on_data


@pytest.mark.parametrize("secure", [False, True])
def test_metrics_compute_through_a_gather_function_alone(secure: bool) -> None:
    def compute(gather: Gather) -> ROCCurve:
        metric = counted_part(
            Ranks(CPU, gather=gather).rank,
            dist_sync_fn=gather,
            distributed_available_fn=lambda: True,
            secure=secure,
        )
        return metric.compute()

    for curve in run_threads(compute):
        assert isinstance(curve, ROCCurve), curve
        assert same_curve(curve, roc(*all_scores()))


@pytest.mark.parametrize(
    "privacy",
    [CentralDP(1.0), DistributedDP(1.0, min_clients=3)],
    ids=lambda privacy: type(privacy).__name__,
)
def test_private_metrics_release_through_a_gather_function_alone(privacy: Privacy) -> None:
    """There is one release, the same on every rank, and each rank is charged once."""

    def make_release(gather: Gather) -> Release:
        metric = counted_part(
            Ranks(CPU, gather=gather).rank,
            privacy=privacy,
            dist_sync_fn=gather,
            distributed_available_fn=lambda: True,
        )
        release = metric.release()
        assert len(metric.ledger) == 1
        return release

    release, *copies = run_threads(make_release)
    assert isinstance(release, Release), release
    assert release.shares == 3
    for copy in copies:
        assert isinstance(copy, Release), copy
        assert copy.queries == release.queries
        for total, expected in zip(copy.sums, release.sums, strict=True):
            assert torch.equal(total.cells, expected.cells)


CALLS: dict[str, Callable[[Ranks, Tensor], Any]] = {
    "rank": lambda ranks, counts: ranks.rank,
    "size": lambda ranks, counts: ranks.size,
    "sum": lambda ranks, counts: ranks.sum(counts),
    "sum_to_first": lambda ranks, counts: ranks.sum_to_first(counts),
    "from_first": lambda ranks, counts: ranks.from_first(counts),
    "exchange": lambda ranks, counts: ranks.exchange(b"x"),
    "any": lambda ranks, counts: ranks.any(True),
    "agree": lambda ranks, counts: ranks.agree(SPEC, {}, 0, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_a_group_and_without_a_gather_function_nothing_is_summed(name: str) -> None:
    counts = torch.ones(3, dtype=torch.int64)
    with pytest.raises(SyncError, match="to be initialized"):
        CALLS[name](Ranks(CPU), counts)


def test_one_process_alone_does_what_a_single_rank_does() -> None:
    process = Alone(CPU)
    counts = torch.arange(6).reshape(2, 3)
    query = Query(Tree((8, 8)))
    assert process.size == 1
    assert process.is_first
    for move in (process.sum, process.sum_to_first, process.from_first):
        assert torch.equal(move(counts), counts)
    assert torch.equal(process.hidden_sum(counts, b"view"), counts)
    assert process.query_from_first(query, 64) == query
    assert process.any(True)
    assert not process.any(False)


@pytest.mark.parametrize(("status", "any_data"), [(0, True), (2, False)])
def test_one_process_alone_agrees_with_itself(status: int, any_data: bool) -> None:
    agreement = Alone(CPU).agree(SPEC, {"plan": b"single"}, status, any_data)
    assert agreement.statuses == (status, status)
    assert agreement.any_data == any_data
    assert 0 <= agreement.proposal < 2**62


def test_a_name_for_an_attempt_is_fresh_and_the_same_on_all_ranks() -> None:
    def propose(gather: Gather) -> list[int]:
        ranks = Ranks(CPU, gather=gather)
        return [ranks.agree(SPEC, {}, 0, True).proposal for _ in range(20)]

    proposals, *copies = run_threads(propose)
    assert isinstance(proposals, list)
    assert copies == [proposals, proposals]
    assert len(set(proposals)) == 20
