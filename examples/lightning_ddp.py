"""A Lightning Trainer with two processes, one hospital each: the mean of their AUROCs, and the federated and pooled.

    python examples/lightning_ddp.py [--out lightning_ddp.png]

`self.log(..., sync_dist=True)` averages a number over ranks. `FederatedEvaluation` sums histograms instead, once per
validation epoch, and logs the AUROC of all ranks' examples.
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


# %% Each rank's patients are of another kind: the second hospital has the severe cases
def hospital(rank: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rank)
    features = torch.randn(EXAMPLES, 4, generator=generator) + 0.8 * rank
    risk = features.sum(1) + 2.0 * torch.randn(EXAMPLES, generator=generator)
    return TensorDataset(features, (risk > 1.5).long())


# %% The module updates its metrics in `validation_step`; nothing else is needed for the federated curve
class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.curves = federated_collection(
            metrics=["roc", "precision_recall_curve"], normalization="sigmoid"
        )
        self.seen: list[
            tuple[Tensor, Tensor]
        ] = []  # only to compare with: a federation keeps no scores

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, target = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(
            self.layer(features)[:, 0], target.float()
        )

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        features, target = batch
        logits = self.layer(features)[:, 0]
        self.curves.update(logits, target)
        self.seen.append((logits, target))

    def on_validation_epoch_start(self) -> None:
        self.seen.clear()

    def on_validation_epoch_end(self) -> None:
        logits, target = (torch.cat(sides) for sides in zip(*self.seen, strict=True))
        mine = auroc(logits, target, normalization="sigmoid")
        self.log("val_local_auroc", mine, sync_dist=True)  # the usual way: a mean over ranks

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(hospital(self.trainer.global_rank), batch_size=200)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(hospital(self.trainer.global_rank), batch_size=500)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


# %% Two processes; each loads its own patients, so the Trainer must not deal them out again
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
        logits, target = (
            model.all_gather(torch.cat(sides)) for sides in zip(*model.seen, strict=True)
        )
        if trainer.is_global_zero:
            report(
                out,
                trainer,
                evaluation,
                torch.as_tensor(logits).flatten(),
                torch.as_tensor(target).flatten(),
            )


# %% What the first rank has to say, and the figure
def report(
    out: Path,
    trainer: lightning.Trainer,
    evaluation: FederatedEvaluation,
    logits: Tensor,
    target: Tensor,
) -> None:
    pooled = roc(logits, target, normalization="sigmoid")
    federated = evaluation.curves["roc"]
    same = all(torch.equal(one, other) for one, other in zip(federated, pooled, strict=True))
    print(f"{len(logits)} patients on {trainer.world_size} ranks")
    print(f"mean of the ranks' AUROCs  {trainer.callback_metrics['val_local_auroc']:.4f}")
    print(f"federated AUROC            {trainer.callback_metrics['val_auroc']:.4f}")
    print(f"pooled AUROC               {auroc_from_curve(pooled):.4f}   identical {same}")

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
    for rank, (some, labels) in enumerate(
        zip(logits.chunk(RANKS), target.chunk(RANKS), strict=True)
    ):
        curve = roc(some, labels, normalization="sigmoid")
        label, style = (
            f"rank {rank} alone (AUROC {auroc_from_curve(curve):.4f})",
            ("-", ":")[rank % 2],
        )
        ax.plot(curve.fpr, curve.tpr, color="0.5", linewidth=0.9, linestyle=style, label=label)
    ax.plot(pooled.fpr, pooled.tpr, color="0.75", linewidth=5, label="pooled")
    federated.plot(ax=ax, label="federated")
    fig.savefig(out, dpi=150)
    print(f"figure                     {out.resolve()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("lightning_ddp.png"))
    main(parser.parse_args().out)
