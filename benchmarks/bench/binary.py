"""Binary scores: all updates beside every peer, one update beside one read, small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC, BinaryROC

from benchmarks.bench.figure import Figure
from benchmarks.bench.peers import OURS, PEERS, READ, SLOW, Batches, missing
from benchmarks.bench.timing import Candidate, interleaved
from torchmetrics_fed import FederatedROC, ScoreGrid

__all__ = [
    "AT_ONCE",
    "EVEN_SECTION",
    "IN_BATCHES",
    "PEER_SECTION",
    "READ_SECTION",
    "SMALL_SECTION",
    "beside_even",
    "beside_one_read",
    "beside_peers",
    "small",
]

PEER_SECTION = "Updates and compute, relative to this package"
READ_SECTION = "One update, relative to one read of its inputs"
EVEN_SECTION = "One update of 1e6, relative to even bins"
SMALL_SECTION = "Small batches"
AT_ONCE = "1e6 at once"
IN_BATCHES = "1e6 in batches of 1e5"

CASES = {
    "1e3 in batches of 32": (1_000, 32),
    "1e5 in batches of 1e3": (100_000, 1_000),
    IN_BATCHES: (1_000_000, 100_000),
    AT_ONCE: (1_000_000, 1_000_000),
    "1e7 in batches of 1e6": (10_000_000, 1_000_000),
}
"""Examples, and examples of a batch."""
OMITTED = {
    AT_ONCE: SLOW,
    "1e7 in batches of 1e6": (
        *SLOW,
        "torchmetrics 200",
        "torcheval exact",
        "torcheval 4096",
        "declearn 11",
        "scikit-learn",
    ),
}
"""Peers that take minutes in a case and would say nothing new."""
NANOSECONDS = 1e9
"""In a second."""
MICROSECONDS = 1e6
"""In a second."""


def drawn(
    examples: int, batch: int, dtype: torch.dtype = torch.float32, lowest: int = 0
) -> Batches:
    """Return scores and labels in batches. With a ``lowest`` label of -1, some are ignored."""
    batches = []
    for start in range(0, examples, batch):
        size = min(batch, examples - start)
        batches.append((torch.rand(size).to(dtype), torch.randint(lowest, 2, (size,))))
    return batches


def beside_peers(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time all updates and one compute of every peer."""
    for case, (examples, batch) in CASES.items():
        if quick and case not in (AT_ONCE, IN_BATCHES):
            continue
        omitted = {*missing(), *OMITTED.get(case, ())}
        batches = drawn(examples, batch)
        peers = {name: peer(batches) for name, peer in PEERS.items() if name not in omitted}
        times = interleaved(peers, rounds)
        yield Figure(
            section=PEER_SECTION,
            case=case,
            name="this package, ns per example",
            value=times.seconds(OURS) / examples * NANOSECONDS,
        )
        for name in peers:
            if name != OURS:
                yield Figure(PEER_SECTION, case, name, times.ratio(name, OURS))


class Kind(NamedTuple):
    """A kind of scores and of grid."""

    options: Mapping[str, Any] = {}
    """The metric's arguments."""
    dtype: torch.dtype = torch.float32
    ignores: bool = False
    """Whether a third of the labels is to be ignored."""

    def batch(self, examples: int) -> tuple[Tensor, Tensor]:
        """Return one batch of scores and labels."""
        lowest = -1 if self.ignores else 0
        return drawn(examples, examples, self.dtype, lowest)[0]


class StridedKind(Kind):
    """Scores that are the second of two columns."""

    def batch(self, examples: int) -> tuple[Tensor, Tensor]:
        return torch.rand(examples, 2)[:, 1], torch.randint(0, 2, (examples,))


class LogitsKind(Kind):
    """Scores before the sigmoid."""

    def batch(self, examples: int) -> tuple[Tensor, Tensor]:
        _, target = super().batch(examples)
        return 3 * torch.randn(examples), target


