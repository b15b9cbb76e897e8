"""What the fast path of counting gains, and its floor: the operations that it cannot do without.

    OMP_NUM_THREADS=1 python -m benchmarks.fast

CPU time, one thread, medians of interleaved rounds. The first table has one update with the fast
path and without: then every batch goes through the plain torch operations of
`torchmetrics_fed/counting/batch.py`.

The second table has softmax scores of several classes, beside an update of torchmetrics' exact
metric, which checks and stores them. The floor is an update of a metric that does nothing, and the
bare operations of numpy and torch one after the other, without any Python around them: the check,
the cell of each score, the look-up of its bin, its place in the counts, and one addition for each
score. By itself, with its arrays in cache, each operation takes a little less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassROC

from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC
from torchmetrics_fed.counting import batch
from torchmetrics_fed.counting.fast import FORMATS, bin_table

CASES = ((32, 1), (1_024, 1), (1_000_000, 1), (1_024, 10), (256, 1_000))
"""Examples, and classes; one class is a binary task."""
FLOOR_CASES = ((1_024, 10), (256, 100))
"""Examples, and classes, of the table of the floor."""
BINS = 4096
ROUNDS = 15
SCORES_A_ROUND = 200_000
"""An update is repeated until this number of scores is counted."""


@contextmanager
def plain_only() -> Iterator[None]:
    """Count every batch with the plain operations."""
    with mock.patch.object(batch, "has_fast_way", return_value=False):
        yield


def update(metric: FederatedROC, preds: Tensor, target: Tensor, repeats: int) -> None:
    """Count a batch again and again."""
    for _ in range(repeats):
        metric.update(preds, target)


def update_plainly(metric: FederatedROC, preds: Tensor, target: Tensor, repeats: int) -> None:
    """The same without the fast path."""
    with plain_only():
        update(metric, preds, target, repeats)


def drawn(examples: int, classes: int) -> tuple[FederatedROC, Tensor, Tensor]:
    """Return a metric, scores and targets."""
    if classes == 1:
        target = torch.randint(0, 2, (examples,))
        return FederatedROC(), (torch.randn(examples) + 2 * target - 1).sigmoid(), target
    target = torch.randint(0, classes, (examples,))
    metric = FederatedROC("multiclass", num_classes=classes)
    return metric, (2 * torch.randn(examples, classes)).softmax(1), target


class NoMetric(Metric):
    """A metric whose update does nothing: the price of torchmetrics' own wrapper."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Do nothing."""

    def compute(self) -> None:
        """Do nothing."""


class Operations:
    """The operations of an update of softmax scores, float32, each on arrays that are ready."""

    def __init__(self, preds: Tensor, target: Tensor) -> None:
        form = FORMATS[4]
        columns = preds.shape[1]
        self.scores = preds.reshape(-1).numpy()
        self.labels = target.numpy()
        self.half = np.full(len(self.scores), form.half, form.integer)
        self.table = bin_table(BINS, columns)
        self.shift = np.uint32(form.mantissa - self.table.depth)
        self.row = BINS * columns
        self.column_numbers = np.tile(np.arange(columns), len(preds))
        self.starts = np.arange(0, len(self.scores), columns)
        self.counts = torch.zeros(2 * self.row, dtype=torch.int64)
        self.ones = torch.ones(len(self.scores), dtype=torch.int64)
        self.cell()
        self.look_up()
        self.place()

    def check(self) -> None:
        """The largest bits of labels and of scores."""
        np.maximum.reduce(self.labels.view(np.uint64))
        np.maximum.reduce(self.scores.view(np.uint32))

    def cell(self) -> None:
        """The first bits of t, as `torchmetrics_fed/counting/fast.py` defines it."""
        complements = np.float32(1) - self.scores
        t = np.minimum(self.scores.view(np.int32), self.half)
        t -= np.minimum(complements.view(np.int32), self.half)
        np.minimum.reduce(t)  # whether a score is exactly 0
        self.cells = (t.view(np.uint32) >> self.shift).view(np.int32)

    def look_up(self) -> None:
        """The bin of each score."""
        cells = torch.from_numpy(self.cells)
        self.bins = torch.index_select(self.table.bins, 0, cells).numpy()

    def place(self) -> None:
        """The place of each score in the counts: its bin, its column, and the row of its label."""
        self.places = self.bins + self.column_numbers
        self.places[self.starts + self.labels] += self.row

    def add(self) -> None:
        """One for each score."""
        self.counts.scatter_add_(0, torch.from_numpy(self.places), self.ones)

    def all(self) -> None:
        """All operations of an update."""
        self.check()
        self.cell()
        self.look_up()
        self.place()
        self.add()


