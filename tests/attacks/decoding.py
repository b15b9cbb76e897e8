"""Run as a program: decode hostile inputs, and print by how much memory each kind of message exceeds its input.

A process of its own, because what torch allocates is seen in the resident memory only, which other tests move, too.
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
from typing import Any, NamedTuple

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


def read_client(data: bytes) -> Any:
    return Evaluation.resumed(data, AGREED)


def release_of(spec: Spec, how: int, packed: bytes, query: Query = ALL_BINS) -> bytes:
    """A release of one sum with any bytes as cells."""
    head = [
        spec.digest,
        pack_block(spec.canonical),
        pack_text(""),
        b"\0\1\0",
        pack_block(bytes(query)),
    ]
    numbers = (3).to_bytes(8, "little") + (1).to_bytes(2, "little") + pack_block(b"")
    return sealed_frame(Kind.RELEASE, *head, numbers, bytes([how]), pack_block(packed))


def share_of(spec: Spec, how: int, packed: bytes) -> bytes:
    marks = [digest[:8] for digest in spec.digests.values()]
    head = [spec.binding(ALL_BINS), bytes([len(marks)]), *marks, bytes(16), pack_text(""), b"\0"]
    return frame(Kind.SHARE, *head, bytes([how]), packed)


def coordinator_of(share: Share, senders: int) -> bytes:
    """The state of a coordinator that has received shares, each of its own sender."""
    coordinator = Coordinator(AGREED, round="1")
    coordinator.receive("a", share)
    for number in range(1, senders):
        empty = torch.zeros(WIDE.shape(ALL_BINS), dtype=torch.int64)
        coordinator.receive(f"b{number}", Share(WIDE, ALL_BINS, empty, "1"))
    return coordinator.to_bytes()


def coordinator_of_names(count: int, ids: int) -> bytes:
    """The state of a coordinator with many short names, and a sum of as many ids as said."""
    part = Sum(
        WIDE,
        ALL_BINS,
        torch.zeros(WIDE.shape(ALL_BINS), dtype=torch.int64),
        shares=count,
        ids=b"".join(number.to_bytes(16, "big") for number in range(ids)),
    )
    names = [pack_text(f"{number:x}") for number in range(count)]
    listed = count.to_bytes(4, "little") + b"".join(sorted(names))
    head = [WIDE.digest, pack_text("1"), b"\0\0\1", part.pack(), pack_block(bytes(ALL_BINS))]
    return frame(Kind.COORDINATOR, *head, bytes(4), listed)


def made_up() -> Iterator[Input]:
    """Inputs that were made to take much memory."""
    for density in (0.0, 0.9):
        cells = counts(density)
        share = Share(WIDE, ALL_BINS, cells, "1")
        release = bytes(Release((Sum(WIDE, ALL_BINS, cells),)))
        yield Input("release", Release.from_bytes, release)
        yield Input("release", contents, release)
        yield Input("share", read_share, bytes(share))
        yield Input("coordinator", read_coordinator, coordinator_of(share, 2))
        packed = rice.pack(cells.reshape(-1).numpy())
        note = frame(
            Kind.CLIENT,
            WIDE.digest,
            pack_text("a"),
            pack_text(""),
            b"\1",
            bytes(32),
            bytes([packed[0]]),
            packed[1],
        )
        yield Input("client", read_client, note)
    one_byte_for_64_zeros = CELLS // 64
    half_a_byte_each = CELLS // 64 * 33
    for length in (one_byte_for_64_zeros, half_a_byte_each):
        for filling in (0x00, 0x03, 0xFF):
            for how in (rice.UNSIGNED, rice.SIGNED):
                packed_bytes = bytes([filling]) * length
                for spec in (WIDE, NOISY):
                    yield Input("release", Release.from_bytes, release_of(spec, how, packed_bytes))
                yield Input("share", read_share, share_of(WIDE, how, packed_bytes))
                yield Input("share", read_noisy_share, share_of(NOISY, how, packed_bytes))
    yield Input("release", Release.from_bytes, release_of(WIDE, rice.FIXED, bytes(8 * CELLS)))
    for ids in (0, 100_000):
        yield Input("coordinator", read_coordinator, coordinator_of_names(100_000, ids))
    huge = Spec("multilabel", 2**40, ScoreGrid(bins=BINS))
    yield Input("release", Release.from_bytes, release_of(huge, rice.UNSIGNED, bytes(2**20)))
    yield from queries()
    yield from specs()
    blocks = [pack_block(bytes(2**20)) for _ in range(5)]
    yield Input("notes", _Note.from_bytes, frame(Kind.NOTES, pack_block(b"0x1p+0"), *blocks))


def queries() -> Iterator[Input]:
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
    """JSON that takes more memory than it has bytes."""
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


def mutated(many: int, chance: random.Random) -> Iterator[Input]:
    """Honest messages with something changed; releases with the checksum of the change."""
    spec = Spec("binary", 1, ScoreGrid(bins=1024))
    query = spec.all_bins
    cells = torch.randint(0, 3, spec.shape(query))
    placed = Query(Tree((4, 4), tuple(range(0, 1025, 64))), 0.25)
    metric = FederatedROC(privacy=LocalDP(1.0), plan="adaptive")
    coordinator = Coordinator(metric, round="1")
    metric.update(torch.rand(100), torch.arange(100) % 2)
    assert coordinator.query is not None
    coordinator.receive("ann", metric.share(round="1", query=coordinator.query))
    sources = [
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
    for turn in range(many):
        source = sources[turn % len(sources)]
        changed = mutant(source.data, chance)
        if source.name == "release" and turn % 2:
            changed = changed[:-32] + hashlib.sha256(changed[:-32]).digest()
        yield source._replace(data=changed)


def mutant(data: bytes, chance: random.Random) -> bytes:
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
    """Bytes of memory of this process by the kernel's word; 0 where there is none."""
    if not STATUS.exists():
        return 0
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def decode(case: Input) -> None:
    with suppress(FederatedMetricError, ValueError):
        case.read(case.data)


def traced_peak(case: Input) -> int:
    """How many bytes Python and numpy take at most."""
    tracemalloc.start()
    decode(case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def resident_peak(case: Input) -> int:
    """By how many bytes the process grows at most, with what torch takes."""
    before = resident("VmRSS")
    if before:
        RESET.write_text("5")
    decode(case)
    return resident("VmHWM") - before


def main(many: int, times: int) -> None:
    """Print, for each kind of message, the input that takes the most memory beyond ``times`` its size."""
    worst: dict[str, dict[str, float]] = {}
    chance = random.Random(many)

    def note(case: Input, peak: int) -> None:
        excess = peak - times * len(case.data)
        kind = worst.setdefault(case.name, {"inputs": 0, "excess": -math.inf})
        kind["inputs"] += 1
        if excess > kind["excess"]:
            kind.update(excess=excess, peak=peak, size=len(case.data))

    for case in mutated(many, chance):  # the first ones import what is imported on first use
        note(case, traced_peak(case))
    for case in made_up():
        note(case, max(resident_peak(case), traced_peak(case)))
    sys.stdout.write(json.dumps(worst))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
