"""README's table: this package beside torchmetrics exact, torchmetrics binned, and the mean of local AUROCs.

    python -m benchmarks.front_page

A million scores at ten clients, each with a shift of its own, in batches of 10,000; CPU time, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC

from torchmetrics_fed import DistributedDP, FederatedAUROC
from torchmetrics_fed.simulate import simulate

CLIENTS, BATCHES, SIZE = 10, 10, 10_000


def clients() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Clients whose models are shifted against each other."""
    generator = torch.Generator().manual_seed(0)
    for client in range(CLIENTS):
        targets = [(torch.rand(SIZE, generator=generator) < 0.3).long() for _ in range(BATCHES)]
        noise = [torch.randn(SIZE, generator=generator) for _ in targets]
        shift = 0.3 * (client - CLIENTS / 2)
        yield [((n + 1.5 * t + shift).sigmoid(), t) for n, t in zip(noise, targets, strict=True)]


def state_bytes(metric: Any) -> int:
    """What the metric keeps, and a sum over ranks or a gather has to move."""
    held = metric.metric_state.values()
    tensors = [
        tensor for state in held for tensor in (state if isinstance(state, list) else [state])
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measured(metric: Any, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, int, float]:
    """The area, the bytes of the state, and milliseconds of update and compute."""
    start = time.process_time()
    for preds, target in batches:
        metric.update(preds, target)
    area = float(metric.compute())
    return area, state_bytes(metric), 1e3 * (time.process_time() - start)


def private(data: list[list[tuple[Tensor, Tensor]]]) -> tuple[float, int, float]:
    """The same of a simulated federation with distributed noise."""
    metric = FederatedAUROC(privacy=DistributedDP(epsilon=1.0, min_clients=CLIENTS))
    start = time.process_time()
    area = float(FederatedAUROC.from_release(simulate(data, metric).release).compute())
    return area, state_bytes(metric), 1e3 * (time.process_time() - start)


def main() -> None:
    torch.set_num_threads(1)
    data = list(clients())
    pooled = [batch for client in data for batch in client]
    local = [measured(BinaryAUROC(), client) for client in data]
    for metric in (FederatedAUROC(), BinaryAUROC(thresholds=200)):  # first calls are slow
        measured(metric, pooled[:2])
    exact = measured(BinaryAUROC(), pooled)
    private(data)
    rows = {
        "torchmetrics, exact": exact,
        "torchmetrics, 200 thresholds": measured(BinaryAUROC(thresholds=200), pooled),
        "mean of local AUROCs": (
            sum(area for area, _, _ in local) / CLIENTS,
            4,
            sum(ms for _, _, ms in local),
        ),
        "this package": measured(FederatedAUROC(), pooled),
        "this package, epsilon 1": private(data),
    }
    print("| | AUROC error | state | ms |\n|---|---|---|---|")
    for name, (area, size, ms) in rows.items():
        print(f"| {name} | {abs(area - exact[0]):.1e} | {size:,} B | {ms:.0f} |")


if __name__ == "__main__":
    main()
