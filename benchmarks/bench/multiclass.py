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

__all__ = ["CASES", "CLASSES_SECTION", "class_case", "many_classes"]

CLASSES_SECTION = "Many classes"

# examples, classes
CASES = (1_024, 10), (256, 100), (32, 1_000), (256, 1_000), (100_000, 10)


def class_case(examples: int, classes: int) -> str:
    """Return the name of a case."""
    return f"{examples:,} x {classes:,}"


def many_classes(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time updates of a batch, and one compute."""
    for batch, classes in CASES:
        repeats = max(1, 400_000 // (batch * classes))
        preds = (3 * torch.randn(batch, classes)).softmax(1)
        target = torch.randint(0, classes, (batch,))
        ours, exact = FederatedROC("multiclass", num_classes=classes), MulticlassROC(classes)
        ours.update(preds, target)  # lays its state out, once after each reset

        candidates = {
            OURS: _updates(ours, preds, target, repeats),
            "exact": _updates(exact, preds, target, repeats, afresh=True),  # or it keeps everything
        }
        if batch * classes <= 40_000:  # or it takes gigabytes
            candidates["200"] = _updates(
                MulticlassROC(classes, thresholds=200), preds, target, repeats
            )
        times = interleaved(candidates, rounds)
        case = class_case(batch, classes)
        yield Figure(CLASSES_SECTION, case, "us", times.seconds(OURS) / repeats * 1e6)
        yield Figure(CLASSES_SECTION, case, "x torchmetrics exact", times.ratio(OURS, "exact"))
        if "200" in candidates:
            yield Figure(CLASSES_SECTION, case, "x torchmetrics 200", times.ratio(OURS, "200"))
        seconds = interleaved({"compute": ours.compute}, min(rounds, 15)).seconds("compute")
        yield Figure(CLASSES_SECTION, case, "compute ms", seconds * 1e3)


def _updates(
    metric: FederatedROC | MulticlassROC,
    preds: Tensor,
    target: Tensor,
    repeats: int,
    afresh: bool = False,
) -> Candidate:
    def run() -> None:
        if afresh:
            metric.reset()
        for _ in range(repeats):
            metric.update(preds, target)

    return run
