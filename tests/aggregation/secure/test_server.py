"""Server: it opens the exact sum of the survivors' vectors or nothing, and one secret a client."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from tests.aggregation.secure.federation import STAGES, Federation
from torchmetrics_fed.aggregation.secure import server
from torchmetrics_fed.aggregation.secure.shamir import Combiner
from torchmetrics_fed.errors import SecureAggregationError

OPENED: list[bytes] = []


class RecordingCombiner(Combiner):
    """Records every secret that the server reconstructs."""

    def combine(self, shares: Sequence[bytes]) -> bytes:
        OPENED.append(super().combine(shares))
        return OPENED[-1]


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server, "Combiner", RecordingCombiner)
    OPENED.clear()
    yield
    OPENED.clear()


def present_clients(federation: Federation) -> dict[str, list[str]]:
    """Return the clients that take part in each stage."""
    stages = ["advertise", "share", "mask", "answer"]
    if federation.config.signed:
        stages.append("sign")
    return {stage: federation.present(stage) for stage in stages}


def opens(federation: Federation, drops: Mapping[str, str]) -> bool:
    """Run with these drops, check the result, and return whether the sum was opened."""
    OPENED.clear()
    federation.drops = dict(drops)
    present = present_clients(federation)
    try:
        threshold = federation.config.threshold_for(len(present["advertise"]))
    except SecureAggregationError:
        threshold = len(federation.names) + 1
    if min(map(len, present.values())) < threshold:
        with pytest.raises(SecureAggregationError, match="Expected"):
            federation.run(drops)
        assert not OPENED
    else:
        total, survivors = federation.run(drops)
        assert list(survivors) == sorted(present["mask"])
        assert np.array_equal(total, federation.expected(survivors))
        assert len(OPENED) == len(present["share"])
    assert_one_secret_each(federation, present)
    for name, draws in federation.calls.items():
        assert draws <= (name in present["mask"])
    return bool(OPENED)


def assert_one_secret_each(federation: Federation, present: Mapping[str, list[str]]) -> None:
    """The server has opened the seeds of survivors, the keys of dropped clients, and no more."""
    for name, (key, seed) in federation.secrets.items():
        survived = name in present["mask"]
        dropped = name in present["share"] and not survived
        assert (seed in OPENED) == (bool(OPENED) and survived)
        assert (key in OPENED) == (bool(OPENED) and dropped)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 17, 64])
def test_the_sum_is_exact(count: int) -> None:
    assert opens(Federation([f"client {number}" for number in range(count)]), {})


@pytest.mark.parametrize("count", [3, 4, 9])
def test_the_signed_sum_is_exact(count: int) -> None:
    assert opens(Federation([f"client {number}" for number in range(count)], signed=True), {})


@pytest.mark.slow
def test_every_pattern_of_dropouts_of_four_clients() -> None:
    stages = [stage for stage in STAGES if stage != "sign"]
    opened = 0
    for pattern in product(stages, repeat=4):
        opened += opens(Federation("abcd", 3), dict(zip("abcd", pattern, strict=True)))
    all_stay = 1
    one_leaves_after_advertising = 4 * 3
    one_leaves_before = 4
    assert opened == all_stay + one_leaves_after_advertising + one_leaves_before


@pytest.mark.slow
def test_every_pattern_of_dropouts_of_four_signing_clients() -> None:
    opened = 0
    for pattern in product(STAGES, repeat=4):
        opened += opens(Federation("abcd", 3, signed=True), dict(zip("abcd", pattern, strict=True)))
    assert opened == 1 + 4 * 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_dropouts_of_64_clients(seed: int) -> None:
    generator = random.Random(seed)
    names = [f"{number:x}" for number in range(64)]
    leaving = generator.sample(names, [5, 12, 21, 40][seed])
    drops = {name: generator.choice(STAGES[:3] + STAGES[4:5]) for name in leaving}
    opened = opens(Federation(names, 16), drops)
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
    assert opens(federation, {})


def test_a_retry_has_fresh_keys_and_masks() -> None:
    first = Federation("abcd")
    with pytest.raises(SecureAggregationError, match="nothing is opened"):
        first.run({"c": "answer", "d": "answer"})
    retry = Federation("abcd")
    assert opens(retry, {})
    first_secrets = {secret for pair in first.secrets.values() for secret in pair}
    retry_secrets = {secret for pair in retry.secrets.values() for secret in pair}
    assert not first_secrets & retry_secrets
