"""Simulated federations of 1,000 to 1,000,000 clients, plain, local and distributed: time and memory of each.

    python -m benchmarks.simulate

One thread. Every client has 100 examples, made as it is asked for. Under privacy it draws its own noise at epsilon 1,
plan single: 2,208 cells.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP
from torchmetrics_fed.simulate import simulate

CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
EXAMPLES = 100
PATHS: dict[str, Callable[[int], FederatedROC]] = {
    "plain": lambda clients: FederatedROC(),
    "local": lambda clients: FederatedROC(privacy=LocalDP(epsilon=1.0), plan="single"),
    "distributed": lambda clients: FederatedROC(
        privacy=DistributedDP(1.0, min_clients=clients), plan="single"
    ),
}


def batches(clients: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(clients):
        yield torch.rand(EXAMPLES), torch.randint(0, 2, (EXAMPLES,))


def megabytes() -> float:
    """The most that was ever resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def run(path: str, clients: int) -> None:
    """Simulate and print a line of the table."""
    torch.set_num_threads(1)
    simulate(batches(100), PATHS[path](100))  # imports, tables and allocators
    metric = PATHS[path](clients)
    before, wall, cpu = megabytes(), time.perf_counter(), time.process_time()
    result = simulate(batches(clients), metric)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert result.release.shares == clients
    assert path != "plain" or int(result.release.leaf.sum()) == clients * EXAMPLES
    figures = f"{wall:.1f} | {cpu:.1f} | {cpu / clients * 1e6:.0f} | {before:.0f} | {megabytes() - before:.1f}"
    print(f"| {path} | {clients:,} | {figures} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]))
    else:
        print(
            "| path | clients | s | CPU s | us a client | MB before | MB more |\n|---|---|---|---|---|---|---|",
            flush=True,
        )
        for name in PATHS:
            for number in CLIENTS:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.simulate", name, str(number)], check=True
                )
