"""What enforcing `examples_per_person` costs: time beside the same update without ids, and memory per person.

OMP_NUM_THREADS=1 python -m benchmarks.persons

Ids are integers from 0 on, in random order, for 1, 4 or 16 examples of each person, of whom 4 are counted. The others
have 4 examples each: integers far apart, which have to be looked up by a hash, and strings, in an array and in a list.
Behind these stands what they cannot do without, in the same numpy: for integers, one look-up of 16 bytes, one count
added and read back, for hashes that are there already; for strings in an array, the same and their letters in bytes;
for a list, the same and its array.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.counting.numbering import CHUNK
from torchmetrics_fed.counting.persons import Persons

MOST, PERSONS, FAR = 4, 1_000_000, 1_000_000_007
SIZES = {32: 400, 1_024: 200, 100_000: 10, 1_000_000: 2}  # and how many such batches one pass has
ROUNDS = 9


def updates(size: int, ids: Any, batches: int) -> Candidate:
    """A pass over batches of their own, which begins without any person."""
    preds, target = torch.rand(size), torch.randint(0, 2, (size,))

    def run() -> None:
        metric = FederatedROC(privacy=CentralDP(1.0, examples_per_person=MOST))
        for number in range(batches):
            metric.update(preds, target, persons=None if ids is None else ids[number])

    return run


def drawn(size: int, batches: int, each: int) -> np.ndarray[Any, Any]:
    """Ids in random order, of persons with ``each`` examples."""
    ids = np.random.default_rng(1).permutation(size * batches) // each
    return ids.reshape(batches, size)


def unavoidable(size: int, batches: int, texts: NDArray[np.str_]) -> dict[str, Candidate]:
    """What looking up as many hashes takes, turning letters into bytes, and a list into an array."""
    persons, generator = max(size * batches // 4, 1), np.random.default_rng(2)
    index = generator.integers(1, persons + 1, 1 << (4 * persons).bit_length(), np.int32)
    slots, hashes = generator.integers(0, len(index), size), np.zeros(persons + 1, np.complex128)
    counted, letters = (
        np.zeros(persons + 1, np.uint16),
        texts.view(np.uint32).reshape(*texts.shape, -1)[..., :15],
    )
    names, chunks = texts.tolist(), [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]

    def looked_up(number: int, chunk: slice) -> None:
        numbers = index.take(slots[chunk])
        hashes.take(numbers)
        np.add.at(counted, numbers.astype(np.intp), np.uint16(1))
        counted.take(numbers)

    def of_all(action: Callable[[int, slice], Any]) -> Candidate:
        return lambda: [action(number, chunk) for number in range(batches) for chunk in chunks]

    return {
        "looked up": of_all(looked_up),
        "letters": of_all(lambda number, chunk: letters[number, chunk].astype(np.uint8)),
        "array": of_all(lambda number, chunk: np.asarray(names[number][chunk])),
    }


def main() -> None:
    """Print both tables."""
    print("times as long as without ids; in brackets what cannot be avoided")
    print("batch      without    int: 1   4     16    far apart     str array     list of str")
    for size, batches in SIZES.items():
        one, four, many = (torch.from_numpy(drawn(size, batches, each)) for each in (1, 4, 16))
        texts = np.char.add("patient", four.numpy().astype(str))
        kinds = {
            "without": None,
            "1": one,
            "4": four,
            "16": many,
            "far": four * FAR,
            "str": texts,
            "list": texts.tolist(),
        }
        passes = {name: updates(size, ids, batches) for name, ids in kinds.items()}
        times = interleaved(passes | unavoidable(size, batches, texts), ROUNDS)
        close = "".join(f"{times.ratio(name, 'without'):<6.1f}" for name in ("1", "4", "16"))
        least, other = 1.0, ""
        for name, more in (("far", "looked up"), ("str", "letters"), ("list", "array")):
            least += times.ratio(more, "without")
            other += f"{times.ratio(name, 'without'):.1f} ({least:.1f})".ljust(14)
        print(
            f"{size:<10,} {1e6 * times.seconds('without') / batches:5.0f} us   {close}   {other}",
            flush=True,
        )
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
        print(
            f"{PERSONS:,} persons, {name}: {now:.1f} bytes each, {peak:.1f} at the most while the table grew"
        )


if __name__ == "__main__":
    main()
