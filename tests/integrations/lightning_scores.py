"""A module whose batches are scores and labels, so that its logs are known, and a quiet Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed.functional import auroc

__all__ = ["QUIET", "Scorer", "area", "loader", "scores", "trainer"]

QUIET = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]


class Scorer(lightning.LightningModule):
    """Updates ``metrics`` with the batch as it is; if it is a list, the metric of the dataloader.

    Args:
        metrics: a metric, a collection, or a list with one for each dataloader.
        attributes: more metrics, each by the name of its attribute.
    """

    def __init__(self, metrics: Any, **attributes: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.metrics = metrics
        for name, metric in attributes.items():
            setattr(self, name, metric)
        self.attributes = ["metrics", *attributes]

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.layer(batch[0][:1, None]).mean()
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        for name in self.attributes:
            metric: Any = getattr(self, name)
            if isinstance(metric, list | torch.nn.ModuleList):
                metric = metric[dataloader_idx]
            metric.update(*batch)

    def test_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def scores(seed: int, size: int = 200) -> tuple[Tensor, Tensor]:
    """Return scores of a fair classifier and their labels, different for each seed."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (size,), generator=generator)
    return (torch.randn(size, generator=generator) + target).sigmoid(), target


def area(*seeds: int) -> float:
    """Return the AUROC of the scores of all seeds together, as it is logged."""
    batches = [scores(seed) for seed in seeds]
    preds = torch.cat([preds for preds, _ in batches])
    target = torch.cat([target for _, target in batches])
    return float(auroc(preds, target).float())


def loader(seed: int, size: int = 200) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*scores(seed, size)), batch_size=50)


def trainer(folder: Path, *callbacks: lightning.Callback, **options: Any) -> lightning.Trainer:
    settings: dict[str, Any] = {"max_epochs": 2, "logger": False, **options}
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )
