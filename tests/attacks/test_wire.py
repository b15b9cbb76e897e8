"""Threats 9, 10 and 11: malformed, replayed and poisoned bytes, of everything that is sent or kept."""

from __future__ import annotations

import hashlib
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
EXACT = Spec(
    "binary", 1, ScoreGrid(bins=64)
)  # without noise the cells have shorter codes, in one of many ways
FLAT = Query(Tree.flat(64))
COUNTS = CELLS.abs()[..., :64]
PILOT, SECOND = Query(Tree((2,), (0, 9, 64)), 0.25), Query(Tree((2, 2), (0, 4, 9, 31, 64)), 0.75)
CHECKSUM = 32
BINDING, MARKS = 6, 39  # where the binding begins, and the marks of the fields
NAMES = MARKS + 8 * len(SPEC.digests) + 16  # where the round begins


def client_note() -> tuple[bytes, Callable[[bytes], bytes]]:
    metric = FederatedROC(quantiles=16, privacy=LocalDP(1.0), plan=PILOT)
    metric.update(torch.linspace(0, 1, 50), torch.arange(50) % 2)
    metric.share(round="round-7", query=PILOT)

    def read(data: bytes) -> bytes:
        return Evaluation.resumed(data, terms_of(metric)).suspended()

    return evaluation_of(metric).suspended(), read


def coordinator_notes() -> tuple[list[bytes], Callable[[bytes], bytes]]:
    """A coordinator that has not begun, in its first and in its second query, and at its end."""
    metric = FederatedROC(quantiles=16, privacy=LocalDP(1.0), plan=PILOT)
    clients = {
        name: FederatedROC(quantiles=16, privacy=LocalDP(1.0)) for name in ("ann", "ben", "Zoë")
    }
    coordinator = Coordinator(metric, round="round-7")
    notes = [coordinator.to_bytes()]
    while (query := coordinator.query) is not None:
        for name, client in clients.items():
            coordinator.receive(name, client.share(round="round-7", query=query))
            notes.append(coordinator.to_bytes())
        coordinator.advance()
    return [
        notes[0],
        notes[2],
        notes[4],
        coordinator.to_bytes(),
    ], lambda data: Coordinator.from_bytes(data, metric).to_bytes()


