"""What enforcing `examples_per_person` costs: time beside the same update without ids, and memory per person.

OMP_NUM_THREADS=1 python -m benchmarks.persons

Ids are integers from 0 on, in random order, for 1, 4 or 16 examples of each person, of whom 4 are counted. The others
have 4 examples each: integers far apart, which have to be looked up by a hash, and strings, in an array and in a list.
Behind these stands what they cannot do without, in the same numpy: for integers, one look-up of 16 bytes, one count
added and read back, for hashes that are there already; for strings in an array, the same and their letters in bytes;
for a list, the same and its array.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.counting.numbering import CHUNK
from torchmetrics_fed.counting.persons import Persons

MOST, PERSONS, FAR = 4, 1_000_000, 1_000_000_007
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


def passed(action: Callable[[slice], Any], size: int) -> float:
    """The best time of an action for each chunk of a batch."""
    best, chunks = np.inf, [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]
    for _ in range(REPEATS):
        begun = time.process_time()
        for chunk in chunks:
            action(chunk)
        best = min(best, time.process_time() - begun)
    return best


def floors(size: int, batches: int, texts: NDArray[np.str_]) -> list[float]:
    """What a batch of hashed integers, of strings in an array, and of strings in a list takes at the least."""
    persons, generator = max(size * batches // 4, 1), np.random.default_rng(2)
    index = generator.integers(1, persons + 1, 1 << (4 * persons).bit_length(), np.int32)
    slots, hashes, counted = (
        generator.integers(0, len(index), size),
        np.zeros(persons + 1, np.complex128),
        np.zeros(persons + 1, np.uint16),
    )

    def looked_up(chunk: slice) -> None:
        numbers = index.take(slots[chunk])
        hashes.take(numbers)
        np.add.at(counted, numbers.astype(np.intp), np.uint16(1))
        counted.take(numbers)

    letters, names = texts.view(np.uint32).reshape(size, -1)[:, :15], texts.tolist()
    table = passed(looked_up, size)
    narrow = passed(lambda chunk: letters[chunk].astype(np.uint8), size)
    listed = passed(lambda chunk: np.asarray(names[chunk]), size)
    return [table, table + narrow, table + narrow + listed]


def main() -> None:
    """Print both tables."""
    print("times as long as without ids; in brackets what cannot be avoided")
    print("batch      without    int: 1   4     16    far apart     str array     list of str")
    for size, batches in SIZES.items():
        plain = seconds(size, batches, None)
        one, four, many = (drawn(size, batches, each) for each in (1, 4, 16))
        texts = np.char.add("patient", four.astype(str))
        close = "".join(f"{seconds(size, batches, torch.from_numpy(ids)) / plain:<6.1f}" for ids in (one, four, many))
        least = floors(size, batches, texts[0])
        kinds = zip((four * FAR, texts, texts.tolist()), least, strict=True)
        other = "".join(
            f"{seconds(size, batches, ids) / plain:.1f} ({1 + floor / plain:.1f})".ljust(14) for ids, floor in kinds
        )
        print(f"{size:<10,} {1e6 * plain:5.0f} us   {close}   {other}", flush=True)
    for name, ids in {
        "in order": np.arange(PERSONS),
        "shuffled": np.random.default_rng(1).permutation(PERSONS),
        "far apart": np.arange(PERSONS) * FAR,
    }.items():
        tracemalloc.start()
        table, before = Persons(MOST), tracemalloc.get_traced_memory()[0]
        for start in range(0, PERSONS, 1_000):
            table.admit(ids[start : start + 1_000])
        now, peak = ((found - before) / PERSONS for found in tracemalloc.get_traced_memory())
        tracemalloc.stop()
        print(f"{PERSONS:,} persons, {name}: {now:.1f} bytes each, {peak:.1f} at the most while the table grew")


if __name__ == "__main__":
    main()
