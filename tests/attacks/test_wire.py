"""Threats 9, 10 and 11: malformed, replayed and poisoned bytes of every message and note."""

from __future__ import annotations

import hashlib
import math
import pickle
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchmetrics_fed import (
    Coordinator,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    LocalDP,
    Query,
    Release,
    ScoreGrid,
    Share,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import (
    DuplicateClientError,
    FederatedMetricError,
    ImpossibleCountsError,
    RoundMismatchError,
    SpecMismatchError,
    WireError,
)
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.release import contents
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.release.wire import (
    VERSION,
    Kind,
    Reader,
    frame,
    kind_of,
    pack_block,
    pack_text,
    sealed_frame,
)

SPEC = Spec(
    "binary", 1, ScoreGrid(bins=64), DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
)
QUERY = Query(Tree((4, 16)))
CELLS = torch.tensor([(11 * i) % 29 - 6 for i in range(2 * 68)]).reshape(SPEC.shape(QUERY))
SHARE = Share(SPEC, QUERY, CELLS, "round-7")
EXACT = Spec("binary", 1, ScoreGrid(bins=64))
"""Without noise the cells have shorter codes."""
FLAT = Query(Tree.flat(64))
COUNTS = CELLS.abs()[..., :64]
PILOT = Query(Tree((2,), (0, 9, 64)), 0.25)
SECOND = Query(Tree((2, 2), (0, 4, 9, 31, 64)), 0.75)

CHECKSUM = 32
"""Bytes of the checksum of a release."""
BINDING = 6
"""The place in a share where the binding begins."""
MARKS = 39
"""The place in a share where the marks of the fields begin."""
NAMES = MARKS + 8 * len(SPEC.digests) + 16
"""The place in a share where the round begins."""

Rewrite = Callable[[bytes], bytes]
"""Reads a message, and writes it again."""


def metric_of(plan: Query | None = PILOT) -> FederatedROC:
    return FederatedROC(quantiles=16, privacy=LocalDP(1.0), plan=plan)


def rewrite_share(data: bytes) -> bytes:
    return bytes(Share.from_bytes(data, SPEC, QUERY))


def rewrite_exact_share(data: bytes) -> bytes:
    return bytes(Share.from_bytes(data, EXACT, FLAT))


def rewrite_query(data: bytes) -> bytes:
    return bytes(Query.from_bytes(data))


def rewrite_release(data: bytes) -> bytes:
    return bytes(Release.from_bytes(data))


def rewrite_body(data: bytes) -> bytes:
    """Rewrite a release without its checksum."""
    return rewrite_release(data + hashlib.sha256(data).digest())[:-CHECKSUM]


def rewrite_client(data: bytes) -> bytes:
    return Evaluation.resumed(data, terms_of(metric_of())).suspended()


def rewrite_coordinator(data: bytes) -> bytes:
    return Coordinator.from_bytes(data, metric_of()).to_bytes()


def client_note() -> bytes:
    """Return a client between two queries."""
    metric = metric_of()
    metric.update(torch.linspace(0, 1, 50), torch.arange(50) % 2)
    metric.share(round="round-7", query=PILOT)
    return evaluation_of(metric).suspended()


def coordinator_notes() -> list[bytes]:
    """Return a coordinator before, in its first and its second query, and at its end."""
    clients = {name: metric_of(plan=None) for name in ("ann", "ben", "Zoë")}
    coordinator = Coordinator(metric_of(), round="round-7")
    notes = [coordinator.to_bytes()]
    while (query := coordinator.query) is not None:
        for name, client in clients.items():
            coordinator.receive(name, client.share(round="round-7", query=query))
            notes.append(coordinator.to_bytes())
        coordinator.advance()
    return [notes[0], notes[2], notes[4], coordinator.to_bytes()]


@cache
def families() -> dict[str, list[tuple[bytes, Rewrite]]]:
    """Return payloads of each kind, with the function that rewrites them."""
    noisy = [
        SHARE,
        Share(SPEC, QUERY, CELLS.flip(-1), "round-7"),
        Share(SPEC, QUERY, CELLS * 2**50, "round-7"),
    ]
    exact = [Share(EXACT, FLAT, COUNTS), Share(EXACT, FLAT, COUNTS.flip(-1))]
    sparse = Share(EXACT, FLAT, COUNTS // 20, "round-7")
    pilot = Sum(SPEC, PILOT, CELLS[..., :2].contiguous(), 3)
    second = Sum(SPEC, SECOND, CELLS[..., :6].contiguous(), 3)
    two_queries = bytes(Release((pilot, second), "round-7"))
    releases = [bytes(Release.sum(noisy)), bytes(Release.sum(exact))]
    shares: list[tuple[bytes, Rewrite]] = [(bytes(share), rewrite_share) for share in noisy]
    shares += [(bytes(share), rewrite_exact_share) for share in (exact[0], sparse)]
    return {
        "shares": shares,
        "queries": [(bytes(query), rewrite_query) for query in (QUERY, PILOT, SECOND)],
        "releases": [(data, rewrite_release) for data in (*releases, two_queries)],
        "bodies of releases": [(data[:-CHECKSUM], rewrite_body) for data in releases],
        "bodies of releases of two queries": [(two_queries[:-CHECKSUM], rewrite_body)],
        "clients": [(client_note(), rewrite_client)],
        "coordinators": [(note, rewrite_coordinator) for note in coordinator_notes()],
    }


SEALED = "releases"
"""The family that ends with a checksum. An attacker who changes a body makes a new checksum."""
FAMILIES = [
    "shares",
    "queries",
    "bodies of releases",
    "bodies of releases of two queries",
    "clients",
    "coordinators",
    SEALED,
]


def mutants(payload: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield payloads with something wrong: one of each kind, again and again.

    Many bytes are digests, where every change is refused alike. So changes begin at three places.
    """
    names = min(NAMES, len(payload) - 2)
    body = min(len(payload) - chance.randrange(1, len(payload)), len(payload) - 2)
    while True:
        for start in (0, names, body):
            yield from changed_after(payload, start, chance)
        yield payload[: chance.randrange(len(payload))]
        yield payload + chance.randbytes(chance.randrange(1, 9))
        yield payload[:names] + chance.randbytes(chance.randrange(400))
        yield payload[:4] + chance.randbytes(2) + payload[6:]
        yield chance.randbytes(chance.randrange(400))
        yield pickle.dumps(chance.choice([SPEC, payload, Counter(payload), CELLS]))


def changed_after(payload: bytes, start: int, chance: random.Random) -> Iterator[bytes]:
    """Yield payloads that were changed at random places after a start."""
    place = chance.randrange(start, len(payload))
    changed = bytearray(payload)
    changed[place] ^= 1 << chance.randrange(8)
    yield bytes(changed)
    changed[chance.randrange(start, len(payload))] = chance.randrange(256)
    yield bytes(changed)
    changed[chance.randrange(start, len(payload))] = chance.randrange(4)
    yield bytes(changed)
    yield payload[:place] + chance.randbytes(chance.randrange(1, 9)) + payload[place:]
    yield payload[:place] + payload[place + chance.randrange(1, 9) :]
    yield payload[:place] + payload[place - chance.randrange(1, 40) :]  # something twice


@pytest.mark.parametrize("number", [3_000, pytest.param(100_000, marks=pytest.mark.audit)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mutant_has_one_encoding_or_is_refused(family: str, number: int) -> None:
    """The outcomes show that the test has power: mutants are read, and others are refused."""
    chance = random.Random(number)
    outcomes = Counter[str]()
    sources = [(rewrite, mutants(payload, chance)) for payload, rewrite in families()[family]]
    for turn in range(number):
        rewrite, source = sources[turn % len(sources)]
        mutant = next(source)
        try:
            rewritten = rewrite(mutant)
        except FederatedMetricError as error:
            outcomes[type(error).__name__] += 1
        else:
            assert rewritten == mutant
            outcomes["accepted"] += 1
    if family == SEALED:
        assert outcomes["accepted"] == 0
    else:
        assert outcomes["accepted"] > number // 1000, outcomes
    assert outcomes["WireError"] > number // 1000, outcomes


def test_every_changed_bit_of_a_release_is_damage() -> None:
    """In the header the error names the field; behind it the error says that there is damage."""
    for payload, rewrite in families()[SEALED]:
        for place in range(len(payload)):
            message = "magic|version|message" if place < 6 else "damaged"
            for bit in range(8):
                changed = bytearray(payload)
                changed[place] ^= 1 << bit
                with pytest.raises(WireError, match=message):
                    rewrite(bytes(changed))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_truncation_is_refused(family: str) -> None:
    for payload, rewrite in families()[family]:
        assert rewrite(payload) == payload
        for size in range(len(payload)):
            with pytest.raises((WireError, SpecMismatchError)):
                rewrite(payload[:size])


class Trap:
    """A pickle of it fails the test when it is opened."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


@pytest.mark.parametrize("family", FAMILIES)
def test_pickle_bytes_are_not_opened(family: str) -> None:
    for _, rewrite in families()[family]:
        with pytest.raises(WireError, match="magic"):
            rewrite(pickle.dumps(Trap()))


def test_a_client_names_every_query_once() -> None:
    note = client_note()
    place = note.index(PILOT.digest)
    assert note[place - 1] == 1
    twice = note[: place - 1] + b"\2" + PILOT.digest + note[place:]
    with pytest.raises(WireError, match="Expected"):
        rewrite_client(twice)


class Largest(TorchDispatchMode):
    """Records the largest tensor that is made inside. tracemalloc does not see tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def allocated(read: Callable[[], object]) -> int:
    """Return about how many bytes a refusal takes."""
    with Largest():
        torch.zeros(1)  # torch imports much the first time
    largest = Largest()
    tracemalloc.start()
    with largest, pytest.raises(FederatedMetricError):
        read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return max(peak, 8 * largest.elements)


def test_a_share_that_claims_2_gib_allocates_next_to_nothing() -> None:
    """The spec has many cells and the payload few, in any encoding."""
    huge = Spec("multilabel", 2**15, ScoreGrid())
    query = Query(Tree.flat(4096))
    assert 8 * math.prod(huge.shape(query)) == 2**31
    marks = [digest[:8] for digest in huge.digests.values()]
    for encoding in range(3):
        for body in (b"", bytes(100_000), b"\xff" * 100_000, b"\x40" * 100_000):
            claim = frame(
                Kind.SHARE,
                huge.binding(query),
                bytes([len(marks)]),
                *marks,
                bytes(16),
                pack_text(""),
                b"\0",
                bytes([encoding]),
                body,
            )
            assert allocated(partial(Share.from_bytes, claim, huge, query)) < 2_000_000


def release_of(spec: Spec, *sums: bytes, count: int | None = None) -> bytes:
    """Return the bytes of a release, also of one that is not allowed."""
    if count is None:
        count = len(sums)
    return sealed_frame(
        Kind.RELEASE,
        spec.digest,
        pack_block(spec.canonical),
        pack_text(""),
        bytes([0, count, 0]),
        *sums,
    )


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


HEAD = pack_block(bytes(FLAT))
ONCE = b"\1\0"
"""One draw of a share's noise in each cell."""
CLAIMS = {
    "shares": release_of(
        EXACT, HEAD + number(2**64 - 1) + ONCE + number(0) + b"\0" + pack_block(bytes(1024))
    ),
    "ids": release_of(EXACT, HEAD + number(2**28) + ONCE + number(2**32) + bytes(100)),
    "more ids": release_of(EXACT, HEAD + number(2**63 - 1) + ONCE + number(2**64 - 1) + bytes(100)),
    "cells": release_of(
        EXACT, HEAD + number(3) + ONCE + number(0) + b"\0" + number(2**40) + bytes(100)
    ),
    "a query": release_of(EXACT, number(2**40) + bytes(100)),
    "leaves": release_of(EXACT, pack_block(bytes(Query(Tree((2**24,))))) + bytes(100)),
    "sums": release_of(EXACT, Sum(EXACT, FLAT, COUNTS).pack(), count=255),
    "classes": release_of(
        Spec("multilabel", 2**40, ScoreGrid(bins=64)),
        HEAD + number(3) + ONCE + number(0) + b"\1\0\0",
    ),
    "a spec": sealed_frame(Kind.RELEASE, bytes(32), number(2**40), bytes(100)),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_release_that_claims_much_allocates_next_to_nothing(claim: str) -> None:
    assert allocated(lambda: Release.from_bytes(CLAIMS[claim])) < 2_000_000


def test_a_grid_that_is_claimed_is_not_made() -> None:
    """A few hundred bytes can name 16 million bins, but they do not get as much memory."""
    spec = EXACT.canonical.replace(b'"bins":64', b'"bins":16777216')
    claim = sealed_frame(Kind.RELEASE, bytes(32), pack_block(spec), bytes(100))
    assert allocated(lambda: Release.from_bytes(claim)) < 2_000_000


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (0, "magic"),
        (4, "version 3 of the wire format but got version 252"),
        (5, "message SHARE"),
        (BINDING, "answers another"),
        (NAMES, "SHARE|encoding|cells"),
    ],
)
def test_each_field_changed_alone_is_refused_and_named(place: int, message: str) -> None:
    payload = bytearray(bytes(SHARE))
    payload[place] ^= 255
    with pytest.raises(WireError, match=message):
        Share.from_bytes(bytes(payload), SPEC, QUERY)


@pytest.mark.parametrize("kind", Kind)
def test_another_version_is_refused_and_both_are_named(kind: Kind) -> None:
    """This holds for every kind of message, and for every function that reads it first."""
    readers: list[Callable[[bytes], object]] = [
        partial(Reader, kind=kind),
        partial(Reader, kind=kind, sealed=True),
        kind_of,
        contents,
    ]
    for version in (0, VERSION - 1, VERSION + 1, 255):
        data = bytearray(sealed_frame(kind, bytes(100)))
        data[4] = version
        for read in readers:
            with pytest.raises(WireError, match=f"version {VERSION} .* but got version {version}"):
                read(bytes(data))


@pytest.mark.parametrize("bit", range(8))
def test_unknown_flags_of_a_release_are_refused(bit: int) -> None:
    """A later version may mean anything by them."""
    body, _ = families()["bodies of releases"][1]
    release = bytearray(body)
    place = 6 + 32 + 8 + len(EXACT.canonical) + 1
    assert release[place : place + 3] == b"\0\1\0"
    release[place] = 1 << bit
    if 1 << bit in (ReleaseFlag.SIMULATED, ReleaseFlag.ROWS_SKIPPED):
        assert rewrite_body(bytes(release)) == bytes(release)
    else:
        with pytest.raises(WireError, match=r"flags|partial"):
            rewrite_body(bytes(release))


@pytest.mark.parametrize("bit", range(8))
def test_unknown_flags_of_a_share_are_refused(bit: int) -> None:
    share = bytearray(bytes(Share(EXACT, FLAT, COUNTS)))
    share[NAMES + 1] = 1 << bit
    if 1 << bit == ReleaseFlag.ROWS_SKIPPED:
        assert Share.from_bytes(bytes(share), EXACT, FLAT).skips_bad
    else:
        with pytest.raises(WireError, match="flags"):
            Share.from_bytes(bytes(share), EXACT, FLAT)


def test_every_bit_of_the_binding_counts() -> None:
    """All 256 bits are compared."""
    for bit in range(8 * 32):
        payload = bytearray(bytes(SHARE))
        payload[BINDING + bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match="answers another"):
            Share.from_bytes(bytes(payload), SPEC, QUERY)


def test_each_mark_changed_alone_is_refused_and_named() -> None:
    for slot, name in enumerate(SPEC.digests):
        for byte in range(8):
            payload = bytearray(bytes(SHARE))
            payload[MARKS + 8 * slot + byte] ^= 1
            with pytest.raises(SpecMismatchError, match=rf"differ in {name};"):
                Share.from_bytes(bytes(payload), SPEC, QUERY)


def received(payload: bytes) -> Share:
    return Share.from_bytes(payload, SPEC, QUERY)


def test_replays_and_mixtures_are_refused() -> None:
    """The sum refuses what single bytes cannot show: another round, a repeated id."""
    payload = bytes(SHARE)
    second = payload.replace(SHARE.id, bytes(16))
    old_round = second.replace(b"round-7", b"round-6")
    assert Release.sum(map(received, (payload, second)), round="round-7").shares == 2
    for payloads in ((payload, payload), (payload, second, second)):
        with pytest.raises(DuplicateClientError, match="Expected every share once"):
            Release.sum(map(received, payloads), round="round-7")
    with pytest.raises(RoundMismatchError, match="'round-6'"):
        Release.sum(map(received, (payload, old_round)))
    with pytest.raises(RoundMismatchError, match="'round-7'"):
        Release.sum([received(payload)], round="round-8")


def test_shares_of_another_epsilon_are_refused() -> None:
    privacy = DistributedDP(2.0, min_clients=3, trusted_aggregator=True)
    spec = Spec("binary", 1, ScoreGrid(bins=64), privacy)
    with pytest.raises(SpecMismatchError, match=r"epsilon: expected 1\.0, got 2\.0"):
        Release.sum([SHARE, Share(spec, QUERY, CELLS, "round-7")])
    with pytest.raises(SpecMismatchError, match="differ in privacy;"):
        Share.from_bytes(bytes(SHARE), spec, QUERY)


@pytest.mark.parametrize("clients", [10, 100])
def test_the_harm_of_one_client_at_the_bound_to_auroc(clients: int) -> None:
    """The worst data of m examples: p positives below all scores, q negatives above all scores.

    AUROC falls to A * P / (P + p) * N / (N + q). It falls by about 2 / clients where every client
    has m examples of balanced classes; with few positives P one client can do far more. A bound on
    examples does not protect a rare class.
    """
    bound = 1_000
    generator = torch.Generator().manual_seed(5)
    target = torch.arange((clients - 1) * bound) % 2
    logits = torch.randn(len(target), generator=generator) + 2 * target
    honest = FederatedROC()
    honest.update(logits.sigmoid() * 0.9 + 0.05, target)
    share = honest.share()
    liar = FederatedROC()
    liar.update(torch.arange(bound) % 2.0, 1 - torch.arange(bound) % 2)
    honest_part = Release((Sum(share.spec, share.query, share.cells, shares=clients - 1),))
    poisoned = Release.sum([honest_part, liar.share()], max_examples=bound)
    before = FederatedAUROC.from_release(Release.sum([share])).compute().item()
    after = FederatedAUROC.from_release(poisoned).compute().item()
    assert after == pytest.approx(before * ((clients - 1) / clients) ** 2, abs=1e-6)
    liar.update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(ImpossibleCountsError, match="max_examples=1000"):
        Release.sum([liar.share()], max_examples=bound)
