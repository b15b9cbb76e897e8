"""Binary scores: update and compute beside every peer, update beside one read, small batches beside torchmetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import BinaryROC

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
AT_ONCE, IN_BATCHES = "1e6 at once", "1e6 in batches of 1e5"

# examples, batch
CASES = {
    "1e3 in batches of 32": (1_000, 32),
    "1e5 in batches of 1e3": (100_000, 1_000),
    IN_BATCHES: (1_000_000, 100_000),
    AT_ONCE: (1_000_000, 1_000_000),
    "1e7 in batches of 1e6": (10_000_000, 1_000_000),
}
# Left out where they take minutes and say nothing new.
LEFT_OUT = {
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


def drawn(
    examples: int, batch: int, dtype: torch.dtype = torch.float32, lowest: int = 0
) -> Batches:
    """Return scores and labels in batches."""
    sizes = [min(batch, examples - start) for start in range(0, examples, batch)]
    return [(torch.rand(size).to(dtype), torch.randint(lowest, 2, (size,))) for size in sizes]


def beside_peers(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time all updates and one compute of every peer."""
    for case, (examples, batch) in CASES.items():
        if quick and case not in (AT_ONCE, IN_BATCHES):
            continue
        left_out = {*missing(), *LEFT_OUT.get(case, ())}
        batches = drawn(examples, batch)
        times = interleaved(
            {name: peer(batches) for name, peer in PEERS.items() if name not in left_out}, rounds
        )
        yield Figure(
            PEER_SECTION, case, "this package, ns per example", times.seconds(OURS) / examples * 1e9
        )
        for name in PEERS:
            if name not in left_out and name != OURS:
                yield Figure(PEER_SECTION, case, name, times.ratio(name, OURS))


def beside_one_read(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time an update beside `preds.sum()` and `target.sum()`: a new batch each time, or the same one, from cache."""
    for case, examples, count in (
        ("1e6", 1_000_000, 12),
        ("1e7", 10_000_000, 2),
        ("1e6 from cache", 1_000_000, 1),
    ):
        for name, options in _KINDS.items():
            if name in ("float32", "even") or not quick:
                data = [_batch(examples, name) for _ in range(count)]
                times = interleaved(_read_and_update(data, options), rounds)
                yield Figure(READ_SECTION, name, case, times.ratio(OURS, READ))
                if case == "1e6":
                    yield Figure(
                        READ_SECTION, name, "ns per example", times.seconds(OURS) / examples * 1e9
                    )


_KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {},
    "float64": {},
    "strided": {},
    "ignore_index": {"ignore_index": -1},
    "even": {"grid": "even"},
    "even, ignore_index": {"grid": "even", "ignore_index": -1},
    "score_range": {"grid": ScoreGrid.even(1024, (-1.0, 2.0))},
    "256 custom edges": {"grid": ScoreGrid.from_edges(torch.linspace(0, 1, 257).double() ** 1.5)},
    "logits": {"normalization": "sigmoid"},
}


def _batch(examples: int, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "strided":  # the second of two columns
        return torch.rand(examples, 2)[:, 1], torch.randint(0, 2, (examples,))
    dtype = getattr(torch, kind) if hasattr(torch, kind) else torch.float32
    scores, target = drawn(examples, examples, dtype, -1 if "ignore_index" in kind else 0)[0]
    return (3 * torch.randn(examples) if kind == "logits" else scores), target


def _read_and_update(data: Batches, options: dict[str, Any]) -> dict[str, Candidate]:
    """Half the data lies between reading a batch and counting it."""
    metric, half = FederatedROC(**options), len(data) // 2
    to_read, to_count = cycle(data), cycle(data[half:] + data[:half])

    def read() -> None:
        preds, target = next(to_read)
        preds.sum()
        target.sum()

    return {READ: read, OURS: lambda: metric.update(*next(to_count))}


def beside_even(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time an update of 1e6 in every kind of grid and of data, relative to even bins on [0, 1]."""
    metrics = {
        name: FederatedROC(**options) for name, options in _KINDS.items() if name != "strided"
    }
    data = {name: _batch(1_000_000, name) for name in metrics}
    candidates: dict[str, Candidate] = {
        name: lambda name=name: metrics[name].update(*data[name])  # type: ignore[misc]
        for name in metrics
    }
    times = interleaved(candidates, rounds)
    for name in metrics:
        yield Figure(EVEN_SECTION, name, "x even bins", times.ratio(name, "even"))
        yield Figure(EVEN_SECTION, name, "ns per example", times.seconds(name) / 1e6 * 1e9)


def small(rounds: int, quick: bool) -> Iterator[Figure]:
    """Time updates of small batches: of ours, and of torchmetrics with its defaults."""
    makers: dict[str, Callable[[], FederatedROC | BinaryROC]] = {
        OURS: FederatedROC,
        "exact": BinaryROC,
        "200": lambda: BinaryROC(thresholds=200),
    }
    for batch in (32,) if quick else (32, 256, 1_024, 8_192):
        data, repeats = drawn(batch, batch)[0], max(20, 10_000 // batch)

        def updates(
            metric: FederatedROC | BinaryROC,
            data: tuple[Tensor, Tensor] = data,
            repeats: int = repeats,
        ) -> None:
            metric.reset()
            for _ in range(repeats):
                metric.update(*data)

        metrics = {name: make() for name, make in makers.items()}
        candidates: dict[str, Candidate] = {
            name: partial(updates, metric) for name, metric in metrics.items()
        }
        times = interleaved(candidates, rounds)
        case = f"batch of {batch:,}"
        yield Figure(SMALL_SECTION, case, "us", times.seconds(OURS) / repeats * 1e6)
        yield Figure(SMALL_SECTION, case, "x torchmetrics exact", times.ratio(OURS, "exact"))
        yield Figure(SMALL_SECTION, case, "x torchmetrics 200", times.ratio(OURS, "200"))