@cache
def families() -> dict[str, list[tuple[bytes, Callable[[bytes], bytes]]]]:
    """Payloads of each kind, and what reads one and writes it again."""

    def share(spec: Spec, query: Query) -> Callable[[bytes], bytes]:
        return lambda data: bytes(Share.from_bytes(data, spec, query))

    def release(data: bytes) -> bytes:
        return bytes(Release.from_bytes(data))

    def body(data: bytes) -> bytes:
        return release(data + hashlib.sha256(data).digest())[:-CHECKSUM]

    noisy = [
        SHARE,
        *(Share(SPEC, QUERY, cells, "round-7") for cells in (CELLS.flip(-1), CELLS * 2**50)),
    ]
    exact = [Share(EXACT, FLAT, counts) for counts in (COUNTS, COUNTS.flip(-1))]
    parts = (
        Sum(SPEC, PILOT, CELLS[..., :2].contiguous(), 3),
        Sum(SPEC, SECOND, CELLS[..., :6].contiguous(), 3),
    )
    notes, coordinator = coordinator_notes()
    releases = [bytes(Release.sum(noisy)), bytes(Release.sum(exact))]
    two_queries = bytes(Release(parts, "round-7"))
    return {
        "shares": [
            *((bytes(each), share(SPEC, QUERY)) for each in noisy),
            (bytes(exact[0]), share(EXACT, FLAT)),
            (bytes(Share(EXACT, FLAT, COUNTS // 20, "round-7")), share(EXACT, FLAT)),
        ],
        "queries": [
            (bytes(query), lambda data: bytes(Query.from_bytes(data)))
            for query in (QUERY, PILOT, SECOND)
        ],
        "releases": [(data, release) for data in (*releases, two_queries)],
        "bodies of releases": [(data[:-CHECKSUM], body) for data in releases],
        "bodies of releases of two queries": [(two_queries[:-CHECKSUM], body)],
        "clients": [client_note()],
        "coordinators": [(note, coordinator) for note in notes],
    }


CHECKED = ["releases"]
"""What ends with a checksum. A body is what stands before it: whoever changes it on purpose makes a new checksum."""
FAMILIES = ["shares", "queries", "bodies of releases", "bodies of releases of two queries"]
FAMILIES += ["clients", "coordinators", *CHECKED]


def mutants(payload: bytes, chance: random.Random) -> Iterator[bytes]:
    """Payloads with something wrong: one of each kind, again and again."""
    names, body = (
        min(start, len(payload) - 2)
        for start in (NAMES, len(payload) - chance.randrange(1, len(payload)))
    )
    while True:
        for start in (
            0,
            names,
            body,
        ):  # many bytes are digests, where every change is refused alike
            place = chance.randrange(start, len(payload))
            flipped = bytearray(payload)
            flipped[place] ^= 1 << chance.randrange(8)
            yield bytes(flipped)
            flipped[chance.randrange(start, len(payload))] = chance.randrange(256)
            yield bytes(flipped)
            flipped[chance.randrange(start, len(payload))] = chance.randrange(4)
            yield bytes(flipped)
            yield payload[:place] + chance.randbytes(chance.randrange(1, 9)) + payload[place:]
            yield payload[:place] + payload[place + chance.randrange(1, 9) :]
            yield payload[:place] + payload[place - chance.randrange(1, 40) :]  # something twice
        yield payload[: chance.randrange(len(payload))]
        yield payload + chance.randbytes(chance.randrange(1, 9))
        yield payload[:names] + chance.randbytes(chance.randrange(400))
        yield payload[:4] + chance.randbytes(2) + payload[6:]
        yield chance.randbytes(chance.randrange(400))
        yield pickle.dumps(chance.choice([SPEC, payload, Counter(payload), CELLS]))


@pytest.mark.parametrize("many", [3_000, pytest.param(100_000, marks=pytest.mark.audit)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mutant_has_one_encoding_or_is_refused(family: str, many: int) -> None:
    chance, outcomes = random.Random(many), Counter[str]()
    sources = [(read, mutants(payload, chance)) for payload, read in families()[family]]
    for turn in range(many):
        read, source = sources[turn % len(sources)]
        mutant = next(source)
        try:
            again = read(mutant)
        except FederatedMetricError as error:
            outcomes[type(error).__name__] += 1
        else:
            assert again == mutant
            outcomes["accepted"] += 1
    # the test has seen what it is about: other numbers, and rubbish; other codes of the same cells are in test_wire
    if family in CHECKED:
        assert outcomes["accepted"] == 0
    else:
        assert outcomes["accepted"] > many // 1000, outcomes
    assert outcomes["WireError"] > many // 1000, outcomes


def test_every_changed_bit_of_a_release_is_damage() -> None:
    """Of the header the error names the field; of all that follows it says that the file was damaged."""
    for payload, read in families()["releases"]:
        for place in range(len(payload)):
            for bit in range(8):
                changed = bytearray(payload)
                changed[place] ^= 1 << bit
                with pytest.raises(
                    WireError, match="magic|version|message" if place < 6 else "damaged"
                ):
                    read(bytes(changed))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_truncation_is_refused(family: str) -> None:
    for payload, read in families()[family]:
        assert read(payload) == payload
        for size in range(len(payload)):
            with pytest.raises((WireError, SpecMismatchError)):
                read(payload[:size])


@pytest.mark.parametrize("family", FAMILIES)
def test_pickle_bytes_are_not_opened(family: str) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("a pickle was opened",)

    for _, read in families()[family]:
        with pytest.raises(WireError, match="magic"):
            read(pickle.dumps(Trap()))


def test_a_session_names_every_query_once() -> None:
    note, read = families()["clients"][0]
    place = note.index(PILOT.digest)
    assert note[place - 1] == 1
    twice = note[: place - 1] + b"\2" + PILOT.digest + note[place:]
    with pytest.raises(WireError, match="Expected"):
        read(twice)


class Largest(TorchDispatchMode):
    """The most elements of a tensor that is made inside; what torch allocates, tracemalloc does not see."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def allocated(read: Callable[[], object]) -> int:
    """About how many bytes a refusal takes."""
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
    """A spec of many cells and a payload with few, whatever their encoding."""
    huge, query = Spec("multilabel", 2**15, ScoreGrid()), Query(Tree.flat(4096))
    assert 8 * 2**15 * 2 * 4096 == 2**31
    marks = [digest[:8] for digest in huge.digests.values()]
    for how in range(3):
        for body in (b"", bytes(100_000), b"\xff" * 100_000, b"\x40" * 100_000):
            head = (
                huge.binding(query),
                bytes([len(marks)]),
                *marks,
                bytes(16),
                pack_text(""),
                b"\0",
                bytes([how]),
            )
            claim = frame(Kind.SHARE, *head, body)
            assert allocated(partial(Share.from_bytes, claim, huge, query)) < 2_000_000


def release_of(spec: Spec, *sums: bytes, count: int | None = None) -> bytes:
    """The bytes of a release that no release has to allow."""
    head = (
        spec.digest,
        pack_block(spec.canonical),
        pack_text(""),
        bytes([0, len(sums) if count is None else count, 0]),
    )
    return sealed_frame(Kind.RELEASE, *head, *sums)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


HEAD = pack_block(bytes(FLAT))
ONCE = b"\1\0"  # one draw of a share's noise in each cell
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
    """A few hundred bytes can name 16 million bins. Nobody who has not sent as many cells gets that much memory."""
    spec = EXACT.canonical.replace(b'"bins":64', b'"bins":16777216')
    claim = sealed_frame(Kind.RELEASE, bytes(32), pack_block(spec), bytes(100))
    assert allocated(lambda: Release.from_bytes(claim)) < 2_000_000


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (0, "magic"),
        (4, "version 3 of the wire format but got version 252"),
        (5, "message SHARE"),
        (BINDING, "answers another"),
        (NAMES, "SHARE|encoding|cells"),
    ],
)
def test_each_field_changed_alone_is_refused_and_named(place: int, said: str) -> None:
    payload = bytearray(bytes(SHARE))
    payload[place] ^= 255
    with pytest.raises(WireError, match=said):
        Share.from_bytes(bytes(payload), SPEC, QUERY)


@pytest.mark.parametrize("kind", Kind)
def test_another_version_is_refused_and_both_are_named(kind: Kind) -> None:
    """For every kind of message, wherever it is read first."""
    for version in (0, VERSION - 1, VERSION + 1, 255):
        data = bytearray(sealed_frame(kind, bytes(100)))
        data[4] = version
        for read in (
            partial(Reader, kind=kind),
            partial(Reader, kind=kind, sealed=True),
            kind_of,
            contents,
        ):
            with pytest.raises(WireError, match=f"version {VERSION} .* but got version {version}"):
                read(bytes(data))


@pytest.mark.parametrize("bit", range(8))
def test_unknown_flags_are_refused(bit: int) -> None:
    """A later version may mean anything by them."""
    release = bytearray(families()["bodies of releases"][1][0])
    place = 6 + 32 + 8 + len(EXACT.canonical) + 1
    assert release[place : place + 3] == b"\0\1\0"
    release[place] = 1 << bit
    share = bytearray(bytes(Share(EXACT, FLAT, COUNTS)))
    share[NAMES + 1] = 1 << bit
    body = families()["bodies of releases"][1][1]
    if 1 << bit in (ReleaseFlag.SIMULATED, ReleaseFlag.ROWS_SKIPPED):
        assert body(bytes(release)) == bytes(release)
    else:
        with pytest.raises(WireError, match=r"flags|partial"):
            body(bytes(release))
    if 1 << bit == ReleaseFlag.ROWS_SKIPPED:
        assert Share.from_bytes(bytes(share), EXACT, FLAT).skips_bad
    else:
        with pytest.raises(WireError, match="flags"):
            Share.from_bytes(bytes(share), EXACT, FLAT)


def test_every_bit_of_the_binding_counts() -> None:
    """256 of them: none is left out of the comparison."""
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
    """What bytes cannot show alone, the sum does: the round, the id, the spec."""
    payload = bytes(SHARE)
    other_id = payload.replace(SHARE.id, bytes(16))
    another_round = payload.replace(b"round-7", b"round-6").replace(SHARE.id, bytes(16))
    assert Release.sum(map(received, (payload, other_id)), round="round-7").shares == 2
    for payloads in ((payload, payload), (payload, other_id, other_id)):
        with pytest.raises(DuplicateClientError, match="Expected every share once"):
            Release.sum(map(received, payloads), round="round-7")
    with pytest.raises(RoundMismatchError, match="'round-6'"):
        Release.sum(map(received, (payload, another_round)))
    with pytest.raises(RoundMismatchError, match="'round-7'"):
        Release.sum([received(payload)], round="round-8")
    other = Spec(
        "binary", 1, ScoreGrid(bins=64), DistributedDP(2.0, min_clients=3, trusted_aggregator=True)
    )
    with pytest.raises(SpecMismatchError, match=r"epsilon: expected 1\.0, got 2\.0"):
        Release.sum([received(payload), Share(other, QUERY, CELLS, "round-7")])
    with pytest.raises(SpecMismatchError, match="differ in privacy;"):
        Share.from_bytes(payload, other, QUERY)


@pytest.mark.parametrize("clients", [10, 100])
def test_what_one_client_at_the_bound_can_do_to_auroc(clients: int) -> None:
    """The worst data of m examples: p positives below all, q negatives above all. AUROC falls to

    A * P / (P + p) * N / (N + q), which is about 2 / clients where everybody has m examples of balanced classes; with
    few positives P a single client can do far more. A bound on examples is no defence against a rare class.
    """
    bound = 1_000
    honest = FederatedROC()
    generator = torch.Generator().manual_seed(5)
    target = torch.arange((clients - 1) * bound) % 2
    honest.update(
        (torch.randn(len(target), generator=generator) + 2 * target).sigmoid() * 0.9 + 0.05, target
    )
    rest, liar = honest.share(), FederatedROC()
    liar.update(torch.arange(bound) % 2.0, 1 - torch.arange(bound) % 2)
    honest_part = Release((Sum(rest.spec, rest.query, rest.cells, shares=clients - 1),))
    poisoned = Release.sum([honest_part, liar.share()], max_examples=bound)
    before = FederatedAUROC.from_release(Release.sum([rest])).compute().item()
    after = FederatedAUROC.from_release(poisoned).compute().item()
    assert after == pytest.approx(before * ((clients - 1) / clients) ** 2, abs=1e-6)
    liar.update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(ImpossibleCountsError, match="max_examples=1000"):
        Release.sum([liar.share()], max_examples=bound)
