"""Requests of a coordinator, and evaluations that a node replies with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from torchmetrics_fed import Coordinator, DistributedDP, FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.metrics import evaluation_of

VISIBLE: dict[str, Any] = {"quantiles": 64, "privacy": LocalDP(1.0)}
HIDDEN: dict[str, Any] = {"quantiles": 64, "privacy": DistributedDP(1.0, min_clients=3)}
SECURE: dict[str, Any] = {"quantiles": 64, "secure": True}


def counted(path: Path, options: dict[str, Any]) -> FederatedROC:
    """A metric with data, whose ledger is a file."""
    metric = FederatedROC(ledger=PrivacyLedger(9.0, path / "ledger"), **options)
    generator = torch.Generator().manual_seed(1)
    preds = torch.rand(500, generator=generator)
    target = torch.randint(0, 2, (500,), generator=generator)
    metric.update(preds, target)
    return metric


def evaluation(path: Path, options: dict[str, Any]) -> Evaluation:
    """The data of a metric, as it is handed to a node."""
    return evaluation_of(counted(path, options))


def request_for(options: dict[str, Any], round: str = "1", stage: Stage = Stage.SHARE) -> Request:
    """The first request of a round, in any stage."""
    coordinator = Coordinator(FederatedROC(**options), round=round)
    start = b""
    if coordinator.spec.hides_shares:
        start = coordinator.config.to_bytes()
    return Request(
        stage=stage,
        round=round,
        query=bytes(coordinator.query or b""),
        start=start,
        spec=coordinator.spec.canonical,
    )
