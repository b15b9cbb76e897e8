"""A program that decodes hostile inputs and prints the most memory that each kind of message takes.

It has its own process: memory of torch shows in the resident memory only, which other tests move.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchmetrics_fed import (
    Coordinator,
    FederatedROC,
    LocalDP,
    Query,
    Release,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.exchange.node import _Note
from torchmetrics_fed.exchange.plans import plan_from
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.release import rice
from torchmetrics_fed.release.release import contents
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.release.wire import Kind, frame, pack_block, pack_text, sealed_frame

CLASSES = 250
BINS = 4096
WIDE = Spec("multilabel", CLASSES, ScoreGrid(bins=BINS))
NOISY = Spec("multilabel", CLASSES, ScoreGrid(bins=BINS), LocalDP(1.0))
ALL_BINS = WIDE.all_bins
CELLS = CLASSES * 2 * BINS
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
AGREED = Terms(WIDE, plan_from(None, WIDE))


class Input(NamedTuple):
    """Bytes, and the function that decodes them."""

    name: str
    read: Callable[[bytes], object]
    data: bytes


def counts(density: float) -> torch.Tensor:
    numbers = np.random.default_rng(1)
    drawn = np.where(numbers.random(CELLS) < density, numbers.integers(1, 9, CELLS), 0)
    return torch.from_numpy(drawn).reshape(WIDE.shape(ALL_BINS))


def read_share(data: bytes) -> Share:
    return Share.from_bytes(data, WIDE, ALL_BINS)


def read_noisy_share(data: bytes) -> Share:
    return Share.from_bytes(data, NOISY, ALL_BINS)


def read_coordinator(data: bytes) -> Coordinator:
    return Coordinator.from_bytes(data, AGREED)


def read_client(data: bytes) -> Evaluation:
    return Evaluation.resumed(data, AGREED)


def release_of(spec: Spec, encoding: int, packed: bytes, query: Query = ALL_BINS) -> bytes:
    """Return a release of one sum with any bytes as cells."""
    return sealed_frame(
        Kind.RELEASE,
        spec.digest,
        pack_block(spec.canonical),
        pack_text(""),
        b"\0\1\0",
        pack_block(bytes(query)),
        (3).to_bytes(8, "little"),
        (1).to_bytes(2, "little"),
        pack_block(b""),
        bytes([encoding]),
        pack_block(packed),
    )


def share_of(spec: Spec, encoding: int, packed: bytes) -> bytes:
    """Return a share with any bytes as cells."""
    marks = [digest[:8] for digest in spec.digests.values()]
    return frame(
        Kind.SHARE,
        spec.binding(ALL_BINS),
        bytes([len(marks)]),
        *marks,
        bytes(16),
        pack_text(""),
        b"\0",
        bytes([encoding]),
        packed,
    )


def client_of(cells: torch.Tensor) -> bytes:
    """Return a client between two queries, with these counts."""
    encoding, packed = rice.pack(cells.reshape(-1).numpy())
    return frame(
        Kind.CLIENT,
        WIDE.digest,
        pack_text("a"),
        pack_text(""),
        b"\1",
        bytes(32),
        bytes([encoding]),
        packed,
    )


def coordinator_of(share: Share, senders: int) -> bytes:
    """Return a coordinator that has received shares, each of another sender."""
    coordinator = Coordinator(AGREED, round="1")
    coordinator.receive("a", share)
    for number in range(1, senders):
        empty = torch.zeros(WIDE.shape(ALL_BINS), dtype=torch.int64)
        coordinator.receive(f"b{number}", Share(WIDE, ALL_BINS, empty, "1"))
    return coordinator.to_bytes()


def coordinator_of_names(count: int, ids: int) -> bytes:
    """Return a coordinator with many short names, and a sum with this many ids."""
    part = Sum(
        WIDE,
        ALL_BINS,
        torch.zeros(WIDE.shape(ALL_BINS), dtype=torch.int64),
        shares=count,
        ids=b"".join(number.to_bytes(16, "big") for number in range(ids)),
    )
    names = [pack_text(f"{number:x}") for number in range(count)]
    return frame(
        Kind.COORDINATOR,
        WIDE.digest,
        pack_text("1"),
        b"\0\0\1",
        part.pack(),
        pack_block(bytes(ALL_BINS)),
        bytes(4),
        count.to_bytes(4, "little"),
        *sorted(names),
    )


def hostile_inputs() -> Iterator[Input]:
    """Yield inputs that were made to take much memory."""
    yield from honest_cells()
    yield from wrong_codes()
    for ids in (0, 100_000):
        yield Input("coordinator", read_coordinator, coordinator_of_names(100_000, ids))
    huge = Spec("multilabel", 2**40, ScoreGrid(bins=BINS))
    yield Input("release", Release.from_bytes, release_of(huge, rice.UNSIGNED, bytes(2**20)))
    yield from queries()
    yield from specs()
    blocks = [pack_block(bytes(2**20)) for _ in range(5)]
    yield Input("notes", _Note.from_bytes, frame(Kind.NOTES, pack_block(b"0x1p+0"), *blocks))


def honest_cells() -> Iterator[Input]:
    """Yield honest messages with many cells, empty ones and crowded ones."""
    for density in (0.0, 0.9):
        cells = counts(density)
        share = Share(WIDE, ALL_BINS, cells, "1")
        release = bytes(Release((Sum(WIDE, ALL_BINS, cells),)))
        yield Input("release", Release.from_bytes, release)
        yield Input("release", contents, release)
        yield Input("share", read_share, bytes(share))
        yield Input("coordinator", read_coordinator, coordinator_of(share, 2))
        yield Input("client", read_client, client_of(cells))


def wrong_codes() -> Iterator[Input]:
    """Yield messages whose cells are the shortest codes of many zeros, or rubbish of that size."""
    one_byte_for_64_zeros = CELLS // 64
    half_a_byte_each = CELLS // 64 * 33
    codes = [
        (encoding, bytes([filling]) * length)
        for length in (one_byte_for_64_zeros, half_a_byte_each)
        for filling in (0x00, 0x03, 0xFF)
        for encoding in (rice.UNSIGNED, rice.SIGNED)
    ]
    for encoding, packed in codes:
        for spec in (WIDE, NOISY):
            yield Input("release", Release.from_bytes, release_of(spec, encoding, packed))
        yield Input("share", read_share, share_of(WIDE, encoding, packed))
        yield Input("share", read_noisy_share, share_of(NOISY, encoding, packed))
    yield Input("release", Release.from_bytes, release_of(WIDE, rice.FIXED, bytes(8 * CELLS)))


def queries() -> Iterator[Input]:
    """Yield queries with many leaves."""
    leaves = 2**18
    for tree in (
        Tree((leaves,), tuple(range(0, 3 * leaves + 1, 3))),
        Table((2, leaves), (0, 1, leaves, *range(leaves + 1)), joint=False),
        Tree((2,) * 24),
    ):
        data = bytes(Query(tree))
        yield Input("query", Query.from_bytes, data)
        yield Input("query", Query.from_bytes, data[:-1] + b"\xff")
        grid = Spec("binary", 1, ScoreGrid(bins=2**24))
        yield Input("release", Release.from_bytes, release_of(grid, 0, b"", Query(tree)))


def specs() -> Iterator[Input]:
    """Yield JSON that takes more memory than it has bytes."""
    fields = json.loads(WIDE.canonical)
    for size in (2**19 - 500, 2**21):
        texts = [
            b"[" + b"{}," * (size // 3) + b"{}]",
            b"[" + b"[]," * (size // 3) + b"[]]",
            b"[" * size,
            b"[" + b'{"":0},' * (size // 7) + b"0]",
            b"[" + b'{"":{}},' * (size // 8) + b"0]",
            b"{" + b",".join(b'"%x":0' % number for number in range(size // 9)) + b"}",
        ]
        for name, values in (
            ("groups", [f"{number:x}" for number in range(size // 8)]),
            ("score_edges", list(range(size // 8))),
            ("score_edges", [float(number).hex() for number in range(size // 24)]),
        ):
            changed = json.dumps(fields | {name: values}, sort_keys=True, separators=(",", ":"))
            texts.append(changed.encode())
        for text in texts:
            yield Input("spec", Spec.from_canonical, text)
            digest = hashlib.sha256(text).digest()
            yield Input(
                "release", Release.from_bytes, sealed_frame(Kind.RELEASE, digest, pack_block(text))
            )


def mutants(number: int, chance: random.Random) -> Iterator[Input]:
    """Yield honest messages with something changed; half of the releases with a new checksum."""
    sources = honest_messages()
    for turn in range(number):
        source = sources[turn % len(sources)]
        changed = mutant(source.data, chance)
        if source.name == "release" and turn % 2:
            changed = changed[:-32] + hashlib.sha256(changed[:-32]).digest()
        yield source._replace(data=changed)


def honest_messages() -> list[Input]:
    """Return an honest message of each kind."""
    spec = Spec("binary", 1, ScoreGrid(bins=1024))
    query = spec.all_bins
    cells = torch.randint(0, 3, spec.shape(query))
    placed = Query(Tree((4, 4), tuple(range(0, 1025, 64))), 0.25)
    metric = FederatedROC(privacy=LocalDP(1.0), plan="adaptive")
    coordinator = Coordinator(metric, round="1")
    metric.update(torch.rand(100), torch.arange(100) % 2)
    assert coordinator.query is not None
    coordinator.receive("ann", metric.share(round="1", query=coordinator.query))
    return [
        Input("release", Release.from_bytes, bytes(Release((Sum(spec, query, cells),)))),
        Input(
            "share",
            lambda data: Share.from_bytes(data, spec, query),
            bytes(Share(spec, query, cells)),
        ),
        Input("query", Query.from_bytes, bytes(placed)),
        Input("spec", Spec.from_canonical, spec.canonical),
        Input(
            "coordinator", lambda data: Coordinator.from_bytes(data, metric), coordinator.to_bytes()
        ),
        Input("notes", _Note.from_bytes, _Note(reply=bytes(1000)).to_bytes()),
    ]


def mutant(data: bytes, chance: random.Random) -> bytes:
    """Return data with one to three random changes."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(6, len(changed))
        way = chance.randrange(5)
        if way == 0:
            changed[place] ^= 1 << chance.randrange(8)
        elif way == 1:
            changed[place] = chance.choice((0, 1, 255, 127, 128))
        elif way == 2:
            changed[place : place + 8] = chance.choice((2**16, 2**32, 2**62)).to_bytes(8, "little")
        elif way == 3:
            changed[place:place] = chance.randbytes(chance.randrange(1, 40))
        else:
            del changed[place : place + chance.randrange(1, 40)]
    return bytes(changed)


