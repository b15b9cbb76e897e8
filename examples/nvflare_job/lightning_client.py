"""The Lightning client: a callback sends the share with the model."""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import nvflare.client.lightning as flare
import torch
from sites import SETTINGS, Model, data, own_metric
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed.integrations.nvflare.lightning import FlareEvaluation

parser = argparse.ArgumentParser()
parser.add_argument("--privacy", choices=SETTINGS, default="none")
parser.add_argument("--ledgers", default=".", help="folder of the site's ledger")
parser.add_argument(
    "--scores", default="", help="folder to save this site's scores in: for the comparison only"
)
arguments = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Model().layer
        self.roc = own_metric(site, arguments.privacy, arguments.ledgers)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, target = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self.layer(features)[:, 0], target.float()
        )

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        features, target = batch
        logits = self.layer(features)[:, 0]
        self.roc.update(logits, target)
        if arguments.scores and self.trainer.state.fn == "validate":
            validated_logits.append(logits)
            validated_targets.append(target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    callbacks=[FlareEvaluation("roc")],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
flare.patch(trainer)
site = flare.get_site_name()
train_features, train_target, test_features, test_target = data(site)
training_set = TensorDataset(train_features, train_target)
validation_set = TensorDataset(test_features, test_target)
training: DataLoader[Any] = DataLoader(training_set, batch_size=64)
validation: DataLoader[Any] = DataLoader(validation_set, batch_size=64)
module = Classifier()
validated_logits: list[Tensor] = []
validated_targets: list[Tensor] = []
number = 0

while flare.is_running():
    trainer.validate(module, validation, verbose=False)  # of the received model
    if validated_logits:
        scores = (torch.cat(validated_logits), torch.cat(validated_targets))
        torch.save(scores, f"{arguments.scores}/{site}-{number}.pt")
        validated_logits.clear()
        validated_targets.clear()
    trainer.fit(module, training, validation)
    number += 1
