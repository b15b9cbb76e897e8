"""Update against one read of its inputs, a batch of 32 against torchmetrics' exact curve, compute, and noise.

    make bench

One thread, CPU time, interleaved, median of 15. Ratios only: seconds on a shared machine mean little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import Tensor
from torchmetrics.classification import BinaryROC, MulticlassROC

from torchmetrics_fed import DistributedDP, FederatedROC, ScoreGrid, Spec, Tree

ROUNDS = 15


def medians(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of CPU time of each candidate, one round after the other so that all see the same weather."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(ROUNDS + 1):
        for name, candidate in candidates.items():
            start = time.process_time()
            candidate()
            if round_:  # the first warms up
                times[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def against_the_read_limit(examples: int, batches: int) -> None:
    """Cycle through enough batches that each comes from memory, as in a loop over data, or repeat one from cache."""
    where = "memory" if batches > 1 else "cache"
    for name, dtype, label, options in (
        ("float32", torch.float32, torch.int64, {}),
        ("bfloat16", torch.bfloat16, torch.int64, {}),
        ("float64", torch.float64, torch.int64, {}),
        ("int8 target", torch.float32, torch.int8, {}),
        ("ignore_index", torch.float32, torch.int64, {"ignore_index": -1}),
        ("score_range", torch.float32, torch.int64, {"score_range": (-1.0, 2.0)}),
    ):
        metric = FederatedROC(**options)
        lowest = -1 if "ignore_index" in options else 0
        data = [
            (torch.rand(examples).to(dtype), torch.randint(lowest, 2, (examples,)).to(label)) for _ in range(batches)
        ]
        read, count = cycle(data), cycle(data[batches // 2 :] + data[: batches // 2])

        def limit(batch: Iterator[tuple[Tensor, Tensor]] = read) -> None:
            preds, target = next(batch)
            preds.sum()
            target.sum()

        def update(batch: Iterator[tuple[Tensor, Tensor]] = count, metric: FederatedROC = metric) -> None:
            metric.update(*next(batch))

        time_of = medians({"limit": limit, "update": update})
        print(
            f"{examples:>10,} {name:<12} from {where:<6} {time_of['update'] / examples * 1e9:5.2f} ns an example, "
            f"{time_of['update'] / time_of['limit']:5.1f} x one read of its inputs"
        )


def against_torchmetrics(batch: int, repeats: int = 1_000) -> None:
    preds, target = torch.rand(batch), torch.randint(0, 2, (batch,))
    ours, exact = FederatedROC(), BinaryROC()

    def updates(metric: FederatedROC | BinaryROC) -> None:
        metric.reset()
        for _ in range(repeats):
            metric.update(preds, target)

    time_of = medians({"ours": lambda: updates(ours), "exact": lambda: updates(exact)})
    print(
        f"batch of {batch}: {time_of['ours'] / repeats * 1e6:.1f} us, {time_of['ours'] / time_of['exact']:.2f} x "
        "torchmetrics' exact BinaryROC"
    )


def many_classes(classes: int, batch: int = 32, repeats: int = 200) -> None:
    """Softmax scores, which crowd near 0."""
    preds = (3 * torch.randn(batch, classes)).softmax(1)
    target = torch.randint(0, classes, (batch,))
    ours, exact = FederatedROC("multiclass", num_classes=classes), MulticlassROC(classes)
    ours.update(preds, target)  # lays its state out, once after each reset

    def updates(metric: FederatedROC | MulticlassROC) -> None:
        for _ in range(repeats):
            metric.update(preds, target)

    def exact_updates() -> None:
        exact.reset()
        updates(exact)

    time_of = medians({"ours": lambda: updates(ours), "exact": exact_updates})
    seconds = medians({"compute": ours.compute})["compute"]
    print(
        f"batch of {batch} x {classes:,} classes: {time_of['ours'] / repeats * 1e6:.0f} us, "
        f"{time_of['ours'] / time_of['exact']:.2f} x torchmetrics' exact MulticlassROC; compute {seconds:.2f} s"
    )


def compute() -> None:
    metric = FederatedROC()
    metric.update(torch.rand(100_000), torch.randint(0, 2, (100_000,)))
    print(f"compute: {medians({'compute': metric.compute})['compute'] * 1e3:.2f} ms at 4096 bins")


def noise() -> None:
    """A share of the paper's plan at Q = 1024: 2 x 8190 cells over 12 levels."""
    for clients in (1, 2, 10, 1_000):
        spec = Spec("binary", 1, ScoreGrid(), Tree.binary(4096), DistributedDP(0.1, clients, max_colluding=0))
        counts = spec.grid.empty()
        seconds = medians({"share": lambda spec=spec, counts=counts: spec.noisy_cells(counts)})["share"]  # type: ignore[misc]
        told = f"noise of a share for {clients:>4} clients, 16,380 cells, epsilon 0.1 over 12 levels"
        print(f"{told}: {seconds * 1e3:.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for examples, batches in ((1_000_000, 12), (1_000_000, 1), (10_000_000, 2)):
        against_the_read_limit(examples, batches)
    against_torchmetrics(32)
    for classes in (10, 100, 1_000):
        many_classes(classes)
    compute()
    noise()
