"""Training and test with Lightning: the callback leaves the release to the federation."""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from flower_app.task import Batch, Net
from torchmetrics_fed import FederatedMetric
from torchmetrics_fed.integrations.lightning import FederatedEvaluation


class Module(lightning.LightningModule):
    """A model with its metric."""

    def __init__(self, net: Net, lr: float = 0.0, **metrics: FederatedMetric) -> None:
        super().__init__()
        self.net = net
        self.lr = lr
        self.metrics = metrics
        self.metric = metrics.get("metric")
        self.losses = 0.0
        self.correct = 0

    def training_step(self, batch: Batch, _: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch["img"]), batch["label"])
        self.losses += loss.item()
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        outputs = self.net(batch["img"])
        self.losses += F.cross_entropy(outputs, batch["label"]).item()
        self.correct += int((outputs.argmax(1) == batch["label"]).sum())
        for metric in self.metrics.values():
            metric.update(outputs, batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def train(
    net: Net, trainloader: DataLoader[Batch], epochs: int, lr: float, device: torch.device
) -> float:
    """Train the model on the training set."""
    module = Module(net, lr)
    quiet(max_epochs=epochs).fit(module, trainloader)
    return module.losses / (epochs * len(trainloader))


def test(
    net: Net,
    testloader: DataLoader[Batch],
    device: torch.device,
    metric: FederatedMetric,
    local: FederatedMetric,
) -> tuple[float, float]:
    """Validate the model on the test set, and count its scores."""
    module = Module(net, metric=metric, local=local)
    trainer = quiet(callbacks=[FederatedEvaluation("metric", federated=True)])
    trainer.validate(module, testloader, verbose=False)
    examples = len(testloader.dataset)  # type: ignore[arg-type]
    return module.losses / len(testloader), module.correct / examples


def quiet(**options: object) -> lightning.Trainer:
    """Return a trainer that prints nothing."""
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,  # type: ignore[arg-type]
    )
