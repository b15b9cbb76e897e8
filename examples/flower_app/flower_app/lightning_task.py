"""The same with Lightning: the callback counts, and leaves the release to the federation."""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn

from flower_app.task import Model, loader
from torchmetrics_fed import FederatedROC
from torchmetrics_fed.integrations.lightning import FederatedEvaluation


class Module(lightning.LightningModule):
    """A model with its metric."""

    def __init__(self, model: Model, roc: FederatedROC | None = None) -> None:
        super().__init__()
        self.model = model
        self.roc = roc

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, sick = batch
        return nn.functional.binary_cross_entropy(self.model(x), sick.float())

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        x, sick = batch
        assert self.roc is not None
        self.roc.update(self.model(x), sick)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def train(model: Model, hospital: int) -> None:
    """Train for one epoch."""
    trainer().fit(Module(model), loader(hospital, "train"))


def evaluate(model: Model, hospital: int, roc: FederatedROC) -> None:
    """Count the hospital's test patients."""
    trainer(FederatedEvaluation("roc", federated=True)).validate(
        Module(model, roc), loader(hospital, "test"), verbose=False
    )


def trainer(*callbacks: lightning.Callback) -> lightning.Trainer:
    """Return a trainer for one quiet epoch."""
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
