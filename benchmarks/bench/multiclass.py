"""Many classes: updates of softmax scores, which crowd near 0, beside torchmetrics; and compute."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassROC

from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC

__all__ = ["CASES", "CLASSES_SECTION", "class_case", "many_classes"]

CLASSES_SECTION = "Many classes"

CASES = ((1_024, 10), (256, 100), (32, 1_000), (256, 1_000), (100_000, 10))
"""Examples, and classes."""
MOST_BINNED = 40_000
"""Scores up to which torchmetrics' 200 thresholds are measured: more would take gigabytes."""


def class_case(examples: int, classes: int) -> str:
    """Return the name of a case."""
    return f"{examples:,} x {classes:,}"


def many_classes(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time updates of a batch, and one compute."""
    for batch, classes in CASES:
        repeats = max(1, 400_000 // (batch * classes))
        preds = (3 * torch.randn(batch, classes)).softmax(1)
        target = torch.randint(0, classes, (batch,))
        ours = FederatedROC("multiclass", num_classes=classes)
        ours.update(preds, target)  # lays its state out, once after each reset
        exact = MulticlassROC(classes)
        candidates: dict[str, Candidate] = {
            OURS: partial(_update, ours, preds, target, repeats),
            # without a reset it would keep all scores
            "exact": partial(_reset_and_update, exact, preds, target, repeats),
        }
        if batch * classes <= MOST_BINNED:
            binned = MulticlassROC(classes, thresholds=200)
            candidates["200"] = partial(_update, binned, preds, target, repeats)
        times = interleaved(candidates, rounds)
        case = class_case(batch, classes)
        yield Figure(CLASSES_SECTION, case, "us", times.seconds(OURS) / repeats * 1e6)
        yield Figure(CLASSES_SECTION, case, "x torchmetrics exact", times.ratio(OURS, "exact"))
        if "200" in candidates:
            yield Figure(CLASSES_SECTION, case, "x torchmetrics 200", times.ratio(OURS, "200"))
        seconds = interleaved({"compute": ours.compute}, min(rounds, 15)).seconds("compute")
        yield Figure(CLASSES_SECTION, case, "compute ms", seconds * 1e3)


def _update(
    metric: FederatedROC | MulticlassROC, preds: Tensor, target: Tensor, repeats: int
) -> None:
    for _ in range(repeats):
        metric.update(preds, target)


def _reset_and_update(
    metric: FederatedROC | MulticlassROC, preds: Tensor, target: Tensor, repeats: int
) -> None:
    metric.reset()
    _update(metric, preds, target, repeats)
