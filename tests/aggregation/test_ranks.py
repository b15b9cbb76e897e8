"""Ranks, as gloo processes or as a gather function: one sum, the same curve everywhere, errors that reach all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from threading import Barrier, Thread
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import MetricCollection

from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    Privacy,
    Query,
    Release,
    ScoreGrid,
    Spec,
    paper,
)
from torchmetrics_fed.aggregation.ranks import Alone, Gather, Ranks
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.functional import ROCCurve, precision_recall_curve, roc

QUANTILE = paper.Quantiles(1024)
SPEC = Spec("binary", 1, ScoreGrid(bins=64))
CPU = torch.device("cpu")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    target = torch.randint(0, 2, (3_001,), generator=generator)
    return (torch.randn(3_001, generator=generator) + target).sigmoid(), target


def part(rank: int) -> tuple[Tensor, Tensor]:
    """Uneven parts, and none at all for rank 0."""
    bounds = [0, 0, 700, 3_001]
    preds, target = data()
    return preds[bounds[rank] : bounds[rank + 1]], target[bounds[rank] : bounds[rank + 1]]


def filled(rank: int, **options: Any) -> FederatedROC:
    metric = FederatedROC(**options)
    if rank:  # rank 0 never sees a batch
        for preds, target in zip(*(values.split(200 * rank) for values in part(rank)), strict=True):
            metric.update(preds, target)
    return metric


def same(one: ROCCurve, other: ROCCurve) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def curves(rank: int) -> tuple[Any, ...]:
    warnings.simplefilter(
        "error"
    )  # a rank without data must not warn, because a warning may be an error
    metric = filled(rank)
    first = metric.compute()
    local = int(metric.counts.sum())
    again = metric.compute()
    return (
        first,
        again,
        local,
        filled(rank, grid="even", reconstruction=QUANTILE).compute(),
        paper.quantiles(metric.release(), 0.5),
        metric.share().cells,
    )


@pytest.mark.slow
def test_every_rank_has_the_pooled_curve(ranks: RankPool) -> None:
    for rank, (first, again, local, quantile, median, cells) in enumerate(ranks.run(curves)):
        assert same(first, roc(*data()))
        assert same(again, first)
        assert local == len(part(rank)[0])
        assert same(quantile, roc(*data(), grid="even", reconstruction=QUANTILE))
        assert median.positive == paper.quantiles(_pooled(), 0.5).positive
        assert cells.sum() == 3_001


def _pooled() -> Any:
    metric = FederatedROC()
    metric.update(*data())
    return Release.sum([metric.share()])


def counted(rank: int) -> list[tuple[str, int]]:
    metric = filled(rank)
    collectives = Collectives()
    with collectives:
        metric.compute()
    return [(name, tensor.numel()) for name, tensor in collectives.sent]


@pytest.mark.slow
def test_counts_move_in_one_all_reduce_and_are_never_gathered(ranks: RankPool) -> None:
    for calls in ranks.run(counted):
        assert [call for call in calls if call[1] >= 8_192] == [("allreduce_", 8_192)]
        assert {name for name, _ in calls} == {"allreduce_"}


def stale(rank: int) -> list[ROCCurve]:
    metric = filled(rank)
    values = [metric.compute()]
    if rank == 1:  # the others have nothing new, and must take part all the same
        metric.update(torch.tensor([0.5]), torch.tensor([1]))
    return [*values, metric.compute()]


@pytest.mark.slow
def test_a_rank_without_news_does_not_leave_the_others_waiting(ranks: RankPool) -> None:
    preds, target = data()
    expected = roc(torch.cat([preds, torch.tensor([0.5])]), torch.cat([target, torch.tensor([1])]))
    for _, second in ranks.run(stale):
        assert same(second, expected)


def mismatched(rank: int) -> tuple[str, int]:
    metric = FederatedROC(quantiles=64 if rank == 2 else 1024)
    metric.update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(SpecMismatchError) as caught:
        metric.compute()
    return str(caught.value), int(metric.counts.sum())


@pytest.mark.slow
def test_a_mismatch_is_an_error_on_every_rank(ranks: RankPool) -> None:
    for message, local in ranks.run(mismatched):
        assert "differ in bins;" in message
        assert local == 1
    assert all(
        same(result[0], roc(*data())) for result in ranks.run(curves)
    )  # and the group still works


class Broken(FederatedROC):
    def compute(self) -> ROCCurve:
        raise ArithmeticError("inside compute")


def broken(rank: int) -> tuple[str, int]:
    metric = Broken()
    metric.update(*part(rank))
    try:
        metric.compute()
    except ArithmeticError as error:
        metric.update(torch.tensor([0.5]), torch.tensor([1]))
        return str(error), int(metric.counts.sum())
    return "no error", 0


@pytest.mark.slow
def test_an_error_inside_compute_gives_every_rank_its_own_counts_back(ranks: RankPool) -> None:
    assert ranks.run(broken) == [("inside compute", len(part(rank)[0]) + 1) for rank in range(3)]


def grouped(rank: int) -> ROCCurve | str:
    group = dist.new_group([1, 2])
    metric = filled(rank, process_group=group)
    try:
        return metric.compute()
    except SyncError as error:
        return str(error)


@pytest.mark.slow
def test_a_process_group_sums_its_members_only(ranks: RankPool) -> None:
    outsider, one, other = ranks.run(grouped)
    assert "belong to the metric's `process_group`" in outsider
    assert same(one, roc(*data()))
    assert same(other, one)


def gathered(rank: int) -> ROCCurve:
    def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(3)]
        dist.all_gather(parts, tensor, group=group)
        return parts

    return filled(rank, dist_sync_fn=gather).compute()


@pytest.mark.slow
def test_a_dist_sync_fn_is_used(ranks: RankPool) -> None:
    assert all(same(curve, roc(*data())) for curve in ranks.run(gathered))


def stepped(rank: int) -> tuple[ROCCurve, ROCCurve]:
    metric = FederatedROC(dist_sync_on_step=True)
    value = metric(*part(rank))
    return value, metric.compute()


@pytest.mark.slow
def test_dist_sync_on_step_gives_the_batch_of_all_ranks(ranks: RankPool) -> None:
    for value, total in ranks.run(stepped):
        assert same(value, roc(*data()))
        assert same(total, roc(*data()))


def collected(rank: int) -> tuple[dict[str, Any], list[list[str]]]:
    collection = MetricCollection({"roc": FederatedROC(), "pr": FederatedPrecisionRecallCurve()})
    collection.update(*part(rank))
    return collection.compute(), [sorted(group) for group in collection.compute_groups.values()]


@pytest.mark.slow
def test_collections_compute_together(ranks: RankPool) -> None:
    for values, groups in ranks.run(collected):
        assert same(values["roc"], roc(*data()))
        assert torch.equal(values["pr"].precision, precision_recall_curve(*data()).precision)
        assert groups == [["pr", "roc"]]


# --- a gather function, and no process group


Result = TypeVar("Result")


def threads(work: Callable[[Gather], Result], world: int = 3) -> list[Result | Exception]:
    """What each of several ranks returns, or raises: threads that have nothing in common but a gather function."""
    barrier, sent = Barrier(world, timeout=20), [torch.empty(0)] * world
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
            sent[rank] = tensor.clone()
            barrier.wait()
            parts = [part.clone() for part in sent]
            barrier.wait()
            return parts

        try:
            results[rank] = work(gather)
        except Exception as error:
            results[rank] = error

    every = [Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()
    return results


@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_gather_function_is_all_that_ranks_need(world: int) -> None:
    """Size, rank, sums, what the first one says, hidden sums, and flags: all without torch.distributed."""
    assert not dist.is_initialized()

    def work(gather: Gather) -> dict[str, Any]:
        ranks = Ranks(CPU, gather=gather)
        rank = ranks.rank
        counts = torch.arange(6).reshape(2, 3) + 10 * rank
        before = counts.clone()
        result = {
            "rank": rank,
            "size": ranks.size,
            "is_first": ranks.is_first,
            "sum": ranks.sum(counts),
            "sum_to_first": ranks.sum_to_first(counts),
            "from_first": ranks.from_first(torch.full((3,), float(rank + 7))),
            "query": ranks.query_from_first(Query(Tree((2,), (0, 1 + rank, 64)), 0.5), 64),
            "hidden": ranks.hidden_sum(counts, b"view"),
            "any": (ranks.any(rank == world - 1), ranks.any(False)),
            "exchange": ranks.exchange(bytes([rank] * 5)),
        }
        assert torch.equal(counts, before)
        return result

    results = threads(work, world)
    total = world * torch.arange(6).reshape(2, 3) + 10 * sum(range(world))
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert (result["rank"], result["size"], result["is_first"]) == (rank, world, rank == 0)
        assert torch.equal(result["sum"], total)
        assert torch.equal(result["hidden"], total)
        assert torch.equal(result["from_first"], torch.full((3,), 7.0))
        assert result["query"] == Query(Tree((2,), (0, 1, 64)), 0.5)
        assert result["any"] == (True, False)
        assert result["exchange"] == [bytes([other] * 5) for other in range(world)]
    assert torch.equal(results[0]["sum_to_first"], total)  # type: ignore[index]


def test_gathered_ranks_agree_or_all_of_them_raise() -> None:
    def work(gather: Gather, odd: str = "") -> tuple[Any, int]:
        ranks = Ranks(CPU, gather=gather)
        last = ranks.rank == 2
        spec = Spec("binary", 1, ScoreGrid(bins=32 if last and odd == "bins" else 64))
        plan = b"single" if last and odd == "plan" else b"adaptive"
        return ranks.agree(spec, {"plan": plan}, ranks.rank, last), ranks.rank

    agreed = threads(work)
    assert all(isinstance(each, tuple) for each in agreed), agreed
    heard = [each[0] for each in agreed]  # type: ignore[index]
    assert len(set(heard)) == 1
    assert heard[0].statuses == (0, 2)
    assert heard[0].any_data
    for odd in ("bins", "plan"):
        for error in threads(partial(work, odd=odd)):
            assert isinstance(error, SpecMismatchError)
            assert f"differ in {odd};" in str(error)


@pytest.mark.parametrize("secure", [False, True])
def test_metrics_compute_through_a_gather_function_alone(secure: bool) -> None:
    def work(gather: Gather) -> ROCCurve:
        options = {
            "dist_sync_fn": gather,
            "distributed_available_fn": lambda: True,
            "secure": secure,
        }
        return filled(Ranks(CPU, gather=gather).rank, **options).compute()

    for curve in threads(work):
        assert isinstance(curve, ROCCurve), curve
        assert same(curve, roc(*data()))


@pytest.mark.parametrize(
    "privacy", [CentralDP(1.0), DistributedDP(1.0, min_clients=3)], ids=lambda p: type(p).__name__
)
def test_private_metrics_release_through_a_gather_function_alone(privacy: Privacy) -> None:
    """One release, the same on every rank, charged once on each. (Once the charge was made, and then an error came.)"""

    def work(gather: Gather) -> tuple[Release, int, int]:
        rank = Ranks(CPU, gather=gather).rank
        metric = filled(
            rank, privacy=privacy, dist_sync_fn=gather, distributed_available_fn=lambda: True
        )
        return metric.release(), len(metric.ledger), rank

    results = threads(work)
    assert all(isinstance(each, tuple) for each in results), results
    releases = [each[0] for each in results]  # type: ignore[index]
    assert [each[1:] for each in results] == [(1, rank) for rank in range(3)]  # type: ignore[index]
    for release in releases[1:]:
        assert release.queries == releases[0].queries
        assert all(
            torch.equal(a.cells, b.cells)
            for a, b in zip(release.sums, releases[0].sums, strict=True)
        )
    assert releases[0].shares == 3


def test_without_a_group_and_without_a_gather_function_nothing_is_summed() -> None:
    ranks, counts = Ranks(CPU), torch.ones(3, dtype=torch.int64)
    calls: list[Callable[[], object]] = [
        lambda: ranks.rank,
        lambda: ranks.size,
        lambda: ranks.sum(counts),
        lambda: ranks.sum_to_first(counts),
        lambda: ranks.from_first(counts),
        lambda: ranks.exchange(b"x"),
        lambda: ranks.any(True),
        lambda: ranks.agree(SPEC, {}, 0, True),
    ]
    for call in calls:
        with pytest.raises(SyncError, match="to be initialized"):
            call()


def test_one_process_alone_is_its_own_first_rank() -> None:
    """What a process alone does is what a single rank would do."""
    alone, counts, query = Alone(CPU), torch.arange(6).reshape(2, 3), Query(Tree((8, 8)))
    assert (alone.size, alone.is_first) == (1, True)
    for move in (alone.sum, alone.sum_to_first, alone.from_first):
        assert torch.equal(move(counts), counts)
    assert torch.equal(alone.hidden_sum(counts, b"view"), counts)
    assert alone.query_from_first(query, 64) == query
    assert [alone.any(flag) for flag in (True, False)] == [True, False]
    heard = [
        alone.agree(SPEC, {"plan": b"single"}, status, data)
        for status, data in ((0, True), (2, False))
    ]
    assert [(each.statuses, each.any_data) for each in heard] == [((0, 0), True), ((2, 2), False)]
    assert heard[0].proposal != heard[1].proposal  # a fresh name for every attempt
    assert all(0 <= each.proposal < 2**62 for each in heard)


def test_a_name_for_an_attempt_is_fresh_and_the_same_on_all_ranks() -> None:
    def work(gather: Gather) -> list[int]:
        ranks = Ranks(CPU, gather=gather)
        return [ranks.agree(SPEC, {}, 0, True).proposal for _ in range(20)]

    results = threads(work)
    assert results[0] == results[1] == results[2]
    assert isinstance(results[0], list)
    assert len(set(results[0])) == 20
