"""Contention: two processes that count on two cores, with torch's default threads, beside one.

One process and two processes take turns of a second. Threads that wait for each other spin, which
shows in CPU time; wall time also includes other work on the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.bench.binary import drawn
from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS, PEERS

__all__ = ["CONTENTION_SECTION", "contention"]

CONTENTION_SECTION = "Two processes on two cores, relative to one alone"
EXAMPLES = 1_000_000
TURN = 1.0
"""The length of a turn, in seconds."""


class Turn(NamedTuple):
    """Seconds of one run of a peer, as the mean of a turn."""

    wall: float
    cpu: float


class Worker:
    """A process that runs a peer when asked to."""

    def __init__(self, name: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", __spec__.name, name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.finish()

    def start(self) -> None:
        """Begin a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self) -> Turn:
        """Wait for the end of the turn and return its times."""
        assert self.process.stdout is not None
        wall, cpu = self.process.stdout.readline().split()
        return Turn(float(wall), float(cpu))

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def contention(rounds: int, quick: bool) -> Iterator[Figure]:
    """Let two workers run one at a time and both at once."""
    names = (OURS,) if quick else (OURS, "torchmetrics exact", "torchmetrics 200", "numpy")
    for name in names:
        first = Worker(name)
        second = Worker(name)
        wall_ratios = []
        cpu_ratios = []
        for _ in range(max(3, rounds // 3)):
            first.start()
            single = first.finish()
            first.start()
            second.start()
            turns = [first.finish(), second.finish()]
            wall_ratios.append(max(turn.wall for turn in turns) / single.wall)
            cpu_ratios.append(max(turn.cpu for turn in turns) / single.cpu)
        first.stop()
        second.stop()
        yield Figure(CONTENTION_SECTION, name, "CPU time", statistics.median(cpu_ratios))
        yield Figure(CONTENTION_SECTION, name, "wall time", statistics.median(wall_ratios))


def main() -> None:
    """Print, for every line of input, the mean wall and CPU time of a run in one turn."""
    run = PEERS[sys.argv[1]](drawn(EXAMPLES, EXAMPLES))
    run()
    print("0 0", flush=True)
    for _ in sys.stdin:
        runs = 0
        wall = time.perf_counter()
        cpu = time.process_time()
        while time.perf_counter() - wall < TURN:
            run()
            runs += 1
        print((time.perf_counter() - wall) / runs, (time.process_time() - cpu) / runs, flush=True)


if __name__ == "__main__":
    main()
