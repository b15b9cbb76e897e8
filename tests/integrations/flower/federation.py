"""A Flower federation in this process: five clients with data, a strategy, and the pooled metric."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg, Result

from tests.integrations.flower_grid import Client, LocalGrid
from torchmetrics_fed import (
    DistributedDP,
    FederatedAUROC,
    FederatedMetric,
    FederatedROC,
    PrivacyLedger,
    Release,
)
from torchmetrics_fed.integrations.flower import (
    RECORD,
    FederatedEvaluationMixin,
)

NODES = [2**63 + 7 * index for index in range(1, 6)]


Make = Callable[..., FederatedMetric]


class Curves(FederatedEvaluationMixin, FedAvg):
    """What a user writes."""


def roc(**options: Any) -> FederatedROC:
    return FederatedROC(quantiles=64, **options)


def data(nodes: Sequence[int] = NODES, examples: int = 300) -> dict[int, tuple[Tensor, Tensor]]:
    """Scores and labels per node, no two nodes calibrated alike."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for index, node in enumerate(nodes):
        target = (torch.rand(examples + 10 * index, generator=generator) < 0.3).long()
        logits = torch.randn(len(target), generator=generator) + 1.5 * target + index - 2
        found[node] = logits.sigmoid(), target
    return found


def pooled(make: Make, found: dict[int, tuple[Tensor, Tensor]]) -> FederatedMetric:
    """The metric of all the data in one place."""
    metric = make()
    for preds, target in found.values():
        metric.update(preds, target)
    return metric


def clients(make: Make, folder: Path | None = None, **options: Any) -> dict[int, Client]:
    return {
        node: Client(make, *drawn, folder=folder and folder / str(node), **options)
        for node, drawn in data().items()
    }


def grid_of(parties: dict[int, Client]) -> LocalGrid:
    return LocalGrid({node: client.app for node, client in parties.items()})


def start(strategy: FedAvg, grid: LocalGrid, rounds: int = 1) -> Result:
    arrays = ArrayRecord({"weight": Array(torch.ones(3).numpy())})
    return strategy.start(grid, arrays, num_rounds=rounds, timeout=1.0)


def strategy_of(metric: FederatedMetric, kind: type[FedAvg] = Curves, **options: Any) -> Any:
    return kind(metric=metric, min_available_nodes=len(NODES), **options)  # type: ignore[call-arg]


def auroc(release: Release) -> float:
    return float(FederatedAUROC.from_release(release).compute())


def warnings(log: pytest.LogCaptureFixture) -> str:
    ours = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    return "\n".join(dict.fromkeys(text for text in ours if "torchmetrics-fed" in text))


def without_share(content: RecordDict) -> None:
    del content[RECORD]


def secure() -> FederatedROC:
    return roc(secure=True)


STAGES = ["advertise", "share_keys", "evaluate", "unmask"]


def private(**options: Any) -> Callable[..., FederatedROC]:
    return lambda **more: roc(privacy=DistributedDP(epsilon=2.0, min_clients=4), **options, **more)


def charged(make: Make, folder: Path, **options: Any) -> dict[int, Client]:
    """Clients whose ledgers are files of their own."""
    parties = clients(make, folder, **options)
    for node, client in parties.items():
        client.folder = folder / f"notes {node}"
        path = folder / f"ledger {node}"
        client.metric = lambda path=path: make(ledger=PrivacyLedger(budget=99.0, path=path))  # type: ignore[misc]
    return parties


def ledgers(folder: Path) -> list[PrivacyLedger]:
    return [PrivacyLedger(path=folder / f"ledger {node}") for node in NODES]


def trusted(**options: Any) -> Callable[..., FederatedROC]:
    privacy = DistributedDP(epsilon=2.0, min_clients=4, trusted_aggregator=True)
    return lambda **more: roc(privacy=privacy, **options, **more)