def resident(field: str) -> int:
    """Return the memory of this process in bytes as the kernel reports it; 0 if it does not."""
    if not STATUS.exists():
        return 0
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def decode(case: Input) -> None:
    """Decode an input. It may be refused."""
    with suppress(FederatedMetricError, ValueError):
        case.read(case.data)


def traced_peak(case: Input) -> int:
    """Return the most bytes that Python and numpy take."""
    tracemalloc.start()
    decode(case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def resident_peak(case: Input) -> int:
    """Return the most bytes by which the process grows, torch included."""
    before = resident("VmRSS")
    if before:
        RESET.write_text("5")
    decode(case)
    return resident("VmHWM") - before


class Worst:
    """For each kind of message, the input that takes the most memory beyond its allowance."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.kinds: dict[str, dict[str, float]] = {}

    def record(self, case: Input, peak: int) -> None:
        size = len(case.data)
        excess = peak - self.times * size
        kind = self.kinds.setdefault(case.name, {"inputs": 0, "excess": -math.inf})
        kind["inputs"] += 1
        if excess > kind["excess"]:
            kind.update(excess=excess, peak=peak, size=size)


def main(number: int, times: int) -> None:
    """Print, for each kind of message, the most memory beyond ``times`` the size of the input."""
    worst = Worst(times)
    for case in mutants(number, random.Random(number)):  # the first ones import modules, too
        worst.record(case, traced_peak(case))
    for case in hostile_inputs():
        worst.record(case, max(resident_peak(case), traced_peak(case)))
    sys.stdout.write(json.dumps(worst.kinds))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
