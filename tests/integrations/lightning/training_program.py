"""A Lightning program as a user writes it: update in the step, the curve at the epoch's end.

``python training_program.py FOLDER DEVICES`` trains for two epochs. Each rank leaves its curves in
FOLDER.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from torchmetrics_fed import FederatedROC

__all__ = ["EXAMPLES", "Classifier", "dataset", "run"]

EXAMPLES = 1_001  # odd, so that two ranks cannot share them evenly


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(EXAMPLES, 4, generator=generator)
    target = (features.sum(1) + torch.randn(EXAMPLES, generator=generator) > 0).long()
    return TensorDataset(features, target)


class Classifier(lightning.LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.layer = torch.nn.Linear(4, 1)
        self.roc = FederatedROC(normalization="sigmoid")

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, target = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self.layer(features)[:, 0], target.float()
        )

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        features, target = batch
        self.roc.update(self.layer(features)[:, 0], target)

    def on_validation_epoch_end(self) -> None:
        curve = self.roc.compute()
        self.log("auroc", torch.trapezoid(curve.tpr, curve.fpr).float())
        if not self.trainer.sanity_checking:
            record = {
                "curve": tuple(curve),
                "layer": self.layer.state_dict(),
                "local": int(self.roc.counts.sum()),
            }
            name = f"epoch{self.current_epoch}_rank{self.global_rank}.pt"
            torch.save(record, self.folder / name)
        self.roc.reset()

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(200)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return self._loader(64)

    def _loader(self, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
        # Each rank has examples of its own. The default sampler would repeat some, to make the
        # ranks even.
        rows = range(self.trainer.global_rank, EXAMPLES, self.trainer.world_size)
        return DataLoader(Subset(dataset(), rows), batch_size=batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def run(folder: Path, devices: int) -> lightning.Trainer:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    trainer.fit(Classifier(folder))
    return trainer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(Path(sys.argv[1]), int(sys.argv[2]))
