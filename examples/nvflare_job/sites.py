"""The parts that all sites share: data, model, and the settings of the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger

SITES = ("site-1", "site-2", "site-3", "site-4")
FEATURES = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {
        "normalization": "sigmoid",
    },
    "secure": {
        "normalization": "sigmoid",
        "secure": True,
    },
    "distributed": {
        "normalization": "sigmoid",
        "privacy": DistributedDP(epsilon=1.0, min_clients=3),
    },
    "trusted": {
        "normalization": "sigmoid",
        "privacy": DistributedDP(epsilon=1.0, min_clients=3, trusted_aggregator=True),
    },
    "local": {
        "normalization": "sigmoid",
        "privacy": LocalDP(epsilon=1.0),
    },
}
"""The metric's settings, which server and sites agree on. One of four sites may drop out."""
BUDGET = 5.0
"""The epsilon that a site spends at most, however many rounds the server runs."""


def own_metric(site: str, setting: str, ledgers: str) -> FederatedROC:
    """Return a site's metric.

    A private metric has the site's own ledger, a file that outlives the job.
    """
    options = SETTINGS[setting]
    if "privacy" not in options:
        return FederatedROC(**options)
    ledger = PrivacyLedger(BUDGET, Path(ledgers, f"{site}.sqlite"))
    return FederatedROC(ledger=ledger, **options)


def data(site: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and targets of a site, for training and then for validation.

    Each site has a different mix of patients.
    """
    number = SITES.index(site)
    generator = torch.Generator().manual_seed(number)
    size = 600 + 200 * number
    direction = torch.ones(FEATURES) / FEATURES**0.5
    features = torch.randn(size, FEATURES, generator=generator) + (number - 1.5) * direction
    risk = 1.2 * features @ direction - 0.5
    target = (torch.rand(size, generator=generator) < risk.sigmoid()).long()
    half = size // 2
    return features[:half], target[:half], features[half:], target[half:]


class Model(torch.nn.Module):
    """Logistic regression."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same start everywhere
        self.layer = torch.nn.Linear(FEATURES, 1)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layer(features)
        return logits[:, 0]
