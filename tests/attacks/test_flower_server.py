"""A Flower server that lies about runs and rounds, and a metric inside the evaluation that
nobody agreed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower_grid import RUN_ID, Client, Draws, LocalGrid
from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger, ScoreGrid
from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin, aggregate_fn

NODES = range(11, 16)
AGREED = DistributedDP(1.0, min_clients=3)


class Curves(FederatedEvaluationMixin, FedAvg):
    pass


def parties(folder: Path, make: Callable[..., FederatedROC]) -> dict[int, Client]:
    clients = {}
    for node in NODES:
        generator = torch.Generator().manual_seed(node)
        preds = torch.rand(80, generator=generator)
        target = torch.randint(0, 2, (80,), generator=generator)
        path = folder / f"ledger {node}"

        def metric(path: Path = path) -> FederatedROC:
            return make(ledger=PrivacyLedger(budget=9.0, path=path))

        clients[node] = Client(metric, preds, target, folder=folder / "notes")
    return clients


def private(**options: Any) -> FederatedROC:
    return FederatedROC(quantiles=64, privacy=AGREED, **options)


def started(grid: LocalGrid, strategy: Any) -> Any:
    strategy.start(
        grid, ArrayRecord({"w": Array(torch.ones(1).numpy())}), num_rounds=1, timeout=1.0
    )
    return strategy


def entries(folder: Path) -> list[int]:
    return [len(PrivacyLedger(path=folder / f"ledger {node}")) for node in NODES]


@pytest.mark.parametrize("run", [RUN_ID, RUN_ID + 1], ids=["the same run", "another run"])
def test_the_same_round_is_not_answered_for_another_run(
    run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes that are kept per run let a server repeat a round: it chooses runs."""
    monkeypatch.setattr(
        "torchmetrics_fed.integrations.flower.strategy.secrets.token_hex", lambda size: "fixed"
    )
    clients = parties(tmp_path, private)
    grid = LocalGrid({node: client.app for node, client in clients.items()})
    with Draws() as drawn:
        assert (
            started(grid, Curves(metric=private(), min_available_nodes=5)).releases[1].shares == 5
        )
        before = len(drawn)
        grid._contexts = {
            node: Context(run, node, {"partition-id": node}, RecordDict(), {}) for node in clients
        }
        repeated = started(grid, Curves(metric=private(), min_available_nodes=5))
    assert not repeated.releases
    assert len(drawn) == before
    assert entries(tmp_path) == [1] * 5


OTHERS: dict[str, dict[str, Any]] = {
    "less noise": {"privacy": DistributedDP(1.0, min_clients=1000, max_colluding=1)},
    "another range": {"grid": ScoreGrid.even(64, (0.0, 10.0))},
    "another epsilon": {"privacy": DistributedDP(20.0, min_clients=3)},
    "another ledger": {},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_the_metric_that_is_updated_is_the_metric_that_was_agreed_on(
    difference: str, tmp_path: Path
) -> None:
    clients = parties(tmp_path, private)
    victim = clients[NODES[0]]
    elsewhere = PrivacyLedger(budget=99.0, path=tmp_path / "elsewhere")
    honest = victim.metric
    calls = [0]

    def alternating() -> FederatedROC:
        calls[0] += 1
        if calls[0] % 2:  # the app makes the mod's metric first
            return honest()  # type: ignore[return-value]
        options: dict[str, Any] = {
            "quantiles": 64,
            "privacy": AGREED,
            "ledger": honest().ledger,
        } | OTHERS[difference]
        if difference == "another ledger":
            options["ledger"] = elsewhere
        return FederatedROC(**options)

    grid = LocalGrid({node: client.app for node, client in clients.items()})
    evaluate = victim.app

    def app() -> Any:
        calls[0] = 0
        victim.metric = alternating
        return evaluate()

    grid._apps[NODES[0]] = app
    strategy = started(grid, Curves(metric=private(), min_available_nodes=5))
    assert strategy.releases[1].shares == 4
    reasons = "".join(grid.refusals("evaluate"))
    if difference == "another ledger":
        assert "one ledger" in reasons
    else:
        assert "Expected one spec" in reasons
    assert entries(tmp_path) == [0, 1, 1, 1, 1]
    assert len(elsewhere) == 0


def test_on_the_plain_path_a_reply_is_a_client_whatever_it_calls_itself(tmp_path: Path) -> None:
    def make(**options: Any) -> FederatedROC:
        return FederatedROC(quantiles=64, privacy=LocalDP(1.0), **options)

    clients = parties(tmp_path, make)
    for client in clients.values():
        client.folder = None
    curves = aggregate_fn(make())
    grid = LocalGrid({node: client.app for node, client in clients.items()})
    started(grid, FedAvg(evaluate_metrics_aggr_fn=curves, min_available_nodes=5))
    assert curves.releases[0].shares == 5
    assert curves.releases[0].round == ""  # neither names nor rounds are the sender's word


def test_a_share_of_an_earlier_round_is_not_summed_again(tmp_path: Path) -> None:
    clients = parties(tmp_path, lambda **options: FederatedROC(quantiles=64))
    records: dict[int, Any] = {}
    for node, client in clients.items():
        client.folder = None

        def replay(content: RecordDict, node: int = node) -> None:
            if node == NODES[0] and node in records:
                content["torchmetrics-fed"] = records[node]
            records.setdefault(node, content["torchmetrics-fed"])

        client.spoil = replay
    curves = aggregate_fn(FederatedROC(quantiles=64))
    grid = LocalGrid({node: client.app for node, client in clients.items()})
    strategy = FedAvg(evaluate_metrics_aggr_fn=curves, min_available_nodes=5)
    strategy.start(
        grid, ArrayRecord({"w": Array(torch.ones(1).numpy())}), num_rounds=2, timeout=1.0
    )
    assert [release.shares for release in curves.releases] == [5, 4]


@pytest.mark.parametrize("secure", [True, False], ids=["hidden", "the naive counterpart"])
def test_beside_hidden_counts_no_exact_numbers_leave(secure: bool, tmp_path: Path) -> None:
    """A loss and a number of examples are made from the same data as the counts that secure
    aggregation hides."""

    def make(**options: Any) -> FederatedROC:
        return FederatedROC(quantiles=64, secure=secure)

    clients = parties(tmp_path, make)
    grid = LocalGrid({node: client.app for node, client in clients.items()})
    assert started(grid, Curves(metric=make(), min_available_nodes=5)).releases[1].shares == 5
    replies = [dict(reply.content.metric_records["metrics"]) for reply in grid.replies("evaluate")]
    expected = [dict(client.metrics()) for client in clients.values()]
    if secure:
        expected = [{"num-examples": 1}] * 5
    assert sorted(map(str, replies)) == sorted(map(str, expected))
