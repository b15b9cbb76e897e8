"""Simulated federations of 1,000 to 100,000 clients with distributed noise: time and memory, each in a new process.

    python -m benchmarks.simulate

One thread. Every client has 100 examples, made as it is asked for, and its own draw of a share's noise at epsilon 1,
plan single: 8,736 cells.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC
from torchmetrics_fed.simulate import simulate

CLIENTS = (1_000, 10_000, 100_000)
EXAMPLES = 100


def batches(clients: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(clients):
        yield torch.rand(EXAMPLES), torch.randint(0, 2, (EXAMPLES,))


def megabytes() -> float:
    """The most that was ever resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def run(clients: int) -> None:
    """Simulate and print a line of the table."""
    torch.set_num_threads(1)
    template = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=100), plan="single")
    simulate(batches(100), template)  # imports, tables and allocators
    metric = FederatedROC(privacy=DistributedDP(epsilon=1.0, min_clients=clients), plan="single")
    before, wall, cpu = megabytes(), time.perf_counter(), time.process_time()
    result = simulate(batches(clients), metric)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert result.release.shares == clients
    each = cpu / clients * 1e6
    print(
        f"| {clients:,} | {wall:.1f} | {cpu:.1f} | {each:.0f} | {before:.0f} | {megabytes() - before:.1f} |", flush=True
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(int(sys.argv[1]))
    else:
        print("| clients | s | CPU s | us a client | MB before | MB more |\n|---|---|---|---|---|---|", flush=True)
        for number in CLIENTS:
            subprocess.run([sys.executable, "-m", "benchmarks.simulate", str(number)], check=True)
