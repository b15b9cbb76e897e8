"""Contention: two processes that count on two cores, each with torch's default threads, beside one alone.

One alone and two at once take turns of a second. Threads that wait for each other spin, which shows in CPU time; wall
time also holds what strangers on the machine take.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.bench.binary import drawn
from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS, PEERS

__all__ = ["CONTENTION_SECTION", "contention"]

CONTENTION_SECTION = "Two processes on two cores, relative to one alone"
EXAMPLES, SECONDS = 1_000_000, 1.0


class Worker:
    """A process that runs a peer when asked to."""

    def __init__(self, name: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        command = [sys.executable, "-m", __spec__.name, name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.answer()

    def start(self) -> None:
        """Begin a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[float, float]:
        """Wait for the end of the turn and return wall and CPU seconds of a run in it."""
        assert self.process.stdout is not None
        wall, cpu = self.process.stdout.readline().split()
        return float(wall), float(cpu)

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def contention(rounds: int, quick: bool) -> Iterator[Figure]:
    """Let two workers run one at a time and both at once."""
    for name in (OURS,) if quick else (OURS, "torchmetrics exact", "torchmetrics 200", "numpy"):
        workers = [Worker(name), Worker(name)]
        ratios = []
        for _ in range(max(3, rounds // 3)):
            workers[0].start()
            alone = workers[0].answer()
            for worker in workers:
                worker.start()
            both = [worker.answer() for worker in workers]
            ratios.append(
                [
                    max(times) / one
                    for times, one in zip(zip(*both, strict=True), alone, strict=True)
                ]
            )
        for worker in workers:
            worker.stop()
        for kind, values in zip(
            ("CPU time", "wall time"), list(zip(*ratios, strict=True))[::-1], strict=True
        ):
            yield Figure(CONTENTION_SECTION, name, kind, statistics.median(values))


def main() -> None:
    """Answer every line of input with the mean wall and CPU time of a run, of as many as a turn holds."""
    run = PEERS[sys.argv[1]](drawn(EXAMPLES, EXAMPLES))
    run()
    print("0 0", flush=True)
    for _ in sys.stdin:
        runs, wall, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < SECONDS:
            run()
            runs += 1
        print((time.perf_counter() - wall) / runs, (time.process_time() - cpu) / runs, flush=True)


if __name__ == "__main__":
    main()
