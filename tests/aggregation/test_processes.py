"""Ranks as gloo processes: one sum, the same curve on every rank, and errors that reach all."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import MetricCollection

from tests.aggregation.counted import all_scores, counted_part, part_of, same_curve
from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    FederatedPrecisionRecallCurve,
    FederatedROC,
    Release,
    paper,
)
from torchmetrics_fed.errors import SpecMismatchError, SyncError
from torchmetrics_fed.functional import ROCCurve, precision_recall_curve, roc

pytestmark = pytest.mark.slow

QUANTILES = paper.Quantiles(1024)


class Readings(NamedTuple):
    """Everything that one rank computes."""

    curve: ROCCurve
    repeated_curve: ROCCurve
    local_examples: int
    quantile_curve: ROCCurve
    median: paper.ClassQuantiles
    share: Tensor


def read_all(rank: int) -> Readings:
    warnings.simplefilter("error")  # a rank without data must not warn
    metric = counted_part(rank)
    curve = metric.compute()
    local_examples = int(metric.counts.sum())
    return Readings(
        curve=curve,
        repeated_curve=metric.compute(),
        local_examples=local_examples,
        quantile_curve=counted_part(rank, grid="even", reconstruction=QUANTILES).compute(),
        median=paper.quantiles(metric.release(), 0.5),
        share=metric.share().cells,
    )


def test_every_rank_has_the_pooled_curve(ranks: RankPool) -> None:
    pooled = FederatedROC()
    pooled.update(*all_scores())
    median = paper.quantiles(Release.sum([pooled.share()]), 0.5)
    for rank, readings in enumerate(ranks.run(read_all)):
        assert same_curve(readings.curve, roc(*all_scores()))
        assert same_curve(readings.repeated_curve, readings.curve)
        assert readings.local_examples == len(part_of(rank)[0])
        expected = roc(*all_scores(), grid="even", reconstruction=QUANTILES)
        assert same_curve(readings.quantile_curve, expected)
        assert readings.median.positive == median.positive
        assert readings.share.sum() == 3_001


def collective_calls(rank: int) -> list[tuple[str, int]]:
    metric = counted_part(rank)
    collectives = Collectives()
    with collectives:
        metric.compute()
    return [(name, tensor.numel()) for name, tensor in collectives.sent]


def test_counts_move_in_one_all_reduce_and_are_never_gathered(ranks: RankPool) -> None:
    for calls in ranks.run(collective_calls):
        assert [call for call in calls if call[1] >= 8_192] == [("allreduce_", 8_192)]
        assert {name for name, _ in calls} == {"allreduce_"}


def compute_with_news_on_one_rank(rank: int) -> ROCCurve:
    metric = counted_part(rank)
    metric.compute()
    if rank == 1:
        metric.update(torch.tensor([0.5]), torch.tensor([1]))
    return metric.compute()


def test_a_rank_without_news_does_not_leave_the_others_waiting(ranks: RankPool) -> None:
    preds, target = all_scores()
    expected = roc(torch.cat([preds, torch.tensor([0.5])]), torch.cat([target, torch.tensor([1])]))
    for curve in ranks.run(compute_with_news_on_one_rank):
        assert same_curve(curve, expected)


def compute_with_another_grid(rank: int) -> tuple[str, int]:
    metric = FederatedROC(quantiles=64 if rank == 2 else 1024)
    metric.update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(SpecMismatchError) as caught:
        metric.compute()
    return str(caught.value), int(metric.counts.sum())


def test_a_mismatch_is_an_error_on_every_rank_and_the_group_still_works(ranks: RankPool) -> None:
    for message, local_examples in ranks.run(compute_with_another_grid):
        assert "differ in bins;" in message
        assert local_examples == 1
    for readings in ranks.run(read_all):
        assert same_curve(readings.curve, roc(*all_scores()))


class Broken(FederatedROC):
    def compute(self) -> ROCCurve:
        raise ArithmeticError("inside compute")


def compute_broken(rank: int) -> int:
    metric = Broken()
    metric.update(*part_of(rank))
    with pytest.raises(ArithmeticError, match="inside compute"):
        metric.compute()
    metric.update(torch.tensor([0.5]), torch.tensor([1]))
    return int(metric.counts.sum())


def test_an_error_inside_compute_gives_every_rank_its_own_counts_back(ranks: RankPool) -> None:
    expected = [len(part_of(rank)[0]) + 1 for rank in range(3)]
    assert ranks.run(compute_broken) == expected


def compute_in_group(rank: int) -> ROCCurve | str:
    group = dist.new_group([1, 2])
    metric = counted_part(rank, process_group=group)
    try:
        return metric.compute()
    except SyncError as error:
        return str(error)


def test_a_process_group_sums_its_members_only(ranks: RankPool) -> None:
    outsider, *members = ranks.run(compute_in_group)
    assert "belong to the metric's `process_group`" in outsider
    for curve in members:
        assert same_curve(curve, roc(*all_scores()))


def gather_all(tensor: Tensor, group: Any = None) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(3)]
    dist.all_gather(gathered, tensor, group=group)
    return gathered


def compute_by_gathering(rank: int) -> ROCCurve:
    return counted_part(rank, dist_sync_fn=gather_all).compute()


def test_a_dist_sync_fn_is_used(ranks: RankPool) -> None:
    for curve in ranks.run(compute_by_gathering):
        assert same_curve(curve, roc(*all_scores()))


def compute_on_step(rank: int) -> tuple[ROCCurve, ROCCurve]:
    metric = FederatedROC(dist_sync_on_step=True)
    batch_curve = metric(*part_of(rank))
    return batch_curve, metric.compute()


def test_dist_sync_on_step_gives_the_batch_of_all_ranks(ranks: RankPool) -> None:
    for batch_curve, curve in ranks.run(compute_on_step):
        assert same_curve(batch_curve, roc(*all_scores()))
        assert same_curve(curve, roc(*all_scores()))


def compute_collection(rank: int) -> tuple[dict[str, Any], list[list[str]]]:
    collection = MetricCollection({"roc": FederatedROC(), "pr": FederatedPrecisionRecallCurve()})
    collection.update(*part_of(rank))
    values = collection.compute()
    return values, [sorted(group) for group in collection.compute_groups.values()]


def test_collections_compute_together(ranks: RankPool) -> None:
    expected = precision_recall_curve(*all_scores()).precision
    for values, groups in ranks.run(compute_collection):
        assert same_curve(values["roc"], roc(*all_scores()))
        assert torch.equal(values["pr"].precision, expected)
        assert groups == [["pr", "roc"]]
