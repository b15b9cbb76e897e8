"""Many classes: updates of softmax scores, which crowd near 0, beside torchmetrics; and compute."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassROC

from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC

__all__ = ["CLASSES_SECTION", "many_classes"]

CLASSES_SECTION = "Many classes: an update of 32 examples, and compute"


def many_classes(rounds: int, quick: bool, batch: int = 32, repeats: int = 20) -> Iterator[Figure]:
    """Time updates of a batch, and one compute."""
    for classes in (1_000,) if quick else (10, 100, 1_000):
        preds = (3 * torch.randn(batch, classes)).softmax(1)
        target = torch.randint(0, classes, (batch,))
        ours, exact = FederatedROC("multiclass", num_classes=classes), MulticlassROC(classes)
        binned = MulticlassROC(classes, thresholds=200)
        ours.update(preds, target)  # lays its state out, once after each reset

        candidates = {
            OURS: _updates(ours, preds, target, repeats),
            "exact": _updates(exact, preds, target, repeats, afresh=True),  # or it keeps everything
            "200": _updates(binned, preds, target, repeats),
        }
        times = interleaved(candidates, rounds)
        case = f"{classes:,} classes"
        yield Figure(CLASSES_SECTION, case, "us", times.seconds(OURS) / repeats * 1e6)
        yield Figure(CLASSES_SECTION, case, "x torchmetrics exact", times.ratio(OURS, "exact"))
        yield Figure(CLASSES_SECTION, case, "x torchmetrics 200", times.ratio(OURS, "200"))
        seconds = interleaved({"compute": ours.compute}, min(rounds, 15)).seconds("compute")
        yield Figure(CLASSES_SECTION, case, "compute ms", seconds * 1e3)


def _updates(
    metric: FederatedROC | MulticlassROC, preds: Tensor, target: Tensor, repeats: int, afresh: bool = False
) -> Candidate:
    def run() -> None:
        if afresh:
            metric.reset()
        for _ in range(repeats):
            metric.update(preds, target)

    return run
