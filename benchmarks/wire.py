"""Bytes of a share, time to write, read and add one, and the memory of a sum over 100,000 clients.

    OMP_NUM_THREADS=1 python -m benchmarks.wire

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

EXAMPLES = 100_000
CLIENTS = 100_000
REPEATS = 31
SHARES = 50
"""Shares of a sum whose time is measured."""
PRIVACY = DistributedDP(1.0, min_clients=8, trusted_aggregator=True)
FLAT = Query(Tree.flat(4096))
PAPER = Query(Tree.binary(4096))
SINGLE = single_query(Spec.build("binary", grid="even", privacy=PRIVACY))
CASES = {
    "exact leaves": (Spec("binary", 1, ScoreGrid()), FLAT),
    "plan paper, noise": (Spec("binary", 1, ScoreGrid(), PRIVACY), PAPER),
    "plan single, noise": (Spec("binary", 1, ScoreGrid(), PRIVACY), SINGLE),
    "10 classes, exact": (Spec("multiclass", 10, ScoreGrid()), FLAT),
    "10 classes, noise": (Spec("multiclass", 10, ScoreGrid(), PRIVACY), SINGLE),
}


def median(candidate: Callable[[], object]) -> float:
    """Return the CPU time of a candidate, in microseconds."""
    candidate()  # a warm-up
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        candidate()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e6


def counts(spec: Spec) -> Tensor:
    """Return counts of a fair classifier."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, max(2, spec.classes), (EXAMPLES,), generator=generator)
    if spec.task == "binary":
        logits = 1.5 * torch.randn(EXAMPLES, generator=generator) + 2.0 * target - 1.0
        return spec.grid.add(spec.grid.empty(), logits.sigmoid(), target)
    logits = 2 * torch.randn(EXAMPLES, spec.classes, generator=generator)
    logits[torch.arange(EXAMPLES), target] += 3
    parts = []
    for label, scores in enumerate(logits.softmax(1).T):
        is_positive = (target == label).long()
        parts.append(spec.grid.add(spec.grid.empty(), scores.contiguous(), is_positive))
    return torch.cat(parts)


def resident() -> float:
    """Return the highest resident memory so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes
        return peak / 2**20
    return peak / 2**10


class Arrivals:
    """Decodes the shares of many clients, each with an id of its own, and records the memory."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._data = bytes(share)
        self.memory: list[float] = []
        """Resident MB, after every quarter of the shares."""

    def __iter__(self) -> Iterator[Share]:
        share = self._share
        for client in range(CLIENTS):
            if client % (CLIENTS // 4) == 0:
                self.memory.append(resident())
            share_id = client.to_bytes(len(share.id), "big")
            yield Share.from_bytes(self._data.replace(share.id, share_id), share.spec, share.query)
        self.memory.append(resident())


def print_stream(spec: Spec, query: Query) -> None:
    """Print the time and memory of decoding and adding the shares of many clients."""
    cells = reply_cells(spec, query, counts(spec)).contiguous()
    arrivals = Arrivals(Share(spec, query, cells, "round-1"))
    start = time.process_time()
    total = Release.sum(iter(arrivals), max_examples=EXAMPLES, round="round-1")
    microseconds = (time.process_time() - start) / CLIENTS * 1e6
    memory = ", ".join(f"{megabytes:.1f}" for megabytes in arrivals.memory)
    print(
        f"{total.shares:,} shares decoded and summed: {microseconds:.0f} us each; "
        f"resident MB {memory}"
    )
    print(
        f"the release itself: {len(bytes(total)):,} bytes, of which the ids {len(total.last.ids):,}"
    )


def print_case(name: str, spec: Spec, query: Query) -> None:
    """Print the size of a share, and the times to write, read and add one."""
    cells = reply_cells(spec, query, counts(spec)).contiguous()
    share = Share(spec, query, cells, "round-1")
    data = bytes(share)
    shares = [Share(spec, query, cells, "round-1") for _ in range(SHARES)]
    times = [
        median(lambda: bytes(share)),
        median(lambda: Share.from_bytes(data, spec, query)),
        median(lambda: Release.sum(shares)) / SHARES,
        median(lambda: Release.sum(shares, max_examples=EXAMPLES)) / SHARES,
    ]
    columns = " | ".join(f"{microseconds:.0f}" for microseconds in times)
    print(f"| {name} | {cells.numel():,} | {len(data):,} | {columns} |")


def main() -> None:
    torch.set_num_threads(1)
    # The stream comes first: its memory is the highest so far in this process.
    print_stream(Spec("binary", 1, ScoreGrid(bins=512)), Query(Tree.flat(512)))
    print("| share | cells | bytes | encode us | decode us | add us | add within a bound us |")
    print("|---|---|---|---|---|---|---|")
    for name, (spec, query) in CASES.items():
        print_case(name, spec, query)


if __name__ == "__main__":
    main()
