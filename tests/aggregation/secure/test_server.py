"""The sum is that of the survivors' vectors, exactly, or is not opened; and never two kinds of secret of one client."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from tests.aggregation.secure.federation import STAGES, Federation
from torchmetrics_fed.aggregation.secure import server
from torchmetrics_fed.aggregation.secure.shamir import Combiner
from torchmetrics_fed.aggregation.secure.states import ClientState
from torchmetrics_fed.errors import SecureAggregationError

OPENED: list[bytes] = []


class RecordingCombiner(Combiner):
    """Notes every secret that the server reconstructs."""

    def combine(self, shares: Sequence[bytes]) -> bytes:
        OPENED.append(super().combine(shares))
        return OPENED[-1]


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server, "Combiner", RecordingCombiner)
    OPENED.clear()
    yield
    OPENED.clear()


def check(federation: Federation, drops: Mapping[str, str]) -> bool:
    """Run with these drops, compare with what should come out, and return whether the sum was opened."""
    OPENED.clear()
    signed = federation.config.signed
    federation.drops = dict(drops)
    there = {stage: federation.there(stage) for stage in STAGES[:-1] if signed or stage != "sign"}
    try:
        threshold = federation.config.threshold_for(len(there["advertise"]))
    except SecureAggregationError:
        threshold = len(federation.names) + 1
    if min(map(len, there.values())) < threshold:
        with pytest.raises(SecureAggregationError, match="Expected"):
            federation.run(drops)
        assert not OPENED
    else:
        total, survivors = federation.run(drops)
        assert list(survivors) == sorted(there["mask"])
        assert np.array_equal(total, federation.expected(survivors))
        assert len(OPENED) == len(there["share"])
    for name, (key, seed) in federation.secrets.items():
        assert (seed in OPENED) + (key in OPENED) <= 1, name
        if OPENED:
            assert (seed in OPENED) == (name in there["mask"])
            assert (key in OPENED) == (name in there["share"] and name not in there["mask"])
    assert all(
        calls == (name in there["mask"]) or not calls for name, calls in federation.calls.items()
    )
    return bool(OPENED)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 17, 64])
def test_the_sum_is_exact(count: int) -> None:
    assert check(Federation([f"client {number}" for number in range(count)]), {})


@pytest.mark.parametrize("count", [3, 4, 9])
def test_the_signed_sum_is_exact(count: int) -> None:
    assert check(Federation([f"client {number}" for number in range(count)], signed=True), {})


@pytest.mark.slow
def test_every_pattern_of_dropouts_of_four_clients() -> None:
    stages = [stage for stage in STAGES if stage != "sign"]
    patterns = list(product(stages, repeat=4))
    opened = sum(
        check(Federation("abcd", 3), dict(zip("abcd", pattern, strict=True)))
        for pattern in patterns
    )
    # 17: all stay or one leaves after advertising (1 + 4 * 3), or one before it and three stay (4)
    assert (len(patterns), opened) == (625, 17)


@pytest.mark.slow
def test_every_pattern_of_dropouts_of_four_signing_clients() -> None:
    opened = 0
    for pattern in product(STAGES, repeat=4):
        opened += check(Federation("abcd", 3, signed=True), dict(zip("abcd", pattern, strict=True)))
    assert opened == 1 + 4 * 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_dropouts_of_64_clients(seed: int) -> None:
    generator = random.Random(seed)
    names = [f"{number:x}" for number in range(64)]
    leaving = generator.sample(names, [5, 12, 21, 40][seed])
    drops = {name: generator.choice(STAGES[:3] + STAGES[4:5]) for name in leaving}
    opened = check(Federation(names, 16), drops)
    assert opened == (seed < 2) or seed == 2


def test_late_answers_still_open_the_sum() -> None:
    federation = Federation("abcd")
    federation.drops = {"c": "answer", "d": "answer"}
    federation.mask(federation.share(federation.advertise()))
    request = federation.request()
    federation.answer(request)
    with pytest.raises(
        SecureAggregationError,
        match="at least 3 of 4 clients to answer but got 2; nothing is opened",
    ):
        federation.server.sum()
    assert not OPENED
    federation.send("c", federation.clients["c"].unmask(request))
    total, survivors = federation.server.sum()
    assert np.array_equal(total, federation.expected("abcd"))
    total += 1  # the caller's copy
    assert np.array_equal(federation.server.sum()[0], federation.expected(survivors))


def test_sums_wrap_around() -> None:
    vectors = dict.fromkeys("abc", np.array([2**63 - 1, -(2**63), -1, 0]))
    federation = Federation("abc", 4, vectors=vectors)
    assert check(federation, {})


def test_secrets_go_when_they_are_no_longer_needed() -> None:
    federation = Federation("abc")
    boxes = federation.share(federation.advertise())
    federation.mask(boxes)
    client, stages = federation.clients["a"], [federation.clients["a"].state]
    progress = client._progress
    assert (progress.sealing, progress.masking, progress.seed, progress.agreed) == (
        b"",
        b"",
        b"",
        {},
    )
    client.unmask(federation.request())
    stages.append(client.state)
    assert client._progress.share_pairs == {}
    client.purge()
    assert [*stages, client.state] == [ClientState.MASKED, ClientState.ANSWERED, ClientState.PURGED]
    assert client._progress.answer == b""
    with pytest.raises(SecureAggregationError, match="PURGED"):
        client.unmask(federation.request())


def test_a_retry_has_fresh_keys_and_masks() -> None:
    first, again = Federation("abcd"), Federation("abcd")
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        first.run({"c": "answer", "d": "answer"})
    assert check(again, {})
    assert not {secret for pair in first.secrets.values() for secret in pair} & {
        secret for pair in again.secrets.values() for secret in pair
    }