def repeated(operation: Candidate, repeats: int) -> None:
    """Call an operation again and again."""
    for _ in range(repeats):
        operation()


def exact_updates(metric: MulticlassROC, preds: Tensor, target: Tensor, repeats: int) -> None:
    """Update torchmetrics' exact metric, from a reset on: otherwise it would keep all scores."""
    metric.reset()
    repeated(partial(metric.update, preds, target), repeats)


def update_nothing(metric: NoMetric, preds: Tensor, target: Tensor, repeats: int) -> None:
    """Update a metric that does nothing."""
    repeated(partial(metric.update, preds, target), repeats)


def print_floor() -> None:
    """Print the table of the floor."""
    names = ("check", "cell", "look_up", "place", "add", "no update")
    print("| batch | torchmetrics exact us | fast us | floor us |", " | ".join(names), "|")
    print("|" + "---|" * (len(names) + 4))
    for examples, classes in FLOOR_CASES:
        metric, preds, target = drawn(examples, classes)
        operations = Operations(preds, target)
        repeats = max(SCORES_A_ROUND // preds.numel(), 1)
        candidates: dict[str, Candidate] = {
            "exact": partial(exact_updates, MulticlassROC(classes), preds, target, repeats),
            "fast": partial(update, metric, preds, target, repeats),
            "check": partial(repeated, operations.check, repeats),
            "cell": partial(repeated, operations.cell, repeats),
            "look_up": partial(repeated, operations.look_up, repeats),
            "place": partial(repeated, operations.place, repeats),
            "add": partial(repeated, operations.add, repeats),
            "all": partial(repeated, operations.all, repeats),
            "no update": partial(update_nothing, NoMetric(), preds, target, repeats),
        }
        times = interleaved(candidates, ROUNDS)
        microseconds = {name: times.seconds(name) / repeats * 1e6 for name in candidates}
        exact = microseconds["exact"]
        floor = microseconds["all"] + microseconds["no update"]
        print(
            f"| {examples:,} x {classes:,} | {exact:.1f} "
            f"| {microseconds['fast']:.1f} ({times.ratio('fast', 'exact'):.2f}) "
            f"| {floor:.1f} ({floor / exact:.2f}) |",
            " | ".join(f"{microseconds[name]:.1f}" for name in names),
            "|",
        )


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print("| batch | plain us | fast us | gain |\n|---|---|---|---|")
    for examples, classes in CASES:
        metric, preds, target = drawn(examples, classes)
        repeats = max(SCORES_A_ROUND // preds.numel(), 1)
        candidates: dict[str, Candidate] = {
            "plain": partial(update_plainly, metric, preds, target, repeats),
            "fast": partial(update, metric, preds, target, repeats),
        }
        times = interleaved(candidates, ROUNDS)
        plain = times.seconds("plain") / repeats * 1e6
        fast = times.seconds("fast") / repeats * 1e6
        ratio = times.ratio("plain", "fast")
        print(f"| {examples:,} x {classes:,} | {plain:,.0f} | {fast:,.0f} | {ratio:.1f} |")
    print()
    print_floor()


if __name__ == "__main__":
    main()
