"""The cost of enforcing `examples_per_person`: time beside updates without ids, memory per person.

    OMP_NUM_THREADS=1 python -m benchmarks.persons

Integer ids from 0 on, in random order, with 1, 4 or 16 examples of each person, of which 4 are
counted. The other kinds have 4 examples of each person: integers far apart, which have to be looked
up by a hash, and strings, in an array and in a list. In brackets stands the unavoidable work in the
same numpy. For integers it is one look-up of 16 bytes and one count that is added and read back,
for hashes that exist already; for strings in an array also their letters in bytes; for a list also
its array.
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
from torchmetrics_fed.counting.numbering import CHUNK
from torchmetrics_fed.counting.persons import Persons

EXAMPLES_PER_PERSON = 4
PERSONS = 1_000_000
"""Persons whose memory is measured."""
FAR_APART = 1_000_000_007
"""The distance of ids that are far apart."""
BATCHES = {32: 400, 1_024: 200, 100_000: 10, 1_000_000: 2}
"""The number of batches of one pass, by the size of a batch."""
ROUNDS = 9
LETTERS = 15
"""Letters of an id that is a string."""


def run_updates(preds: Tensor, target: Tensor, ids: Any, batches: int) -> None:
    """Update a new metric with all batches."""
    metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=EXAMPLES_PER_PERSON))
    for number in range(batches):
        persons = None
        if ids is not None:
            persons = ids[number]
        metric.update(preds, target, persons=persons)


def drawn(size: int, batches: int, examples: int) -> NDArray[np.int64]:
    """Return ids in random order, of persons with this many examples each."""
    ids = np.random.default_rng(1).permutation(size * batches) // examples
    return ids.reshape(batches, size)


class Unavoidable:
    """The work that no table of persons can avoid, for as many ids, chunk by chunk."""

    def __init__(self, size: int, batches: int, texts: NDArray[np.str_]) -> None:
        generator = np.random.default_rng(2)
        persons = max(size * batches // EXAMPLES_PER_PERSON, 1)
        slots = 1 << (4 * persons).bit_length()
        self._index = generator.integers(1, persons + 1, slots, np.int32)
        self._slots = generator.integers(0, slots, size)
        self._hashes = np.zeros(persons + 1, np.complex128)
        self._counts = np.zeros(persons + 1, np.uint16)
        self._letters = texts.view(np.uint32).reshape(*texts.shape, -1)[..., :LETTERS]
        self._names = texts.tolist()
        self._batches = batches
        self._chunks = [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]

    def look_up(self) -> None:
        """Look up every hash, and add a count."""
        for _ in range(self._batches):
            for chunk in self._chunks:
                numbers = self._index.take(self._slots[chunk])
                self._hashes.take(numbers)
                np.add.at(self._counts, numbers.astype(np.intp), np.uint16(1))
                self._counts.take(numbers)

    def encode(self) -> None:
        """Turn letters into bytes."""
        for number in range(self._batches):
            for chunk in self._chunks:
                self._letters[number, chunk].astype(np.uint8)

    def make_arrays(self) -> None:
        """Turn lists into arrays."""
        for number in range(self._batches):
            for chunk in self._chunks:
                np.asarray(self._names[number][chunk])


def print_times(size: int, batches: int) -> None:
    """Print one row of the first table."""
    preds = torch.rand(size)
    target = torch.randint(0, 2, (size,))
    four = torch.from_numpy(drawn(size, batches, 4))
    texts = np.char.add("patient", four.numpy().astype(str))
    kinds = {
        "without": None,
        "1": torch.from_numpy(drawn(size, batches, 1)),
        "4": four,
        "16": torch.from_numpy(drawn(size, batches, 16)),
        "far": four * FAR_APART,
        "str": texts,
        "list": texts.tolist(),
    }
    unavoidable = Unavoidable(size, batches, texts)
    candidates: dict[str, Candidate] = {
        name: partial(run_updates, preds, target, ids, batches) for name, ids in kinds.items()
    }
    candidates["look up"] = unavoidable.look_up
    candidates["encode"] = unavoidable.encode
    candidates["make arrays"] = unavoidable.make_arrays
    times = interleaved(candidates, ROUNDS)
    microseconds = 1e6 * times.seconds("without") / batches
    row = f"{size:<10,} {microseconds:5.0f} us   "
    for name in ("1", "4", "16"):
        row += f"{times.ratio(name, 'without'):<6.1f}"
    row += "   "
    least = 1.0
    for name, work in (("far", "look up"), ("str", "encode"), ("list", "make arrays")):
        least += times.ratio(work, "without")
        row += f"{times.ratio(name, 'without'):.1f} ({least:.1f})".ljust(14)
    print(row, flush=True)


def print_memory(name: str, ids: NDArray[np.int64]) -> None:
    """Print the memory of a table of persons."""
    tracemalloc.start()
    table = Persons(EXAMPLES_PER_PERSON)
    before, _ = tracemalloc.get_traced_memory()
    for start in range(0, PERSONS, 1_000):
        table.admit(ids[start : start + 1_000])
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(
        f"{PERSONS:,} persons, {name}: {(after - before) / PERSONS:.1f} bytes each, "
        f"{(peak - before) / PERSONS:.1f} at the most while the table grew"
    )


def main() -> None:
    """Print both tables."""
    print("times as long as without ids; in brackets the unavoidable work")
    print("batch      without    int: 1   4     16    far apart     str array     list of str")
    for size, batches in BATCHES.items():
        print_times(size, batches)
    print_memory("in order", np.arange(PERSONS))
    print_memory("shuffled", np.random.default_rng(1).permutation(PERSONS))
    print_memory("far apart", np.arange(PERSONS) * FAR_APART)


if __name__ == "__main__":
    main()
