"""Peak memory beyond the data, each peer in a process of its own.

python -m benchmarks.bench.memory "torchmetrics exact"
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.bench.binary import drawn
from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS, PEERS, READ, SLOW, missing

__all__ = ["MEMORY_SECTION", "peak_memory"]

MEMORY_SECTION = "Peak memory"
EXAMPLES = 10_000_000
BATCH = 1_000_000


def peak_memory(rounds: int, quick: bool) -> Iterator[Figure]:
    """Measure every peer that does not take minutes."""
    del rounds  # one run is enough: memory does not vary
    names = [OURS]
    if not quick:
        omitted = {*SLOW, READ, *missing()}
        names = [name for name in PEERS if name not in omitted]
    for name in names:
        command = [sys.executable, "-m", __spec__.name, name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield Figure(MEMORY_SECTION, name, "MB", float(output))


def resident() -> float:
    """Return the highest resident memory of this process so far, in MB.

    On Linux, getrusage would return the parent's if that was higher.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes
        return peak / 2**20
    return peak / 2**10


def main() -> None:
    """Print the growth of memory while one peer runs."""
    torch.set_num_threads(1)
    peer = PEERS[sys.argv[1]]
    peer(drawn(1_000, 1_000))()  # imports and allocators
    run = peer(drawn(EXAMPLES, BATCH))
    before = resident()
    run()
    print(resident() - before)


if __name__ == "__main__":
    main()
