"""CPU time of several candidates, one after the other in every round, so that all see the same weather."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

__all__ = ["Candidate", "Times", "interleaved"]

Candidate = Callable[[], object]


class Times:
    """Seconds of each candidate in each round."""

    def __init__(self, rounds: dict[str, list[float]]) -> None:
        self.rounds = rounds

    def seconds(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, beside: str) -> float:
        """Return the median over rounds of the time of one in times of another's."""
        return statistics.median(
            a / b for a, b in zip(self.rounds[name], self.rounds[beside], strict=True)
        )


def interleaved(candidates: dict[str, Candidate], rounds: int) -> Times:
    """Run every candidate once to warm up, then ``rounds`` times, while the garbage collector waits."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    for number in range(rounds + 1):
        for name, candidate in candidates.items():
            start = time.process_time()
            candidate()
            taken = time.process_time() - start
            if number:
                seconds[name].append(taken)
    gc.enable()
    return Times(seconds)
