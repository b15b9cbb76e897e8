"""Threats 9, 10 and 11: malformed, replayed and poisoned shares."""

from __future__ import annotations

import pickle
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from torchmetrics_fed import DistributedDP, FederatedAUROC, FederatedROC, Release, ScoreGrid, Share, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import (
    DuplicateClientError,
    FederatedMetricError,
    ImpossibleCountsError,
    RoundMismatchError,
    SpecMismatchError,
    WireError,
)
from torchmetrics_fed.release.wire import FIELDS

SPEC = Spec("binary", 1, ScoreGrid(bins=64), Tree((4, 16)), DistributedDP(1.0, min_clients=3, trusted_aggregator=True))
CELLS = torch.tensor([(11 * i) % 29 - 6 for i in range(2 * 68)]).reshape(SPEC.shape)
SHARE = Share(SPEC, CELLS, "round-7", "a")
PAYLOADS: dict[type[Share | Release], list[bytes]] = {
    Share: [bytes(SHARE), bytes(Share(SPEC, CELLS * 2**58)), bytes(Share(SPEC, CELLS.abs() // 20, "round-7", "b"))],
    Release: [bytes(Release.sum([SHARE, Share(SPEC, CELLS.flip(-1), "round-7", "b"), Share(SPEC, CELLS, "round-7")]))],
}
EXACT = Spec("binary", 1, ScoreGrid(bins=64))  # without noise the cells are spelled shorter, in one of many ways
COUNTS = CELLS.abs()[..., :64]
SOURCES: list[tuple[type[Share | Release], Spec, bytes]] = [
    *((kind, SPEC, payload) for kind, payloads in PAYLOADS.items() for payload in payloads),
    (Share, EXACT, bytes(Share(EXACT, COUNTS, "round-7", "a"))),
    (Share, EXACT, bytes(Share(EXACT, COUNTS // 20))),
    (Release, EXACT, bytes(Release.sum([Share(EXACT, COUNTS), Share(EXACT, COUNTS.flip(-1))]))),
]
SLOTS = 7  # where the digests begin
NAMES = SLOTS + 16 * 8  # where the round begins


def slots(spec: Spec) -> list[str]:
    return [*FIELDS, *(name for name in spec.digests if name not in FIELDS)]


def mutants(payload: bytes, chance: random.Random) -> Iterator[bytes]:
    """Payloads with something wrong: one of each kind, again and again."""
    body = len(payload) - chance.randrange(1, len(payload) - NAMES)
    while True:
        for start in (0, NAMES, body):  # most of a payload is digests, where every change is refused alike
            place = chance.randrange(start, len(payload))
            flipped = bytearray(payload)
            flipped[place] ^= 1 << chance.randrange(8)
            yield bytes(flipped)
            flipped[chance.randrange(start, len(payload))] = chance.randrange(256)
            yield bytes(flipped)
            yield payload[:place] + chance.randbytes(chance.randrange(1, 9)) + payload[place:]
            yield payload[:place] + payload[place + chance.randrange(1, 9) :]
        yield payload[: chance.randrange(len(payload))]
        yield payload + chance.randbytes(chance.randrange(1, 9))
        yield payload[:NAMES] + chance.randbytes(chance.randrange(400))
        yield payload[:6] + bytes([chance.randrange(4)]) + payload[7:]
        yield payload[:4] + chance.randbytes(3) + payload[7:]
        yield chance.randbytes(chance.randrange(400))
        yield pickle.dumps(chance.choice([SPEC, payload, Counter(payload), CELLS]))


@pytest.mark.parametrize("many", [5_000, pytest.param(100_000, marks=pytest.mark.audit)])
def test_a_mutant_is_canonical_or_refused(many: int) -> None:
    chance, outcomes = random.Random(many), Counter[str]()
    sources = [(kind, spec, mutants(payload, chance)) for kind, spec, payload in SOURCES]
    for turn in range(many):
        kind, spec, source = sources[turn % len(sources)]
        mutant = next(source)
        try:
            accepted = kind.from_bytes(mutant, spec)
        except FederatedMetricError as error:
            outcomes[type(error).__name__] += 1
        else:
            assert bytes(accepted) == mutant
            outcomes["accepted"] += 1
    # the test has seen what it is about: other counts, other specs, and rubbish; other spellings are in test_wire
    assert all(outcomes[name] > many // 200 for name in ("accepted", "SpecMismatchError", "WireError"))


@pytest.mark.parametrize("kind", PAYLOADS)
def test_every_truncation_is_refused(kind: type[Share | Release]) -> None:
    for payload in PAYLOADS[kind]:
        for size in range(len(payload)):
            with pytest.raises(WireError):
                kind.from_bytes(payload[:size], SPEC)


def test_pickle_bytes_are_not_opened() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("a pickle was opened",)

    with pytest.raises(WireError, match="magic"):
        Share.from_bytes(pickle.dumps(Trap()), SPEC)


def allocated(payload: bytes, spec: Spec, kind: type[Share | Release]) -> int:
    tracemalloc.start()
    with pytest.raises(WireError):
        kind.from_bytes(payload, spec)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_claim_of_2_gib_allocates_next_to_nothing() -> None:
    """By a spec of so many cells and a payload with few, whatever their spelling; by so many clients; by long codes."""
    huge, small = Spec("multilabel", 2**15, ScoreGrid()), Spec("multilabel", 1, ScoreGrid())
    assert 8 * 2**15 * 2 * 4096 == 2**31
    header = bytearray(bytes(Share(small, torch.zeros(small.shape, dtype=torch.int64)))[: NAMES + 2])
    for slot, name in enumerate(slots(huge)):
        header[SLOTS + 8 * slot : SLOTS + 8 * slot + 8] = huge.digests[name][:8]
    for spelling in range(3):
        header[6] = spelling
        for body in (b"", bytes(100_000), b"\xff" * 100_000, b"\x40" * 100_000):
            assert allocated(bytes(header) + body, huge, Share) < 2_000_000
    release = PAYLOADS[Release][0]
    numbers = NAMES + 1 + len("round-7")
    for shares, clients in ((2**28, 2**28), (2**63 - 1, 2**60), (2**64 - 1, 2**64 - 1), (2**28, 2**29)):
        claim = release[:numbers] + struct.pack("<QQ", shares, clients) + release[numbers + 16 :]
        assert allocated(claim, SPEC, Release) < 2_000_000


@pytest.mark.parametrize(
    ("place", "told"),
    [(0, "magic"), (4, "version 1 of the wire format but got 254"), (5, "kind"), (6, "cells"), (NAMES, "round|client")],
)
def test_each_field_changed_alone_is_refused_and_named(place: int, told: str) -> None:
    payload = bytearray(bytes(SHARE))
    payload[place] ^= 255
    with pytest.raises(WireError, match=told):
        Share.from_bytes(bytes(payload), SPEC)


def test_each_digest_changed_alone_is_refused_and_named() -> None:
    names = slots(SPEC)
    names += ["a field that this version does not know"] * (16 - len(names))
    for slot, name in enumerate(names):
        for byte in range(8):
            payload = bytearray(bytes(SHARE))
            payload[SLOTS + 8 * slot + byte] ^= 1
            with pytest.raises(SpecMismatchError, match=rf"differ in {name};"):
                Share.from_bytes(bytes(payload), SPEC)


def received(payload: bytes) -> Share:
    return Share.from_bytes(payload, SPEC)


def test_replays_and_mixtures_are_refused() -> None:
    """What header fields cannot show alone, the sum does: the round, the client, the spec."""
    payload = bytes(SHARE)
    renamed = payload.replace(b"\x01a", b"\x01b", 1)
    another_round = payload.replace(b"round-7", b"round-6")
    assert Release.sum(map(received, (payload, renamed)), round="round-7").shares == 2
    for payloads in ((payload, payload), (payload, renamed, renamed)):
        with pytest.raises(DuplicateClientError, match=r"client '[ab]'"):
            Release.sum(map(received, payloads), round="round-7")
    with pytest.raises(RoundMismatchError, match="'round-6'"):
        Release.sum(map(received, (payload, another_round)))
    with pytest.raises(RoundMismatchError, match="'round-7'"):
        Release.sum([received(payload)], round="round-8")
    other = Spec(
        "binary", 1, ScoreGrid(bins=64), Tree((4, 16)), DistributedDP(2.0, min_clients=3, trusted_aggregator=True)
    )
    with pytest.raises(SpecMismatchError, match="privacy"):
        Release.sum([received(payload), Share(other, CELLS, "round-7", "b")])
    with pytest.raises(SpecMismatchError, match="differ in privacy;"):
        Share.from_bytes(payload, other)


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
    honest.update((torch.randn(len(target), generator=generator) + 2 * target).sigmoid() * 0.9 + 0.05, target)
    rest, liar = honest.share(), FederatedROC()
    liar.update(torch.arange(bound) % 2.0, 1 - torch.arange(bound) % 2)
    poisoned = Release.sum([Release(rest.spec, rest.cells, shares=clients - 1), liar.share()], max_examples=bound)
    before = FederatedAUROC.from_release(Release.sum([rest])).compute().item()
    after = FederatedAUROC.from_release(poisoned).compute().item()
    assert after == pytest.approx(before * ((clients - 1) / clients) ** 2, abs=1e-6)
    liar.update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(ImpossibleCountsError, match="max_examples=1000"):
        Release.sum([liar.share()], max_examples=bound)
