"""Many classes: updates of softmax scores, which crowd near 0, beside torchmetrics; and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassAUROC, MulticlassROC

from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedAUROC, FederatedROC

__all__ = [
    "CASES",
    "CLASSES_SECTION",
    "EPOCHS",
    "EPOCH_SECTION",
    "class_case",
    "many_classes",
    "whole_epochs",
]

EPOCH_SECTION = "Whole epochs of many classes"
CLASSES_SECTION = "Many classes"

EPOCHS = ((50_000, 10), (50_000, 100), (20_000, 1_000))
"""Examples, and classes, of an epoch."""
EPOCH_BATCH = 256
"""Examples in a batch of an epoch."""
EPOCH_ROUNDS = 5
"""Rounds of which the median is taken: an epoch takes seconds."""

CASES = ((1_024, 10), (256, 100), (32, 1_000), (256, 1_000), (100_000, 10))
"""Examples, and classes."""
MOST_BINNED = 40_000
"""Scores up to which torchmetrics' 200 thresholds are measured: more would take gigabytes."""


def class_case(examples: int, classes: int) -> str:
    """Return the name of a case."""
    return f"{examples:,} x {classes:,}"


def whole_epochs(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time a metric from its making to its value: updates in batches, and one compute."""
    for examples, classes in EPOCHS:
        target = torch.randint(0, classes, (examples,))
        logits = torch.randn(examples, classes)
        logits[torch.arange(examples), target] += 2
        batches = list(
            zip(logits.softmax(1).split(EPOCH_BATCH), target.split(EPOCH_BATCH), strict=True)
        )
        candidates: dict[str, Candidate] = {
            OURS: partial(
                _epoch, partial(FederatedAUROC, "multiclass", num_classes=classes), batches
            ),
            "exact": partial(_epoch, partial(MulticlassAUROC, num_classes=classes), batches),
        }
        times = interleaved(candidates, min(rounds, EPOCH_ROUNDS))
        case = class_case(examples, classes)
        yield Figure(EPOCH_SECTION, case, "ms", times.seconds(OURS) * 1e3)
        yield Figure(EPOCH_SECTION, case, "torchmetrics exact ms", times.seconds("exact") * 1e3)
        yield Figure(EPOCH_SECTION, case, "torchmetrics exact", times.ratio("exact", OURS))


def _epoch(
    make: Callable[[], FederatedAUROC | MulticlassAUROC], batches: list[tuple[Tensor, Tensor]]
) -> None:
    metric = make()
    for preds, target in batches:
        metric.update(preds, target)
    metric.compute()


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
        area = FederatedAUROC("multiclass", num_classes=classes)
        area.update(preds, target)
        computing: dict[str, Candidate] = {"compute": partial(_compute, area)}
        seconds = interleaved(computing, min(rounds, 15)).seconds("compute")
        yield Figure(CLASSES_SECTION, case, "compute ms", seconds * 1e3)


def _compute(metric: FederatedAUROC) -> None:
    metric._computed = None  # or torchmetrics would return the value of the time before
    metric.compute()


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
