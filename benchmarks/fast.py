"""What the fast path of counting gains: one update with it and without, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.fast

CPU time, one thread, medians of interleaved rounds. Without it, every batch goes through the plain
torch operations of `torchmetrics_fed/counting/batch.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC
from torchmetrics_fed.counting import batch

CASES = ((32, 1), (1_024, 1), (1_000_000, 1), (1_024, 10), (256, 1_000))
"""Examples, and classes; one class is a binary task."""
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


def main() -> None:
    """Print the table."""
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


if __name__ == "__main__":
    main()
