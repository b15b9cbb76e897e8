"""Model, data, training and test, as in quickstart-pytorch, and the metric of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torchmetrics_fed import DistributedDP, FederatedMetric, FederatedROC, PrivacyLedger

Batch = dict[str, Tensor]
CLASSES = 10


def build(config: Mapping[str, Any]) -> FederatedROC:
    """Return the metric of both sides: exact with secure aggregation, or private with epsilon."""
    options: dict[str, Any] = {
        "task": "multiclass",
        "num_classes": CLASSES,
        "normalization": "softmax",
    }
    if config["epsilon"] == 0:
        return FederatedROC(**options, secure=True)
    privacy = DistributedDP(epsilon=config["epsilon"], min_clients=config["min-clients"])
    # without a path: the mod keeps the ledger in the folder of each node
    ledger = PrivacyLedger(budget=config["budget"])
    return FederatedROC(**options, privacy=privacy, plan=config["plan"], ledger=ledger)


class Net(nn.Module):
    """Model (simple CNN adapted from 'PyTorch: A 60 Minute Blitz')"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class Images(Dataset[Batch]):
    """The images of one client, synthetic because the example runs offline.

    The clients have different mixes of classes, and each has a camera whose tint looks like one of
    the classes. Averaged AUROCs do not see that.
    """

    def __init__(self, partition_id: int, examples: int, part: str) -> None:
        patterns = torch.randn(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(7))
        patterns = patterns.repeat_interleave(8, 2).repeat_interleave(8, 3)
        seed = 2 * partition_id
        if part == "test":
            seed += 1
        generator = torch.Generator().manual_seed(seed)
        frequency = 1.0 + (torch.arange(CLASSES) - partition_id) % CLASSES
        self.label = torch.multinomial(frequency, examples, True, generator=generator)
        noise = torch.randn(examples, 3, 32, 32, generator=generator)
        self.img = noise + 0.15 * patterns[self.label] + 0.15 * patterns[partition_id % CLASSES]

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> Batch:
        return {"img": self.img[index], "label": self.label[index]}


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """Load one client's data.

    With CIFAR-10, `num_partitions` would be the number of parts that it is cut into.
    """
    torch.set_num_threads(1)  # clients share this machine's cores
    trainloader = DataLoader(Images(partition_id, 1000, "train"), batch_size=batch_size)
    testloader = DataLoader(Images(partition_id, 2000, "test"), batch_size=batch_size)
    return trainloader, testloader


def train(
    net: Net, trainloader: DataLoader[Batch], epochs: int, lr: float, device: torch.device
) -> float:
    """Train the model on the training set."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(batch["img"].to(device)), batch["label"].to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test(
    net: Net, testloader: DataLoader[Batch], device: torch.device, *metrics: FederatedMetric
) -> tuple[float, float]:
    """Validate the model on the test set, and count its scores."""
    correct = 0.0
    loss = 0.0
    for batch in testloader:
        labels = batch["label"].to(device)
        outputs = net(batch["img"].to(device))
        loss += F.cross_entropy(outputs, labels).item()
        correct += (outputs.argmax(1) == labels).sum().item()
        for metric in metrics:
            metric.update(outputs, labels)
    examples = len(testloader.dataset)  # type: ignore[arg-type]
    return loss / len(testloader), correct / examples
