"""Time and memory of simulated federations of 1,000 to 1,000,000 clients.

    python -m benchmarks.simulate

One thread. Every client has 100 examples, which are made when the client is counted. Under privacy
it draws its own noise at epsilon 1, with the plan "single": 2,208 cells.
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


def plain(clients: int) -> FederatedROC:
    return FederatedROC()


def local(clients: int) -> FederatedROC:
    return FederatedROC(privacy=LocalDP(epsilon=1.0), plan="single")


def distributed(clients: int) -> FederatedROC:
    return FederatedROC(privacy=DistributedDP(1.0, min_clients=clients), plan="single")


PATHS: dict[str, Callable[[int], FederatedROC]] = {
    "plain": plain,
    "local": local,
    "distributed": distributed,
}


def batches(clients: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(clients):
        yield torch.rand(EXAMPLES), torch.randint(0, 2, (EXAMPLES,))


def megabytes() -> float:
    """Return the highest resident memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes
        return peak / 1e6
    return peak * 1024 / 1e6


def run(path: str, clients: int) -> None:
    """Simulate and print a line of the table."""
    torch.set_num_threads(1)
    simulate(batches(100), PATHS[path](100))  # imports, tables and allocators
    metric = PATHS[path](clients)
    before = megabytes()
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    result = simulate(batches(clients), metric)
    wall = time.perf_counter() - wall_start
    cpu = time.process_time() - cpu_start
    assert result.release.shares == clients
    assert path != "plain" or int(result.release.leaf.sum()) == clients * EXAMPLES
    times = f"{wall:.1f} | {cpu:.1f} | {cpu / clients * 1e6:.0f}"
    memory = f"{before:.0f} | {megabytes() - before:.1f}"
    print(f"| {path} | {clients:,} | {times} | {memory} |", flush=True)


def main() -> None:
    """Run every path in a process of its own."""
    print("| path | clients | s | CPU s | us a client | MB before | MB more |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for path in PATHS:
        for clients in CLIENTS:
            command = [sys.executable, "-m", "benchmarks.simulate", path, str(clients)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], int(sys.argv[2]))
    else:
        main()
