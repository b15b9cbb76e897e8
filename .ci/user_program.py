"""What a user would write, with types: run and checked with mypy --strict against the installed
wheel."""

import torch

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    PrivacyLedger,
    Release,
    evaluation_report,
    federated_collection,
)
from torchmetrics_fed.functional import ROCCurve, auroc_from_curve, youden
from torchmetrics_fed.simulate import simulate


def local_data(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.randint(0, 2, (size,))
    return (torch.randn(size) + 2 * target).sigmoid(), target


def federated() -> ROCCurve:
    metrics = [FederatedROC() for _ in range(3)]
    for metric in metrics:
        metric.update(*local_data(500))
    coordinator = Coordinator(FederatedROC(), round="1")
    while (query := coordinator.query) is not None:
        for number, metric in enumerate(metrics):
            payload: bytes = bytes(metric.share(round="1", query=query))
            coordinator.receive(f"client {number}", payload)
        coordinator.advance()
    total: Release = coordinator.release
    evaluation_report(total).save("report.html")  # its files are part of the wheel
    point = youden(total)
    assert 0 < float(point.threshold) < 1
    return FederatedROC.from_release(total).compute()


def private() -> torch.Tensor:
    ledger = PrivacyLedger(budget=1.0)
    metric = FederatedAUROC(privacy=DistributedDP(epsilon=1.0, min_clients=5), ledger=ledger)
    simulation = simulate([local_data(500) for _ in range(5)], metric)
    assert ledger.remaining == 0.0
    area: torch.Tensor = FederatedAUROC.from_release(simulation.release).compute()
    return area


def together() -> dict[str, object]:
    collection = federated_collection(metrics=["roc", "auroc"])
    collection.update(*local_data(500))
    answers: dict[str, object] = collection.compute()
    return answers


if __name__ == "__main__":
    fpr, tpr, thresholds = federated()
    assert len(fpr) == len(tpr) == len(thresholds) == 4097
    assert abs(float(auroc_from_curve(ROCCurve(fpr, tpr, thresholds))) - float(private())) < 0.1
    assert set(together()) == {"roc", "auroc"}
    print("the user's program ran")
