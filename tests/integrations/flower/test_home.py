"""The files of a Flower node: its ledger, notes that are erased, and no file for two nodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import RUN_ID, Client, Cut, LocalGrid
from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.integrations.flower import (
    FederatedEvaluationMixin,
    aggregate_fn,
    evaluation_mod,
)
from torchmetrics_fed.privacy.store import NOTE_SECONDS

NODES = range(11, 16)
HIDDEN = DistributedDP(2.0, min_clients=4)
VISIBLE = DistributedDP(2.0, min_clients=4, trusted_aggregator=True)


class Curves(FederatedEvaluationMixin, FedAvg):
    pass


def private(privacy: Any = HIDDEN, path: Path | None = None, budget: float = 5.0) -> FederatedROC:
    ledger = PrivacyLedger(budget=budget, path=path)
    return FederatedROC(quantiles=64, privacy=privacy, ledger=ledger)


def grid_of(make: Callable[[], FederatedROC], folder: Path) -> LocalGrid:
    apps = {}
    for node in NODES:
        generator = torch.Generator().manual_seed(node)
        preds = torch.rand(90, generator=generator)
        target = torch.randint(0, 2, (90,), generator=generator)
        apps[node] = Client(make, preds, target, folder=folder).app
    return LocalGrid(apps)


def started(grid: LocalGrid, strategy: Any, rounds: int = 1) -> Any:
    strategy.start(
        grid, ArrayRecord({"w": Array(torch.ones(1).numpy())}), num_rounds=rounds, timeout=1.0
    )
    return strategy


def curves(metric: FederatedROC) -> Curves:
    return Curves(metric=metric, min_available_nodes=5)


def spent(folder: Path) -> list[float]:
    return [PrivacyLedger(path=folder / str(node) / "ledger").spent().epsilon for node in NODES]


@pytest.mark.parametrize("privacy", [HIDDEN, VISIBLE], ids=["hidden", "visible"])
def test_a_ledger_without_a_path_is_a_file_of_each_node(
    privacy: DistributedDP, folder: Path
) -> None:
    grid = grid_of(lambda: private(privacy), folder)
    strategy = started(grid, curves(private(privacy)), rounds=3)
    assert sorted(strategy.releases) == [1, 2]  # 5.0 is left of the budget for two
    assert spent(folder) == [4.0] * 5
    stage = "advertise" if privacy is HIDDEN else "join"
    assert "1.0 of 5.0 is left" in grid.refusals(stage)[0]


def test_the_mod_travels_to_the_workers_of_a_simulation() -> None:
    """Ray pickles the app, and a ledger in memory must not be copied."""
    cloudpickle = pytest.importorskip("cloudpickle")
    assert callable(cloudpickle.loads(cloudpickle.dumps(evaluation_mod(private()))))


def test_under_a_plain_strategy_the_node_has_its_ledger_too(folder: Path) -> None:
    aggregate = aggregate_fn(private(LocalDP(2.0)))
    started(
        grid_of(lambda: private(LocalDP(2.0)), folder), FedAvg(evaluate_metrics_aggr_fn=aggregate)
    )
    assert aggregate.releases[0].shares == 5
    assert spent(folder) == [2.0] * 5


def test_without_a_folder_the_files_are_below_flowers_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(folder))
    guard = evaluation_mod(private())
    grid = LocalGrid(
        {
            node: Client(private, torch.rand(9), torch.ones(9).long(), outer=[guard]).app
            for node in NODES
        }
    )
    started(grid, curves(private()))
    assert spent(folder / "torchmetrics-fed") == [2.0] * 5


def test_a_node_with_a_new_id_goes_on_in_its_ledger(folder: Path) -> None:
    """The SuperLink assigns a new id at each restart. A new id must not reset the budget."""
    apps = grid_of(private, folder)._apps
    for first in (0, 100, 200):
        grid = LocalGrid({node + first: app for node, app in apps.items()})
        for node, partition in zip(grid._contexts, NODES, strict=True):
            grid._contexts[node] = Context(
                RUN_ID, node, {"partition-id": partition}, RecordDict(), {}
            )
        assert bool(started(grid, curves(private())).releases) == (first < 200)
    assert spent(folder) == [4.0] * 5


@pytest.mark.parametrize("privacy", [HIDDEN, VISIBLE], ids=["hidden", "visible"])
def test_a_ledger_that_nodes_share_is_named(privacy: DistributedDP, folder: Path) -> None:
    path = folder / "ledger"
    grid = grid_of(lambda: private(privacy, path), folder)
    assert not started(grid, curves(private(privacy))).releases
    refusals = grid.refusals("advertise" if privacy is HIDDEN else "join")
    assert len(refusals) == 4
    assert all(
        f"Expected files of its own for each node but '{path}' is used by node " in why
        for why in refusals
    )
    assert PrivacyLedger(path=path).spent().epsilon == 0.0  # nobody has paid


def test_nodes_without_a_name_of_their_own_that_share_a_folder_are_named(folder: Path) -> None:
    grid = grid_of(private, folder)
    grid._contexts = {node: Context(RUN_ID, node, {}, RecordDict(), {}) for node in NODES}
    assert not started(grid, curves(private())).releases
    refusals = grid.refusals("advertise")
    assert len(refusals) == 4
    assert all(f"'{folder / 'node' / 'notes'}' is used by node" in why for why in refusals)
    restarted = LocalGrid({99: grid._apps[NODES[0]]})  # with another id, in a later round
    restarted._contexts = {99: Context(RUN_ID, 99, {}, RecordDict(), {})}
    alone = curves(private())
    alone.min_available_nodes = 1
    alone.min_evaluate_nodes = 1
    alone.min_train_nodes = 1
    started(restarted, alone)
    assert not restarted.refusals("advertise")


# --- notes of rounds that broke off


def notes_of(folder: Path) -> dict[int, set[str]]:
    """By node, the rounds and aggregations whose notes hold secrets or raw counts."""
    names = {}
    for node in NODES:
        with closing(sqlite3.connect(folder / str(node) / "notes")) as tables:
            rows = tables.execute("SELECT round FROM notes WHERE content != x''").fetchall()
        names[node] = {name for (name,) in rows}
    return names


STAGES = ["share_keys", "evaluate", "unmask", "answer"]
CASES = [(HIDDEN, stage) for stage in STAGES] + [
    (VISIBLE, stage) for stage in ("evaluate", "answer")
]


@pytest.mark.parametrize(("privacy", "stage"), CASES)
def test_when_a_round_breaks_off_those_who_are_there_erase_their_notes(
    stage: str, privacy: DistributedDP, folder: Path
) -> None:
    grid = grid_of(lambda: private(privacy), folder)
    missing = (NODES[0], NODES[1])
    grid.cuts = {Cut(node, stage, "after") for node in missing}
    grid.cuts |= {Cut(node, "forget") for node in missing}
    assert not started(grid, curves(private(privacy))).releases
    names = notes_of(folder)
    assert not any(names[node] for node in NODES if node not in missing)
    visible_answer = privacy is VISIBLE and stage == "answer"  # that erases the counts by itself
    assert all(names[node] for node in missing) != visible_answer  # so there was something to erase


def test_where_nothing_is_kept_nobody_is_asked_to_forget(folder: Path) -> None:
    def plain() -> FederatedROC:
        return FederatedROC(
            quantiles=64, privacy=LocalDP(1.0), plan="single", ledger=PrivacyLedger(budget=0.5)
        )

    grid = grid_of(plain, folder)  # every budget is too small, so that no share comes
    assert not started(grid, curves(plain())).releases
    assert {stage for _, stage in grid.asked} == {"train", "join"}


def test_what_a_killed_server_left_is_erased_a_day_later(folder: Path) -> None:
    grid = grid_of(lambda: private(budget=9.0), folder)  # one round is charged, one reserved
    # nobody is there to be asked to forget
    grid.cuts = {Cut(node, "unmask", "after") for node in NODES}
    assert not started(grid, curves(private())).releases
    first = notes_of(folder)
    # an aggregation, and raw counts for the second query, in one note
    assert [len(names) for names in first.values()] == [1] * 5
    grid.cuts = {Cut(node, "advertise", "after") for node in NODES}
    started(grid, curves(private()))
    second = notes_of(folder)
    assert [len(names) for names in second.values()] == [2] * 5
    for node in NODES:
        with closing(sqlite3.connect(folder / str(node) / "notes")) as tables, tables:
            tables.execute("UPDATE notes SET time = time - ?", (NOTE_SECONDS + 60,))
    started(grid, curves(private()))
    third = notes_of(folder)
    assert [len(names) for names in third.values()] == [1] * 5
    assert not any(second[node] & third[node] for node in NODES)


@pytest.mark.parametrize("privacy", [HIDDEN, VISIBLE], ids=["hidden", "visible"])
def test_two_runs_at_the_same_time_leave_each_other_their_notes(
    privacy: DistributedDP, folder: Path
) -> None:
    """The second run goes through all its stages while the first has evaluated and waits."""
    grid = grid_of(lambda: private(privacy), folder)
    second = curves(private(privacy))

    class Waiting(Curves):
        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            started(grid, second)
            return super().aggregate_evaluate(server_round, replies)

    first = started(grid, Waiting(metric=private(privacy), min_available_nodes=5))
    assert [len(strategy.releases) for strategy in (first, second)] == [1, 1]
    assert spent(folder) == [4.0] * 5
