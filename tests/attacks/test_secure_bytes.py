"""Threat 9: messages of secure aggregation that were cut, changed or made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.aggregation.secure.federation import Federation
from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationConfig
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import Kind

Feed = Callable[[bytes], object]
"""Gives a message to the party that waits for it."""

HEADER_BYTES = 38
"""Magic, version, kind, and the hash of the configuration."""


class Scene:
    """A federation that has gone on until one kind of message is due."""

    def __init__(self, signed: bool) -> None:
        self.federation = Federation("abcd", cells=2, signed=signed)
        self.federation.server._verification_keys = self.federation.verification
        self.client = self.federation.clients["a"]
        self.server = self.federation.server

    def to_server(self, message: bytes) -> None:
        self.server.receive("a", message)

    def draw(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.zeros(2, dtype=np.int64)

    def boxes(self) -> bytes:
        return self.federation.share(self.federation.advertise())["a"]

    def mask_all(self) -> None:
        self.federation.mask(self.federation.share(self.federation.advertise()))

    def start(self) -> tuple[bytes, Feed]:
        return self.server.start(), SecureAggregationConfig.from_bytes

    def advertise(self) -> tuple[bytes, Feed]:
        return self.client.advertise(), self.to_server

    def keys(self) -> tuple[bytes, Feed]:
        return self.federation.advertise(), self.client.share_keys

    def key_shares(self) -> tuple[bytes, Feed]:
        keys = self.federation.advertise()
        return self.client.share_keys(keys), self.to_server

    def ciphertexts(self) -> tuple[bytes, Feed]:
        return self.boxes(), lambda message: self.client.mask(message, self.draw)

    def masked(self) -> tuple[bytes, Feed]:
        return self.client.mask(self.boxes(), self.draw), self.to_server

    def survivors(self) -> tuple[bytes, Feed]:
        self.mask_all()
        return self.server.survivors(), self.client.sign_survivors

    def signature(self) -> tuple[bytes, Feed]:
        self.mask_all()
        return self.client.sign_survivors(self.server.survivors()), self.to_server

    def request(self) -> tuple[bytes, Feed]:
        self.mask_all()
        return self.federation.request(), self.client.unmask

    def answer(self) -> tuple[bytes, Feed]:
        self.mask_all()
        return self.client.unmask(self.federation.request()), self.to_server

    def progress(self) -> tuple[bytes, Feed]:
        self.mask_all()
        self.federation.request()
        resume = partial(
            SecureAggregationClient.from_bytes,
            config=self.federation.config,
            signing_key=self.federation.signing_key("a"),
            verification_keys=self.federation.verification,
        )
        return self.client.to_bytes(), resume


def scene(kind: Kind, signed: bool) -> tuple[bytes, Feed]:
    """Return a good message of a kind, and the party that waits for it."""
    play: Callable[[], tuple[bytes, Feed]] = getattr(Scene(signed), kind.name.lower())
    return play()


KINDS = [kind for kind in Kind if Kind.START <= kind <= Kind.PROGRESS]
SIGNED_ONLY = {Kind.SURVIVORS, Kind.SIGNATURE}
SCENES = [(kind, True) for kind in KINDS]
SCENES += [(kind, False) for kind in KINDS if kind not in SIGNED_ONLY]

TIGHT = {(kind, True) for kind in KINDS}
"""The messages in which every changed byte is seen at once.

In other messages a change can give other valid content: a vector, a share, a commitment, a box for
another client or, unsigned, a key.
"""
TIGHT -= {(Kind.KEY_SHARES, True), (Kind.MASKED, True), (Kind.ANSWER, True)}
TIGHT |= {(Kind.START, False), (Kind.CIPHERTEXTS, False), (Kind.REQUEST, False)}
TIGHT |= {(Kind.PROGRESS, False)}


def is_accepted(feed: Feed, message: bytes) -> bool:
    """Return whether a message is taken. Other errors than SecureAggregationError fail the test."""
    try:
        feed(message)
    except SecureAggregationError:
        return False
    return True


@pytest.mark.parametrize(("kind", "signed"), SCENES, ids=str)
def test_cut_and_longer_messages_are_refused(kind: Kind, signed: bool) -> None:
    message, feed = scene(kind, signed)
    cut = [message[:size] for size in range(len(message))]
    for wrong in (*cut, message + b"\0", message + message, None, "text", 5):
        with pytest.raises(SecureAggregationError, match="Expected"):
            feed(wrong)  # type: ignore[arg-type]
    feed(message)


@pytest.mark.parametrize(("kind", "signed"), SCENES, ids=str)
def test_changed_bytes_are_refused(kind: Kind, signed: bool) -> None:
    message, feed = scene(kind, signed)
    generator = random.Random(kind)
    accepted = []
    for place in range(len(message)):
        changed = bytearray(message)
        changed[place] ^= generator.randrange(1, 256)
        if is_accepted(feed, bytes(changed)):
            accepted.append(place)
            message, feed = scene(kind, signed)
    assert not accepted or (kind, signed) not in TIGHT
    assert all(place >= HEADER_BYTES for place in accepted)
    feed(message)


@pytest.mark.parametrize(("kind", "signed"), SCENES, ids=str)
def test_noise_is_refused(kind: Kind, signed: bool) -> None:
    message, feed = scene(kind, signed)
    generator = random.Random(kind)
    for _ in range(100):
        noise = generator.randbytes(generator.randrange(300))
        with pytest.raises(SecureAggregationError):
            feed(message[:HEADER_BYTES] + noise)
