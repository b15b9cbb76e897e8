"""README's table: this package beside torchmetrics, exact and binned, and the mean of AUROCs.

    python -m benchmarks.front_page

A million scores at ten clients, each with a shift of its own, in batches of 10,000, and an epoch of
50,000 x 100 softmax scores in batches of 256. CPU time of all updates and one compute, one thread.
All take turns in every round; the table has medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC

from torchmetrics_fed import DistributedDP, FederatedAUROC
from torchmetrics_fed.simulate import simulate

ROUNDS = 7
"""Rounds in which every row takes its turn; the table has their medians."""

CLIENTS = 10
BATCHES = 10
BATCH_SIZE = 10_000

CLASSES = 100
EXAMPLES_OF_CLASSES = 50_000
BATCH_OF_CLASSES = 256

Batches = list[tuple[Tensor, Tensor]]
"""Scores and labels."""


class Row(NamedTuple):
    """One row of the table."""

    auroc: float
    state_bytes: int
    """Bytes of the metric's state, which a sum over ranks or a gather has to move."""
    milliseconds: float
    """CPU time of all updates and one compute."""


def clients() -> Iterator[Batches]:
    """Yield the batches of clients whose models are shifted against each other."""
    generator = torch.Generator().manual_seed(0)
    for client in range(CLIENTS):
        shift = 0.3 * (client - CLIENTS / 2)
        uniform = [torch.rand(BATCH_SIZE, generator=generator) for _ in range(BATCHES)]
        batches = []
        for draws in uniform:
            target = (draws < 0.3).long()
            noise = torch.randn(BATCH_SIZE, generator=generator)
            batches.append(((noise + 1.5 * target + shift).sigmoid(), target))
        yield batches


def softmax_batches() -> Batches:
    """Return an epoch of softmax scores whose largest is often that of the label."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(CLASSES, (EXAMPLES_OF_CLASSES,), generator=generator)
    logits = torch.randn(EXAMPLES_OF_CLASSES, CLASSES, generator=generator)
    logits[torch.arange(EXAMPLES_OF_CLASSES), target] += 2
    scores = logits.softmax(dim=1)
    return list(
        zip(scores.split(BATCH_OF_CLASSES), target.split(BATCH_OF_CLASSES), strict=True),
    )


def state_bytes(metric: Any) -> int:
    """Return the bytes of a metric's state."""
    size = 0
    for state in metric.metric_state.values():
        tensors = state if isinstance(state, list) else [state]
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return size


def measured(metric: Any, batches: Batches) -> Row:
    """Update a metric with all batches, and compute."""
    start = time.process_time()
    for preds, target in batches:
        metric.update(preds, target)
    auroc = float(metric.compute())
    return Row(auroc, state_bytes(metric), 1e3 * (time.process_time() - start))


def private(data: list[Batches]) -> Row:
    """Simulate a federation with distributed noise."""
    metric = FederatedAUROC(privacy=DistributedDP(epsilon=1.0, min_clients=CLIENTS))
    start = time.process_time()
    release = simulate(data, metric).release
    auroc = float(FederatedAUROC.from_release(release).compute())
    return Row(auroc, state_bytes(metric), 1e3 * (time.process_time() - start))


def mean_of_local(data: list[Batches]) -> Row:
    """Average the clients' AUROCs: one number of each client travels."""
    rows = [measured(BinaryAUROC(), batches) for batches in data]
    return Row(
        auroc=sum(row.auroc for row in rows) / CLIENTS,
        state_bytes=4,
        milliseconds=sum(row.milliseconds for row in rows),
    )


def binary_rows(data: list[Batches]) -> dict[str, Callable[[], Row]]:
    """Return how each row of a million binary scores is measured."""
    pooled = [batch for batches in data for batch in batches]
    return {
        "torchmetrics, exact": lambda: measured(BinaryAUROC(), pooled),
        "torchmetrics, 200 thresholds": lambda: measured(BinaryAUROC(thresholds=200), pooled),
        "mean of local AUROCs": lambda: mean_of_local(data),
        "this package": lambda: measured(FederatedAUROC(), pooled),
        "this package, epsilon 1": lambda: private(data),
    }


def multiclass_rows(batches: Batches) -> dict[str, Callable[[], Row]]:
    """Return how each row of 100 classes is measured."""
    return {
        "torchmetrics, exact": lambda: measured(MulticlassAUROC(CLASSES), batches),
        "torchmetrics, 200 thresholds": lambda: measured(
            MulticlassAUROC(CLASSES, thresholds=200), batches
        ),
        "this package": lambda: measured(
            FederatedAUROC("multiclass", num_classes=CLASSES, average="macro"), batches
        ),
    }


def in_turns(measurements: dict[str, Callable[[], Row]]) -> dict[str, list[Row]]:
    """Measure every row once a round, after one round that warms up."""
    rows: dict[str, list[Row]] = {name: [] for name in measurements}
    for measurement in measurements.values():
        measurement()
    for _ in range(ROUNDS):
        for name, measurement in measurements.items():
            rows[name].append(measurement())
    return rows


def main() -> None:
    torch.set_num_threads(1)
    binary = in_turns(binary_rows(list(clients())))
    multiclass = in_turns(multiclass_rows(softmax_batches()))
    exact = binary["torchmetrics, exact"][0].auroc
    print("| | ms | ms, 100 classes | AUROC error | state |\n|---|---|---|---|---|")
    for name, rows in binary.items():
        milliseconds = median(row.milliseconds for row in rows)
        of_classes = ""
        if name in multiclass:
            of_classes = f"{median(row.milliseconds for row in multiclass[name]):.0f}"
        error = median(abs(row.auroc - exact) for row in rows)
        size = f"{rows[0].state_bytes:,} B"
        print(f"| {name} | {milliseconds:.0f} | {of_classes} | {error:.1e} | {size} |")


if __name__ == "__main__":
    main()
