"""Three gloo processes with noise: identical curves, one draw per rank, one decision for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    LocalDP,
    Privacy,
    PrivacyLedger,
    Query,
    ReleaseError,
    Spec,
    federated_collection,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.functional import ROCCurve, area_error_roc, roc

pytestmark = pytest.mark.slow

THREE = DistributedDP(1.0, min_clients=3)


def data(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    target = torch.randint(0, 2, (20_000,), generator=generator)
    return (torch.randn(20_000, generator=generator) + target).sigmoid(), target


def same(first: ROCCurve, second: ROCCurve) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def counted(rank: int, privacy: Privacy, folder: str | None = None, **options: Any) -> FederatedROC:
    ledger = None if folder is None else PrivacyLedger(path=Path(folder, "ledger"))
    metric = FederatedROC(privacy=privacy, ledger=ledger, **options)
    metric.update(*data(rank))
    return metric


class Draws:
    """Counts how often this process draws noise."""

    def __enter__(self) -> Draws:
        self.count = 0
        self.patch = pytest.MonkeyPatch()
        original = client_module.noisy_cells

        def counting(spec: Spec, query: Query, counts: Tensor) -> Tensor:
            self.count += 1
            return original(spec, query, counts)

        self.patch.setattr(client_module, "noisy_cells", counting)
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def released(rank: int, privacy: Privacy, folder: str) -> tuple[ROCCurve, ROCCurve, int, int]:
    metric = counted(rank, privacy, folder)
    with Draws() as draws:
        first = metric.compute()
        repeated = metric.clone().compute()
    return first, repeated, draws.count, len(metric.ledger)


@pytest.mark.parametrize(
    ("privacy", "draws"),
    [(THREE, [2, 2, 2]), (LocalDP(1.0), [2, 2, 2]), (CentralDP(1.0), [2, 0, 0])],
    ids=["distributed", "local", "central"],
)
def test_identical_curves_and_one_draw_a_query(
    ranks: RankPool, tmp_path: Path, privacy: Privacy, draws: list[int]
) -> None:
    results = ranks.run(released, privacy, str(tmp_path))
    preds, target = (torch.cat(parts) for parts in zip(*map(data, range(3)), strict=True))
    exact = roc(preds, target)
    for first, repeated, _, entries in results:
        assert same(first, results[0][0])
        assert same(repeated, first)
        assert entries == 1  # the ranks share the file, and write one entry
        assert 0 < area_error_roc(first, exact) < 0.02
    assert [count for *_, count, _ in results] == draws


def too_few(rank: int) -> tuple[str, int, int]:
    metric = counted(rank, DistributedDP(1.0, min_clients=4))
    with Draws() as draws, pytest.raises(ReleaseError) as caught:
        metric.compute()
    return str(caught.value), draws.count, len(metric.ledger)


def test_too_few_ranks_is_an_error_before_anything_leaves(ranks: RankPool) -> None:
    for message, draws, entries in ranks.run(too_few):
        assert "min_clients=4" in message
        assert "got 3" in message
        assert (draws, entries) == (0, 0)


def refused(rank: int) -> tuple[str, int]:
    ledger = PrivacyLedger(budget=0.5 if rank == 1 else None)
    metric = FederatedROC(privacy=THREE, ledger=ledger)
    metric.update(*data(rank))
    with Draws() as draws, pytest.raises((ReleaseError, BudgetExceededError)) as caught:
        metric.compute()
    return type(caught.value).__name__, draws.count


def test_one_ledger_that_refuses_stops_all(ranks: RankPool) -> None:
    assert ranks.run(refused) == [
        ("ReleaseError", 0),
        ("BudgetExceededError", 0),
        ("ReleaseError", 0),
    ]


def half_reset(rank: int) -> str:
    metric = counted(rank, THREE)
    metric.compute()
    if rank == 2:
        metric.reset()
        metric.update(*data(rank))
    with pytest.raises(ReleaseError) as caught:
        metric.compute()
    return str(caught.value)


def test_a_rank_out_of_step_is_an_error_on_all(ranks: RankPool) -> None:
    for message in ranks.run(half_reset):
        assert "has released nothing" in message
        assert "has its release" in message


def gone_on(rank: int) -> tuple[str, int]:
    metric = counted(rank, THREE)
    twin: Any = metric.clone()
    metric.compute()
    if rank == 0:
        twin.counts = twin.counts + 1
    with pytest.raises(ReleaseError) as caught:
        twin.compute()
    return str(caught.value), len(metric.ledger)


def test_a_copy_that_went_on_is_an_error_on_all(ranks: RankPool) -> None:
    for message, entries in ranks.run(gone_on):
        assert "has counted other data since" in message
        assert entries == 1


def other_epsilon(rank: int) -> str:
    metric = counted(rank, DistributedDP(1.0 + (rank == 0), min_clients=3))
    with pytest.raises(SpecMismatchError) as caught:
        metric.compute()
    return str(caught.value)


def test_ranks_with_another_epsilon_are_named(ranks: RankPool) -> None:
    assert all("differ in privacy" in message for message in ranks.run(other_epsilon))


def one_client(rank: int) -> tuple[Tensor, int, int]:
    privacy = DistributedDP(1.0, min_clients=5, trusted_aggregator=True)
    metric = counted(rank, privacy, quantiles=16, plan=Query(Tree((8,))))
    with Draws() as draws:
        share = metric.share(round="round-1")
        assert metric.share(round="round-1") is share
    return share.cells, draws.count, len(metric.ledger)


def test_several_ranks_that_are_one_client_draw_one_share(ranks: RankPool) -> None:
    results = ranks.run(one_client)
    assert [draws for _, draws, _ in results] == [1, 0, 0]
    for cells, _, entries in results:
        assert torch.equal(cells, results[0][0])
        assert abs(int(cells.sum()) - 60_000) < 200
        assert entries == 1


def grouped(rank: int) -> ROCCurve | str:
    group = dist.new_group([0, 2])
    metric = counted(rank, DistributedDP(1.0, min_clients=2), process_group=group)
    if rank == 1:
        return "outside"
    return metric.compute()


def test_a_process_group_is_the_federation(ranks: RankPool) -> None:
    first, _, last = ranks.run(grouped)
    assert same(first, last)


def collected(rank: int) -> tuple[Any, int]:
    collection: Any = federated_collection(privacy=THREE)
    for _ in range(2):
        collection.update(*data(rank))
    with Draws() as draws:
        curves = collection.compute()
    return curves, draws.count


def test_a_collection_is_one_draw_a_query_per_rank(ranks: RankPool) -> None:
    for curves, draws in ranks.run(collected):
        assert draws == 2
        assert torch.equal(curves["precision_recall_curve"].recall.flip(0), curves["roc"].tpr)


SIX = ["roc", "precision_recall_curve", "auroc", "average_precision", "det", "calibration"]


def six(rank: int, folder: str) -> tuple[Any, int, int]:
    ledger = PrivacyLedger(path=Path(folder, "ledger"))
    collection: Any = federated_collection(privacy=THREE, metrics=SIX, ledger=ledger)
    for preds, target in zip(*(values.chunk(4) for values in data(rank)), strict=True):
        collection.update(preds, target)
    assert len(collection.compute_groups) == 1  # one state for all six
    with Draws() as draws:
        answers = collection.compute()
        collection["auroc"].plot()
    return answers, draws.count, len(ledger)


def test_six_metrics_are_one_release(ranks: RankPool, tmp_path: Path) -> None:
    for answers, draws, entries in ranks.run(six, str(tmp_path)):
        assert (draws, entries) == (2, 1)
        assert sorted(answers) == sorted(SIX)
        curve = answers["roc"]
        assert torch.equal(answers["auroc"], torch.trapezoid(curve.tpr, curve.fpr))
        assert torch.equal(answers["det"].fpr.flip(0), curve.fpr)


def many_classes(rank: int) -> tuple[Tensor, Tensor, int]:
    generator = torch.Generator().manual_seed(rank)
    metric: Any = FederatedAUROC(
        "multiclass", num_classes=5, privacy=DistributedDP(20.0, min_clients=3), average=None
    )
    scores = torch.randn(2_000, 5, generator=generator).softmax(1)
    classes = torch.randint(0, 5, (2_000,), generator=generator)
    metric.update(scores, classes)
    with Draws() as draws:
        return (
            metric.compute(),
            FederatedAUROC.from_release(metric.release(), average=None).compute(),
            draws.count,
        )


def test_many_classes_across_ranks(ranks: RankPool) -> None:
    results = ranks.run(many_classes)
    for areas, repeated, draws in results:
        assert draws == 2
        assert torch.equal(areas, results[0][0])
        assert torch.equal(areas, repeated)
        assert bool(((areas - 0.5).abs() < 0.1).all())


def carried(rank: int) -> list[Tensor]:
    metric = FederatedROC(privacy=THREE, plan="carry_over")
    edges = []
    for _ in range(2):
        metric.update(*data(rank))
        metric.compute()
        edges.append(metric.release().last.edges)
        metric.reset()
    return edges


def test_ranks_place_the_next_release_by_the_last_one_alike(ranks: RankPool) -> None:
    results = ranks.run(carried)
    for edges in results:
        assert all(torch.equal(mine, first) for mine, first in zip(edges, results[0], strict=True))
    assert len(results[0][1]) < 4097


def unlike(rank: int) -> tuple[str, int]:
    metric = counted(rank, THREE, plan="single" if rank == 1 else None)
    with Draws() as draws, pytest.raises(SpecMismatchError) as caught:
        metric.compute()
    return str(caught.value), draws.count


def test_ranks_with_different_plans_are_named_before_anything_is_drawn(ranks: RankPool) -> None:
    for message, draws in ranks.run(unlike):
        assert "plan" in message
        assert draws == 0


def counted_collectives(call: Any) -> int:
    """How many collectives a call takes on this rank."""
    wire = Collectives()
    with wire:
        call()
    return wire.count


def plotted(rank: int, privacy: Privacy | None, name: str) -> tuple[int, int, int]:
    collection: Any = federated_collection(privacy=privacy, metrics=[name], confidence=0.9)
    metric = collection[name]
    metric.update(*data(rank))
    compute = counted_collectives(metric.compute)
    plot = counted_collectives(metric.plot)
    plt.close("all")
    metric.reset()
    return compute, plot, len(metric.ledger)


@pytest.mark.parametrize(
    "name", ["roc", "precision_recall_curve", "auroc", "average_precision", "det", "calibration"]
)
@pytest.mark.parametrize("privacy", [None, THREE], ids=["exact", "private"])
def test_a_plot_costs_no_more_collectives_than_compute(
    ranks: RankPool, privacy: Privacy | None, name: str
) -> None:
    for compute, plot, entries in ranks.run(plotted, privacy, name):
        assert compute > 0
        if privacy is None:
            assert plot <= compute
        else:
            assert plot == 0
        assert entries == (privacy is not None)


def unfed(rank: int, anybody: bool) -> tuple[str, int]:
    metric = FederatedROC(privacy=THREE)
    if anybody and rank == 1:
        metric.update(*data(rank))
    try:
        metric.compute()
    except ReleaseError as error:
        return str(error), len(metric.ledger)
    return "", len(metric.ledger)


def test_a_rank_without_data_answers_and_ranks_without_any_charge_nothing(ranks: RankPool) -> None:
    assert ranks.run(unfed, True) == [("", 1)] * 3
    for message, entries in ranks.run(unfed, False):
        assert "nothing was counted" in message
        assert entries == 0


def gathered(tensor: Tensor, group: Any = None) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(3)]
    dist.all_gather(parts, tensor)
    return parts


def by_gather_function(rank: int, privacy: Privacy) -> tuple[ROCCurve, int]:
    metric = counted(rank, privacy, dist_sync_fn=gathered)
    return metric.compute(), len(metric.ledger)


@pytest.mark.parametrize(
    "privacy", [THREE, LocalDP(1.0), CentralDP(1.0)], ids=["distributed", "local", "central"]
)
def test_a_gather_function_carries_releases_too(ranks: RankPool, privacy: Privacy) -> None:
    results = ranks.run(by_gather_function, privacy)
    assert all(same(curve, results[0][0]) and entries == 1 for curve, entries in results)
