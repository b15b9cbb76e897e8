"""CPU time of several candidates that take turns, so that load of the machine meets all alike."""

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

    def ratio(self, name: str, reference: str) -> float:
        """Return the median over rounds of one candidate's time divided by the reference's."""
        pairs = zip(self.rounds[name], self.rounds[reference], strict=True)
        return statistics.median(seconds / unit for seconds, unit in pairs)


def interleaved(candidates: dict[str, Candidate], rounds: int) -> Times:
    """Run every candidate once to warm up, then ``rounds`` times, without garbage collection."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    for number in range(rounds + 1):
        for name, candidate in candidates.items():
            start = time.process_time()
            candidate()
            elapsed = time.process_time() - start
            if number > 0:
                seconds[name].append(elapsed)
    gc.enable()
    return Times(seconds)
