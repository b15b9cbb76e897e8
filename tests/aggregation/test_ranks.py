"""Three gloo processes: one sum, the same curve everywhere, and errors that reach every rank."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import MetricCollection

from tests.ranks import RankPool
from torchmetrics_fed import FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.functional import ROCCurve, precision_recall_curve, roc

pytestmark = pytest.mark.slow


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
    warnings.simplefilter("error")  # a rank without data must not warn, for a warning may be an error
    metric = filled(rank)
    first = metric.compute()
    local = int(metric.counts.sum())
    again = metric.compute()
    return first, again, local, filled(rank, method="quantile").compute(), metric.quantile(0.5), metric.share().cells


def test_every_rank_has_the_pooled_curve(ranks: RankPool) -> None:
    for rank, (first, again, local, quantile, median, cells) in enumerate(ranks.run(curves)):
        assert same(first, roc(*data()))
        assert same(again, first)
        assert local == len(part(rank)[0])
        assert same(quantile, roc(*data(), method="quantile"))
        assert median.positive == FederatedROC.from_release(_pooled()).quantile(0.5).positive
        assert cells.sum() == 3_001


def _pooled() -> Any:
    from torchmetrics_fed import Release

    metric = FederatedROC()
    metric.update(*data())
    return Release.sum([metric.share()])


class Collectives(TorchDispatchMode):
    """The names and sizes of the collectives that run inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("c10d"):
            self.calls.append((name.split(".")[1], sum(t.numel() for t in args[0])))
        return func(*args, **(kwargs or {}))


def counted(rank: int) -> list[tuple[str, int]]:
    metric = filled(rank)
    collectives = Collectives()
    with collectives:
        metric.compute()
    return collectives.calls


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


def test_a_mismatch_is_an_error_on_every_rank(ranks: RankPool) -> None:
    for message, local in ranks.run(mismatched):
        assert "differ in bins, tree;" in message
        assert local == 1
    assert all(same(result[0], roc(*data())) for result in ranks.run(curves))  # and the group still works


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


def test_an_error_inside_compute_gives_every_rank_its_own_counts_back(ranks: RankPool) -> None:
    assert ranks.run(broken) == [("inside compute", len(part(rank)[0]) + 1) for rank in range(3)]


def grouped(rank: int) -> ROCCurve | str:
    group = dist.new_group([1, 2])
    metric = filled(rank, process_group=group)
    try:
        return metric.compute()
    except SyncError as error:
        return str(error)


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


def test_a_dist_sync_fn_is_used(ranks: RankPool) -> None:
    assert all(same(curve, roc(*data())) for curve in ranks.run(gathered))


def stepped(rank: int) -> tuple[ROCCurve, ROCCurve]:
    metric = FederatedROC(dist_sync_on_step=True)
    value = metric(*part(rank))
    return value, metric.compute()


def test_dist_sync_on_step_gives_the_batch_of_all_ranks(ranks: RankPool) -> None:
    for value, total in ranks.run(stepped):
        assert same(value, roc(*data()))
        assert same(total, roc(*data()))


def collected(rank: int) -> tuple[dict[str, Any], list[list[str]]]:
    collection = MetricCollection({"roc": FederatedROC(), "pr": FederatedPrecisionRecallCurve()})
    collection.update(*part(rank))
    return collection.compute(), [sorted(group) for group in collection.compute_groups.values()]


def test_collections_compute_together(ranks: RankPool) -> None:
    for values, groups in ranks.run(collected):
        assert same(values["roc"], roc(*data()))
        assert torch.equal(values["pr"].precision, precision_recall_curve(*data()).precision)
        assert groups == [["pr", "roc"]]
