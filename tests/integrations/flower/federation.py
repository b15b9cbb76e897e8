"""A Flower federation in this process: five clients, a strategy, and the pooled metric."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, RecordDict
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
from torchmetrics_fed.integrations.flower import RECORD, FederatedEvaluationMixin

NODES = [2**63 + 7 * index for index in range(1, 6)]
Make = Callable[..., FederatedMetric]


class Curves(FederatedEvaluationMixin, FedAvg):
    """A strategy as a user writes it."""


def roc(**options: Any) -> FederatedROC:
    return FederatedROC(quantiles=64, **options)


def data(nodes: Sequence[int] = NODES, examples: int = 300) -> dict[int, tuple[Tensor, Tensor]]:
    """Scores and labels by node. No two nodes are calibrated alike."""
    generator = torch.Generator().manual_seed(3)
    batches = {}
    for index, node in enumerate(nodes):
        target = (torch.rand(examples + 10 * index, generator=generator) < 0.3).long()
        logits = torch.randn(len(target), generator=generator) + 1.5 * target + index - 2
        batches[node] = logits.sigmoid(), target
    return batches


def pooled(make: Make, batches: dict[int, tuple[Tensor, Tensor]]) -> FederatedMetric:
    """The metric of the pooled data."""
    metric = make()
    for preds, target in batches.values():
        metric.update(preds, target)
    return metric


def clients(make: Make, folder: Path | None = None, **options: Any) -> dict[int, Client]:
    parties = {}
    for node, (preds, target) in data().items():
        notes = None
        if folder is not None:
            notes = folder / str(node)
        parties[node] = Client(make, preds, target, folder=notes, **options)
    return parties


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
    messages = [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]
    return "\n".join(dict.fromkeys(text for text in messages if "torchmetrics-fed" in text))


def without_share(content: RecordDict) -> None:
    del content[RECORD]


def secure() -> FederatedROC:
    return roc(secure=True)


STAGES = ["advertise", "share_keys", "evaluate", "unmask"]


def private(**options: Any) -> Callable[..., FederatedROC]:
    privacy = DistributedDP(epsilon=2.0, min_clients=4)
    return partial(roc, privacy=privacy, **options)


def charged_metric(make: Make, path: Path) -> FederatedMetric:
    """The metric, with a ledger that is opened again."""
    return make(ledger=PrivacyLedger(budget=99.0, path=path))


def charged(make: Make, folder: Path, **options: Any) -> dict[int, Client]:
    """Clients that have a ledger file each."""
    parties = clients(make, folder, **options)
    for node, client in parties.items():
        client.folder = folder / f"notes {node}"
        client.metric = partial(charged_metric, make, folder / f"ledger {node}")
    return parties


def ledgers(folder: Path) -> list[PrivacyLedger]:
    return [PrivacyLedger(path=folder / f"ledger {node}") for node in NODES]


def trusted(**options: Any) -> Callable[..., FederatedROC]:
    privacy = DistributedDP(epsilon=2.0, min_clients=4, trusted_aggregator=True)
    return partial(roc, privacy=privacy, **options)
