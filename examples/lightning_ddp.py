"""A Lightning Trainer with two processes, one hospital each: mean, federated and pooled AUROC.

    python examples/lightning_ddp.py [--out lightning_ddp.png]

`self.log(..., sync_dist=True)` averages a number over ranks. `FederatedEvaluation` sums histograms
instead, once per validation epoch, and logs the AUROC of all ranks' examples.
"""

# %%
from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import matplotlib as mpl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchmetrics_fed import federated_collection
from torchmetrics_fed.functional import auroc, auroc_from_curve, roc
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

EXAMPLES = 2_000
RANKS = 2
LINE_STYLES = ("-", ":")
"""Of the ranks' curves."""


# %% The ranks have different patients: the second hospital has the severe cases
def hospital(rank: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rank)
    features = torch.randn(EXAMPLES, 4, generator=generator) + 0.8 * rank
    risk = features.sum(1) + 2.0 * torch.randn(EXAMPLES, generator=generator)
    return TensorDataset(features, (risk > 1.5).long())


# %% The module updates its metrics in `validation_step`; the federated curve needs nothing else
class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.curves = federated_collection(
            metrics=["roc", "precision_recall_curve"], normalization="sigmoid"
        )
        # for the comparison only: a federation keeps no scores
        self.logits: list[Tensor] = []
        self.targets: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, target = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self.layer(features)[:, 0], target.float()
        )

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        features, target = batch
        logits = self.layer(features)[:, 0]
        self.curves.update(logits, target)
        self.logits.append(logits)
        self.targets.append(target)

    def on_validation_epoch_start(self) -> None:
        self.logits.clear()
        self.targets.clear()

    def on_validation_epoch_end(self) -> None:
        local = auroc(torch.cat(self.logits), torch.cat(self.targets), normalization="sigmoid")
        self.log("val_local_auroc", local, sync_dist=True)  # the usual way: a mean over ranks

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(hospital(self.trainer.global_rank), batch_size=200)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(hospital(self.trainer.global_rank), batch_size=500)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


# %% Two processes. Each loads its own patients, so the Trainer must not distribute them again
def main(out: Path) -> None:
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(0)
    evaluation = FederatedEvaluation("curves")
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=RANKS,
            strategy="ddp",
            max_epochs=2,
            callbacks=[evaluation],
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        model = Classifier()
        trainer.fit(model)
        logits = torch.as_tensor(model.all_gather(torch.cat(model.logits))).flatten()
        target = torch.as_tensor(model.all_gather(torch.cat(model.targets))).flatten()
        if trainer.is_global_zero:
            report(out, trainer, evaluation, logits=logits, target=target)


# %% The report of the first rank, and the figure
def report(
    out: Path,
    trainer: lightning.Trainer,
    evaluation: FederatedEvaluation,
    logits: Tensor,
    target: Tensor,
) -> None:
    pooled = roc(logits, target, normalization="sigmoid")
    federated = evaluation.curves["roc"]
    is_identical = all(map(torch.equal, federated, pooled))
    print(f"{len(logits)} patients on {trainer.world_size} ranks")
    print(f"mean of the ranks' AUROCs  {trainer.callback_metrics['val_local_auroc']:.4f}")
    print(f"federated AUROC            {trainer.callback_metrics['val_auroc']:.4f}")
    print(f"pooled AUROC               {auroc_from_curve(pooled):.4f}   identical {is_identical}")

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    ranks = zip(logits.chunk(RANKS), target.chunk(RANKS), LINE_STYLES, strict=True)
    for rank, (rank_logits, rank_target, style) in enumerate(ranks):
        curve = roc(rank_logits, rank_target, normalization="sigmoid")
        label = f"rank {rank} alone (AUROC {auroc_from_curve(curve):.4f})"
        ax.plot(curve.fpr, curve.tpr, color="0.5", linewidth=0.9, linestyle=style, label=label)
    ax.plot(pooled.fpr, pooled.tpr, color="0.75", linewidth=5, label="pooled")
    federated.plot(ax=ax, label="federated")
    fig.savefig(out, dpi=150)
    print(f"figure                     {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("lightning_ddp.png"))
    main(parser.parse_args().out)
