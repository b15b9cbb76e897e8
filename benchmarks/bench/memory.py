"""Peak memory beyond the data's own, each peer in a process of its own.

python -m benchmarks.bench.memory "torchmetrics exact" 10000000
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
EXAMPLES, BATCH = 10_000_000, 1_000_000


def peak_memory(rounds: int, quick: bool) -> Iterator[Figure]:
    """Measure every peer that does not take minutes."""
    del rounds  # memory has no weather
    for name in (
        (OURS,) if quick else [name for name in PEERS if name not in (*SLOW, READ, *missing())]
    ):
        command = [sys.executable, "-m", __spec__.name, name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield Figure(MEMORY_SECTION, name, "MB", float(printed))


def resident() -> float:
    """The most memory that was resident so far, in MB. On Linux getrusage would tell the parent's, if that was more."""
    status = Path("/proc/self/status")
    if status.exists():
        return (
            next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
            / 2**10
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def main() -> None:
    """Print what one peer needs more than before it ran."""
    torch.set_num_threads(1)
    peer = PEERS[sys.argv[1]]
    peer(drawn(1_000, 1_000))()  # imports and allocators
    run = peer(drawn(EXAMPLES, BATCH))
    before = resident()
    run()
    print(resident() - before)


if __name__ == "__main__":
    main()
