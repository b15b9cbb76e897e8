"""A Lightning program whose metrics have a confidence: scalars and figures of one validation.

``python figures_program.py FOLDER DEVICES``: each rank leaves its scalars in FOLDER.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed import (
    CentralDP,
    FederatedModelComparison,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

__all__ = ["EXAMPLES", "Evaluated", "Figures", "data", "validated"]

EXAMPLES = 400
CURVES = ["roc", "precision_recall_curve", "auroc", "average_precision"]


class Evaluated(lightning.LightningModule):
    """Has curves and areas in one collection, and a comparison, all with a confidence."""

    def __init__(self, private: bool) -> None:
        super().__init__()
        privacy = None
        if private:
            privacy = CentralDP(5.0)
        self.ledger = PrivacyLedger()
        self.curves = federated_collection(
            metrics=CURVES, confidence=0.9, privacy=privacy, ledger=self.ledger
        )
        self.comparison = FederatedModelComparison(privacy=privacy, ledger=self.ledger)

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        scores, target = batch
        self.curves.update(scores, target)
        self.comparison.update(scores, scores.square(), target)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(data(self.global_rank), batch_size=100)


class Figures(lightning.pytorch.loggers.logger.DummyLogger):
    """A logger that takes figures, as TensorBoard's does, or fails to."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.captions: dict[str, str] = {}

    @property
    def experiment(self) -> Any:
        return self

    def add_figure(self, name: str, figure: Any, step: int) -> None:
        if self.fails:
            raise OSError("the disk is full")
        (axes,) = figure.axes
        texts = [text.get_text() for text in axes.texts if text.get_gid() == "caption"]
        self.captions[name] = " ".join(texts)


def data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    logits = torch.randn(EXAMPLES, generator=generator) + target
    return TensorDataset(logits.sigmoid(), target)


def validated(
    folder: Path, module: lightning.LightningModule, *loggers: Any, devices: int = 1
) -> lightning.Trainer:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        logger=[CSVLogger(folder, name="csv", version=0), *loggers],
        callbacks=[FederatedEvaluation("curves"), FederatedEvaluation("comparison")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    trainer.validate(module, verbose=False)
    return trainer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    home = Path(sys.argv[1])
    model = Evaluated(private=True)
    figures = Figures()
    trainer = validated(home, model, figures, devices=int(sys.argv[2]))
    record = {
        "metrics": dict(trainer.callback_metrics),
        "releases": len(model.ledger),
        "captions": figures.captions,
    }
    torch.save(record, home / f"rank{model.global_rank}.pt")
