"""The example app's own ServerApp and ClientApp, on a grid in this process."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import ServerApp

from tests.integrations.flower_grid import RUN_ID, LocalGrid
from torchmetrics_fed import PrivacyLedger

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower_app"
CLIENTS = 3


def context(node: int, config: dict[str, Any]) -> Context:
    partition: dict[str, Any] = {"partition-id": node, "num-partitions": CLIENTS}
    return Context(RUN_ID, node, partition, RecordDict(), config)


def run(config: dict[str, Any]) -> None:
    app = importlib.import_module("flower_app.client_app").app

    def reply(message: Message, _: Context) -> Message:
        answer: Message = app(message, context(message.metadata.dst_node_id, config))
        return answer

    nodes: dict[int, Callable[[], Any]] = {node: lambda: reply for node in range(CLIENTS)}
    server: ServerApp = importlib.import_module("flower_app.server_app").app
    server(LocalGrid(nodes), context(CLIENTS, config))


@pytest.mark.slow
def test_a_run_after_the_budget_is_spent_still_saves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two runs of one federation: the second has no curves, says so, and loses nothing else."""
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    config = dict(project["tool"]["flwr"]["app"]["config"])
    config |= {"clients": CLIENTS, "num-server-rounds": 1, "batch-size": 250, "out": str(tmp_path)}
    config |= {"epsilon": 4.0, "budget": 4.0}
    model = tmp_path / "final_model.pt"
    summary = tmp_path / "flower_app.json"

    run(config)
    assert json.loads(summary.read_text())["curves"] == 1
    trained = torch.load(model)
    model.unlink()

    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    run(config)
    logger.removeHandler(caplog.handler)
    assert json.loads(summary.read_text()) == {"curves": 0}
    assert torch.load(model).keys() == trained.keys()
    assert "is left" in caplog.text
    for partition in range(CLIENTS):
        path = tmp_path / "home" / "torchmetrics-fed" / str(partition) / "ledger"
        assert PrivacyLedger(path=path).spent().epsilon == 4.0
