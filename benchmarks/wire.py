"""Bytes of a share, time to write, read and add one, and the memory of a sum over 100,000 clients.

    OMP_NUM_THREADS=1 python benchmarks/wire.py

One thread, CPU time, median of 31.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchmetrics_fed import DistributedDP, Query, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.client import reply_cells
from torchmetrics_fed.exchange.placement import single_query

EXAMPLES, CLIENTS = 100_000, 100_000
PRIVACY = DistributedDP(1.0, min_clients=8, trusted_aggregator=True)
FLAT, PAPER = (Query(make(4096)) for make in (Tree.flat, Tree.binary))
SINGLE = single_query(ScoreGrid.even(), PRIVACY.epsilon)
CASES = {
    "exact leaves": (Spec("binary", 1, ScoreGrid()), FLAT),
    "plan paper, noise": (Spec("binary", 1, ScoreGrid(), PRIVACY), PAPER),
    "plan single, noise": (Spec("binary", 1, ScoreGrid(), PRIVACY), SINGLE),
    "10 classes, exact": (Spec("multiclass", 10, ScoreGrid()), FLAT),
    "10 classes, noise": (Spec("multiclass", 10, ScoreGrid(), PRIVACY), SINGLE),
}


def median(candidate: Callable[[], object]) -> float:
    """Microseconds of CPU time."""
    times = []
    for turn in range(32):
        start = time.process_time()
        candidate()
        if turn:
            times.append(time.process_time() - start)
    return statistics.median(times) * 1e6


def counts(spec: Spec) -> Tensor:
    """Counts of a fair classifier."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, max(2, spec.classes), (EXAMPLES,), generator=generator)
    if spec.task == "binary":
        scores = (1.5 * torch.randn(EXAMPLES, generator=generator) + 2.0 * target - 1.0).sigmoid()
        return spec.grid.add(spec.grid.empty(), scores, target)
    logits = 2 * torch.randn(EXAMPLES, spec.classes, generator=generator)
    logits[torch.arange(EXAMPLES), target] += 3
    labels = [
        (scores, (target == label).long()) for label, scores in enumerate(logits.softmax(1).T)
    ]
    return torch.cat(
        [spec.grid.add(spec.grid.empty(), scores.contiguous(), label) for scores, label in labels]
    )


def resident() -> float:
    """The most memory that was resident so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def stream(spec: Spec, query: Query, raw: Tensor) -> None:
    """Decode and add the shares of many clients, each with an id of its own."""
    share = Share(spec, query, reply_cells(spec, query, raw).contiguous(), "round-1")
    one = bytes(share)
    marks: list[float] = []

    def arriving() -> Iterator[Share]:
        for client in range(CLIENTS):
            if client % (CLIENTS // 4) == 0:
                marks.append(resident())
            yield Share.from_bytes(
                one.replace(share.id, client.to_bytes(len(share.id), "big")), spec, query
            )

    start = time.process_time()
    total = Release.sum(arriving(), max_examples=EXAMPLES, round="round-1")
    marks.append(resident())
    seconds = time.process_time() - start
    resided = ", ".join(f"{mark:.1f}" for mark in marks)
    print(
        f"{total.shares:,} shares decoded and summed: {seconds / CLIENTS * 1e6:.0f} us each; resident MB {resided}"
    )
    print(
        f"the release itself: {len(bytes(total)):,} bytes, of which the ids {len(total.last.ids):,}"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    small = Spec("binary", 1, ScoreGrid(bins=512))
    stream(
        small, Query(Tree.flat(512)), counts(small)
    )  # first: what is printed is the highest mark of the process
    print("| share | cells | bytes | encode us | decode us | add us | add within a bound us |")
    print("|---|---|---|---|---|---|---|")
    for name, (spec, query) in CASES.items():
        share = Share(spec, query, reply_cells(spec, query, counts(spec)).contiguous(), "round-1")
        sent, several = (
            bytes(share),
            [Share(spec, query, share.cells, "round-1") for _ in range(50)],
        )
        figures = (
            median(lambda share=share: bytes(share)),  # type: ignore[misc]
            median(lambda sent=sent, of=(spec, query): Share.from_bytes(sent, *of)),  # type: ignore[misc]
            median(lambda several=several: Release.sum(several)) / 50,  # type: ignore[misc]
            median(lambda several=several: Release.sum(several, max_examples=EXAMPLES)) / 50,  # type: ignore[misc]
        )
        columns = " | ".join(f"{figure:.0f}" for figure in figures)
        print(f"| {name} | {share.cells.numel():,} | {len(sent):,} | {columns} |")
