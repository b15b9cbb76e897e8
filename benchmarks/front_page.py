"""README's table: this package beside torchmetrics, exact and binned, and the mean of AUROCs.

    python -m benchmarks.front_page

A million scores at ten clients, each with a shift of its own, in batches of 10,000; CPU time, one
thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC

from torchmetrics_fed import DistributedDP, FederatedAUROC
from torchmetrics_fed.simulate import simulate

CLIENTS = 10
BATCHES = 10
BATCH_SIZE = 10_000

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


def main() -> None:
    torch.set_num_threads(1)
    data = list(clients())
    pooled = [batch for batches in data for batch in batches]
    # first calls are slow
    local = mean_of_local(data)
    measured(FederatedAUROC(), pooled[:2])
    measured(BinaryAUROC(thresholds=200), pooled[:2])
    exact = measured(BinaryAUROC(), pooled)
    private(data)
    rows = {
        "torchmetrics, exact": exact,
        "torchmetrics, 200 thresholds": measured(BinaryAUROC(thresholds=200), pooled),
        "mean of local AUROCs": local,
        "this package": measured(FederatedAUROC(), pooled),
        "this package, epsilon 1": private(data),
    }
    print("| | AUROC error | state | ms |\n|---|---|---|---|")
    for name, row in rows.items():
        error = abs(row.auroc - exact.auroc)
        print(f"| {name} | {error:.1e} | {row.state_bytes:,} B | {row.milliseconds:.0f} |")


if __name__ == "__main__":
    main()
