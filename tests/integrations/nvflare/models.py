"""Models of NVFlare as sites send them: parameters, and a metric's share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedAUROC, FederatedROC, PrivacyLedger

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel

from torchmetrics_fed.integrations.nvflare import attach

JOB = "6f1c"
TRUSTED = DistributedDP(epsilon=5.0, min_clients=3, trusted_aggregator=True)


def scores(site: int, size: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(site)
    target = (torch.rand(size, generator=generator) < 0.2 + 0.2 * site).long()
    logits = torch.randn(size, generator=generator) + 1.5 * target + site - 2
    return logits.sigmoid(), target


def ledger_of(folder: Path, site: int, budget: float | None = 20.0) -> PrivacyLedger:
    """The ledger of a site, as each of its processes opens it."""
    return PrivacyLedger(budget, folder / f"ledger of site {site}")


def counted(site: int, **options: Any) -> FederatedROC:
    metric = FederatedROC(**options)
    metric.update(*scores(site))
    return metric


def model(
    site: int,
    round: int = 0,
    metric: Any = None,
    steps: int | None = None,
    **fields: Any,
) -> FLModel:
    """What the server gets from a site."""
    meta: dict[str, Any] = {"client_name": f"site-{site}"}
    if steps is not None:
        meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = steps
    params = {"w": torch.tensor([1.0, float(site)])}
    result = FLModel(params=params, meta=meta, **fields)
    return attach(result, metric or counted(site), round=round, job=JOB)


def pooled(*sites: int, **options: Any) -> FederatedAUROC:
    metric = FederatedAUROC(**options)
    for site in sites:
        metric.update(*scores(site))
    return metric
