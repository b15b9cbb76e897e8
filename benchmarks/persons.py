"""The cost of enforcing `examples_per_person`: time for each example, memory for each person.

    OMP_NUM_THREADS=1 python -m benchmarks.persons

Ids are integers or strings, in random order, with 4 examples of each person, of which 2 are
counted. The time is that of updates with ids less that of the same updates without.
"""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.counting.persons import Persons

COUNTED_PER_PERSON = 2
EXAMPLES_PER_PERSON = 4
PERSONS = 1_000_000
"""Persons whose memory is measured."""
BATCHES = {32: 400, 1_024: 200, 100_000: 10, 1_000_000: 2}
"""The number of batches of one pass, by the size of a batch."""
ROUNDS = 9


def run_updates(preds: Tensor, target: Tensor, ids: Any, batches: int) -> None:
    """Update a new metric with all batches."""
    metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=COUNTED_PER_PERSON))
    for number in range(batches):
        persons = None
        if ids is not None:
            persons = ids[number]
        metric.update(preds, target, persons=persons)


def random_ids(size: int, batches: int) -> NDArray[np.int64]:
    """Return ids in random order."""
    ids = np.random.default_rng(1).permutation(size * batches) // EXAMPLES_PER_PERSON
    return ids.reshape(batches, size)


def print_times(size: int, batches: int) -> None:
    """Print one row of the first table."""
    preds = torch.rand(size)
    target = torch.randint(0, 2, (size,))
    integers = random_ids(size, batches)
    texts = np.char.add("patient", integers.astype(str))
    kinds = {
        "without": None,
        "integers": torch.from_numpy(integers),
        "array of strings": texts,
        "list of strings": texts.tolist(),
    }
    candidates: dict[str, Candidate] = {
        name: partial(run_updates, preds, target, ids, batches) for name, ids in kinds.items()
    }
    times = interleaved(candidates, ROUNDS)
    without = times.seconds("without")
    row = f"{size:<10,}"
    for name in list(kinds)[1:]:
        microseconds = 1e6 * (times.seconds(name) - without) / (batches * size)
        row += f"{microseconds:<18.2f}"
    print(row, flush=True)


def print_memory(name: str, ids: NDArray[Any]) -> None:
    """Print the memory of a table of persons."""
    tracemalloc.start()
    table = Persons(COUNTED_PER_PERSON)
    before, _ = tracemalloc.get_traced_memory()
    for start in range(0, PERSONS, 1_000):
        table.admit(ids[start : start + 1_000])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{PERSONS:,} persons, {name}: {(after - before) / PERSONS:.0f} bytes each")


def main() -> None:
    """Print both tables."""
    print("microseconds for each example")
    print("batch     integers          array of strings  list of strings")
    for size, batches in BATCHES.items():
        print_times(size, batches)
    print_memory("integers", np.arange(PERSONS))
    print_memory("strings", np.char.add("patient", np.arange(PERSONS).astype(str)))


if __name__ == "__main__":
    main()
