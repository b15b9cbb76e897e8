"""The Lightning client: a callback does what the plain one does by hand."""

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
            seen.append((logits, target))

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
features, target, unseen, truth = data(site)
training: DataLoader[Any] = DataLoader(TensorDataset(features, target), batch_size=64)
validation: DataLoader[Any] = DataLoader(TensorDataset(unseen, truth), batch_size=64)
module = Classifier()
seen: list[tuple[Tensor, Tensor]] = []
number = 0

while flare.is_running():
    trainer.validate(module, validation, verbose=False)  # the model that was received
    if seen:
        logits, truths = zip(*seen, strict=True)
        torch.save((torch.cat(logits), torch.cat(truths)), f"{arguments.scores}/{site}-{number}.pt")
        seen.clear()
    trainer.fit(module, training, validation)
    number += 1
