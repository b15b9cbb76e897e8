"""What enforcing `examples_per_person` costs: time beside the same update without ids, and memory per person.

OMP_NUM_THREADS=1 python -m benchmarks.persons
"""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import torch

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.counting.persons import Persons

MOST, PERSONS = 4, 1_000_000
SIZES = {32: 400, 1_024: 200, 100_000: 10, 1_000_000: 2}  # and how many such batches one pass has
REPEATS = 5


def seconds(size: int, batches: int, ids: Any) -> float:
    """The best time of an update, of passes over batches of their own, each beginning without any person."""
    preds, target, best = torch.rand(size), torch.randint(0, 2, (size,)), np.inf
    for _ in range(REPEATS):
        metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=MOST))
        begun = time.process_time()
        for number in range(batches):
            metric.update(preds, target, persons=None if ids is None else ids[number])
        best = min(best, (time.process_time() - begun) / batches)
    return best


def drawn(size: int, batches: int, each: int) -> np.ndarray[Any, Any]:
    """Ids in random order, of persons with ``each`` examples."""
    ids = np.random.default_rng(1).permutation(size * batches) // each
    return ids.reshape(batches, size)


def main() -> None:
    """Print both tables."""
    print("batch      without      int, 4 each   int, 16 each  str array     list of str   (times as long)")
    for size, batches in SIZES.items():
        plain = seconds(size, batches, None)
        four, many = drawn(size, batches, 4), drawn(size, batches, 16)
        texts = np.char.add("patient", four.astype(str))
        kinds = torch.from_numpy(four), torch.from_numpy(many), texts, texts.tolist()
        ratios = "".join(f"{seconds(size, batches, ids) / plain:<14.1f}" for ids in kinds)
        print(f"{size:<10,} {1e6 * plain:7.0f} us   {ratios}")
    tracemalloc.start()
    table, before = Persons(MOST), tracemalloc.get_traced_memory()[0]
    for start in range(0, PERSONS, 1_000):
        table.admit(np.arange(start, start + 1_000))
    now, peak = ((found - before) / PERSONS for found in tracemalloc.get_traced_memory())
    print(f"{PERSONS:,} persons: {now:.1f} bytes each, {peak:.1f} at the most while the table grew")


if __name__ == "__main__":
    main()
