"""What both sides know: the model, the metric, and for this demonstration how each hospital's patients are made."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger

FEATURES = 6


def patients(hospital: int, part: str = "test") -> tuple[Tensor, Tensor]:
    """Return one hospital's patients. Hospitals see different people: that is what averaged AUROCs get wrong."""
    generator = torch.Generator().manual_seed(2 * hospital + (part == "test"))
    sick = torch.rand(2000 + 500 * hospital, generator=generator) < 0.05 + 0.09 * hospital
    x = torch.randn(len(sick), FEATURES, generator=generator)
    x[:, 0] += 0.9 * sick
    x[:, 1] += 0.4 * hospital + 0.3 * sick
    return x, sick.long()


def metric(config: Any, ledger: PrivacyLedger | None = None) -> FederatedROC:
    """Return the metric of both sides: exact, in secure aggregation, or private if there is an epsilon."""
    if config["epsilon"] == 0:
        return FederatedROC(secure=True)
    privacy = DistributedDP(epsilon=config["epsilon"], min_clients=config["min-clients"])
    return FederatedROC(privacy=privacy, plan=config["plan"], ledger=ledger)


class Model(nn.Module):
    """A logistic regression."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.linear(x).squeeze(-1).sigmoid()
        return scores


def loader(hospital: int, part: str) -> DataLoader[tuple[Tensor, ...]]:
    """Return one hospital's patients in batches, always the same ones."""
    return DataLoader(TensorDataset(*patients(hospital, part)), batch_size=500)


def train(model: Model, hospital: int) -> None:
    """Train for one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, sick in loader(hospital, "train"):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(model(x), sick.float()).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model: Model, hospital: int, roc: FederatedROC) -> None:
    """Count the hospital's test patients."""
    for x, sick in loader(hospital, "test"):
        roc.update(model(x), sick)


def loaded(arrays: ArrayRecord) -> Model:
    """Return the global model."""
    torch.set_num_threads(1)
    model = Model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model
