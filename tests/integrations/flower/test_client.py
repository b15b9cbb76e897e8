"""The client's record and its mod: which data leaves a node, and under which budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MetricCollection

pytest.importorskip("flwr")

from flwr.app import MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.integrations.flower.federation import (
    NODES,
    charged,
    clients,
    data,
    grid_of,
    pooled,
    private,
    roc,
    start,
    strategy_of,
    warnings,
)
from tests.integrations.flower_grid import Draws
from torchmetrics_fed import (
    DistributedDP,
    FederatedMetric,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.integrations.flower import RECORD, aggregate_fn, evaluation_mod, state_record


def test_the_mod_guards_plain_federations_too(folder: Path, log: pytest.LogCaptureFixture) -> None:
    def make(**options: Any) -> FederatedROC:
        return roc(privacy=LocalDP(epsilon=1.0), **options)

    grid = grid_of(charged(make, folder))
    curves = aggregate_fn(make())
    logged = start(FedAvg(evaluate_metrics_aggr_fn=curves), grid).evaluate_metrics_clientapp[1]
    records = [
        reply.content.metric_records["metrics"] for reply in grid.replies(MessageType.EVALUATE)
    ]
    assert [dict(record) for record in records] == [{"num-examples": 1}] * 5
    assert set(logged) == {"federated-auroc", "federated-average-precision"}
    assert "kept back loss" in warnings(log)
    assert "epsilon does not cover" not in warnings(log)


def test_a_collection_and_any_of_its_metrics_give_the_share_of_all() -> None:
    collection = federated_collection(metrics=("roc", "average_precision"), quantiles=64)
    collection.update(*data()[NODES[0]])
    for metric in (collection, *collection.values()):
        assert isinstance(metric, FederatedMetric | MetricCollection)
        content = RecordDict(
            {RECORD: state_record(metric), "metrics": MetricRecord({"num-examples": 1})}
        )
        curves = aggregate_fn(metric)
        curves([content], "num-examples")
        assert torch.equal(curves.releases[0].leaf, pooled(roc, {0: data()[NODES[0]]}).counts)


@pytest.mark.parametrize(
    "make", [lambda: roc(secure=True), lambda: roc(privacy=DistributedDP(1.0, 5))]
)
def test_without_the_mod_nothing_leaves_that_must_be_hidden(
    make: Callable[[], FederatedROC],
) -> None:
    metric = pooled(make, data())
    with pytest.raises(ReleaseError, match="Expected secure aggregation for this metric's shares"):
        state_record(metric)
    assert not len(metric.ledger)
    grid = grid_of(clients(make))
    curves = aggregate_fn(make())
    start(FedAvg(evaluate_metrics_aggr_fn=curves), grid)
    assert len(grid.refusals(MessageType.EVALUATE)) == 5
    assert not curves.releases


def test_no_share_is_on_the_wire(folder: Path) -> None:
    parties = charged(private(), folder)
    grid = grid_of(parties)
    strategy = strategy_of(private()())
    with Draws() as drawn:
        start(strategy, grid)
    masked = {
        reply.metadata.src_node_id: reply.content.config_records
        for reply in grid.replies("evaluate")
    }
    for (node, client), cells in zip(
        ((node, parties[node]) for node in masked), drawn, strict=False
    ):
        vector = cells.flatten()
        raw = pooled(roc, {0: (client.preds, client.target)}).counts
        for secret in (vector, vector.reshape(2, -1)[0], raw, raw[0, 0], raw[0, 1]):
            assert not any(secret.numpy().tobytes() in passed.data for passed in grid.passed)
        answer = masked[node][RECORD]["answer"]
        assert isinstance(answer, bytes)
        cells_on_wire = torch.frombuffer(
            bytearray(answer[-8 * vector.numel() :]), dtype=torch.int64
        )
        assert float((cells_on_wire == vector).double().mean()) < 0.01


def test_plain_shares_are_on_the_wire() -> None:
    """The power of the test above: it finds what is there."""
    grid = grid_of(clients(roc))
    start(FedAvg(evaluate_metrics_aggr_fn=aggregate_fn(roc())), grid)
    for reply in grid.replies(MessageType.EVALUATE):
        share = reply.content.config_records[RECORD]["share"]
        assert isinstance(share, bytes)
        assert any(share in passed.data for passed in grid.passed)


@pytest.mark.parametrize("publish", [(), ("loss",)])
def test_other_metrics_leave_only_if_published(publish: tuple[str, ...], folder: Path) -> None:
    grid = grid_of(charged(private(), folder, publish=publish))
    strategy = strategy_of(private()())
    result = start(strategy, grid)
    assert ("loss" in result.evaluate_metrics_clientapp[1]) == bool(publish)
    for reply in grid.replies("evaluate"):
        assert reply.content.metric_records["metrics"]["num-examples"] == 1
        assert set(reply.content.metric_records["metrics"]) == {"num-examples", *publish}


@pytest.mark.parametrize(
    "ledger", [{}, {"budget": 3.0}, {"path": "ledger"}], ids=["none", "no path", "no budget"]
)
def test_where_the_server_asks_a_private_metric_needs_a_budget_that_lasts(
    ledger: dict[str, Any], folder: Path
) -> None:
    if "path" in ledger:
        ledger = {"path": folder / "ledger"}
    metric = roc(privacy=LocalDP(epsilon=1.0), ledger=PrivacyLedger(**ledger))
    if "budget" in ledger:
        evaluation_mod(metric)  # it has a path for every node
    else:
        with pytest.raises(InputError, match="a budget and a path"):
            evaluation_mod(metric)
    metric.update(*data()[NODES[0]])
    with pytest.raises(InputError, match="a budget and a path"):
        state_record(metric)
    assert len(metric.ledger) == 0


def test_a_spent_budget_keeps_a_client_out(folder: Path) -> None:
    parties = charged(private(), folder)
    path = folder / f"ledger {NODES[0]}"
    parties[NODES[0]].metric = lambda: private()(ledger=PrivacyLedger(budget=1.0, path=path))
    grid = grid_of(parties)
    strategy = strategy_of(private()())
    start(strategy, grid)
    assert strategy.releases[1].shares == 4
    assert "1.0 is left" in grid.refusals("advertise")[0]


def test_only_our_metrics_are_taken() -> None:
    for call in (state_record, aggregate_fn, evaluation_mod):
        with pytest.raises(InputError, match="Expected a federated metric"):
            call(object())  # type: ignore[arg-type]