CUSTOM_EDGES = ScoreGrid.from_edges(torch.linspace(0, 1, 257).double() ** 1.5)
KINDS: dict[str, Kind] = {
    "float32": Kind(),
    "bfloat16": Kind(dtype=torch.bfloat16),
    "float64": Kind(dtype=torch.float64),
    "strided": StridedKind(),
    "ignore_index": Kind({"ignore_index": -1}, ignores=True),
    "even": Kind({"grid": "even"}),
    "even, ignore_index": Kind({"grid": "even", "ignore_index": -1}, ignores=True),
    "score_range": Kind({"grid": ScoreGrid.even(1024, (-1.0, 2.0))}),
    "256 custom edges": Kind({"grid": CUSTOM_EDGES}),
    "logits": LogitsKind({"normalization": "sigmoid"}),
}
QUICK_KINDS = ("float32", "even")


class ReadCase(NamedTuple):
    """Batches for reads and updates in turn. With a single batch, they come from cache."""

    name: str
    examples: int
    batches: int


READ_CASES = (
    ReadCase("1e6", 1_000_000, 12),
    ReadCase("1e7", 10_000_000, 2),
    ReadCase("1e6 from cache", 1_000_000, 1),
)


def beside_one_read(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time an update beside `preds.sum()` and `target.sum()`: of new batches, or from cache."""
    for case in READ_CASES:
        for name, kind in KINDS.items():
            if quick and name not in QUICK_KINDS:
                continue
            batches = [kind.batch(case.examples) for _ in range(case.batches)]
            times = interleaved(_read_and_update(batches, kind), rounds)
            yield Figure(READ_SECTION, name, case.name, times.ratio(OURS, READ))
            if case.name == "1e6":
                nanoseconds = times.seconds(OURS) / case.examples * NANOSECONDS
                yield Figure(READ_SECTION, name, "ns per example", nanoseconds)


def _read_and_update(batches: Batches, kind: Kind) -> dict[str, Candidate]:
    """Return a read and an update. Half of the batches lie between reading and counting one."""
    half = len(batches) // 2
    metric = FederatedROC(**kind.options)
    to_read = cycle(batches)
    to_count = cycle(batches[half:] + batches[:half])
    return {
        READ: lambda: _read(*next(to_read)),
        OURS: lambda: metric.update(*next(to_count)),
    }


def _read(preds: Tensor, target: Tensor) -> None:
    preds.sum()
    target.sum()


def beside_even(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time an update of 1e6 in every kind of grid and of data, relative to even bins on [0, 1]."""
    examples = 1_000_000
    candidates: dict[str, Candidate] = {}
    for name, kind in KINDS.items():
        if name != "strided":
            metric = FederatedROC(**kind.options)
            candidates[name] = partial(metric.update, *kind.batch(examples))
    times = interleaved(candidates, rounds)
    for name in candidates:
        nanoseconds = times.seconds(name) / examples * NANOSECONDS
        yield Figure(EVEN_SECTION, name, "x even bins", times.ratio(name, "even"))
        yield Figure(EVEN_SECTION, name, "ns per example", nanoseconds)


def small(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time updates of small batches, of this package and of torchmetrics with its defaults.

    Its AUROC does not check what it is given, whatever its arguments say.
    """
    sizes = (32,) if quick else (32, 256, 1_024, 8_192)
    for size in sizes:
        preds, target = drawn(size, size)[0]
        repeats = max(20, 10_000 // size)
        metrics: dict[str, FederatedROC | BinaryROC | BinaryAUROC] = {
            OURS: FederatedROC(),
            "exact": BinaryROC(),
            "unchecked": BinaryAUROC(),
            "200": BinaryROC(thresholds=200),
        }
        candidates: dict[str, Candidate] = {}
        for name, metric in metrics.items():
            candidates[name] = partial(_update_often, metric, preds, target, repeats)
        times = interleaved(candidates, rounds)
        case = f"batch of {size:,}"
        yield Figure(SMALL_SECTION, case, "us", times.seconds(OURS) / repeats * MICROSECONDS)
        yield Figure(SMALL_SECTION, case, "x torchmetrics exact", times.ratio(OURS, "exact"))
        unchecked = times.ratio(OURS, "unchecked")
        yield Figure(SMALL_SECTION, case, "x torchmetrics AUROC, no checks", unchecked)
        yield Figure(SMALL_SECTION, case, "x torchmetrics 200", times.ratio(OURS, "200"))


def _update_often(
    metric: FederatedROC | BinaryROC | BinaryAUROC, preds: Tensor, target: Tensor, repeats: int
) -> None:
    metric.reset()
    for _ in range(repeats):
        metric.update(preds, target)
