"""A federation in one process, whose clients drop out where a test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    new_signing_keys,
)
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.release.wire import Kind

__all__ = ["STAGES", "Federation", "request_of", "survivors_of"]

# A client drops out before one of these, or never.
STAGES = ("advertise", "share", "mask", "sign", "answer", "never")


def survivors_of(roster: Roster, cohort: bytes, survivors: Sequence[int]) -> bytes:
    """Return the message of a server that asks clients to sign these survivors."""
    return roster.pack_tables(Kind.SURVIVORS, cohort, dict.fromkeys(survivors, b""))


def request_of(
    roster: Roster,
    cohort: bytes,
    survivors: Sequence[int],
    signatures: Mapping[int, bytes] | None = None,
) -> bytes:
    """Return the message of a server that asks clients to open the sum of these survivors."""
    signed = [signatures or {}] if roster.config.signed else []
    return roster.pack_tables(Kind.REQUEST, cohort, dict.fromkeys(survivors, b""), *signed)


class Federation:
    """Clients, a server, and everything that was sent between them."""

    def __init__(
        self,
        names: Sequence[str],
        cells: int = 8,
        signed: bool = False,
        vectors: Mapping[str, NDArray[np.int64]] | None = None,
        round_id: str = "round",
        threshold: int | None = None,
        min_clients: int = 3,
    ) -> None:
        self.names = tuple(names)
        self.config = SecureAggregationConfig(
            round_id, b"spec", cells, min_clients, threshold=threshold, signed=signed
        )
        self.signers = {name: new_signing_keys() for name in names} if signed else {}
        self.verification = (
            {name: keys.verification for name, keys in self.signers.items()} if signed else None
        )
        self.server = SecureAggregationServer(self.config)
        self.clients = {name: self.client(name) for name in names}
        generator = np.random.default_rng(len(names))
        drawn = {name: generator.integers(-(2**40), 2**40, cells) for name in names}
        self.vectors = drawn if vectors is None else dict(vectors)
        self.drops: dict[str, str] = {}
        self.calls = dict.fromkeys(names, 0)
        self.messages: dict[str, bytes] = {}
        self.secrets: dict[str, tuple[bytes, bytes]] = {}

    def client(self, name: str) -> SecureAggregationClient:
        """Return a new client of that name."""
        return SecureAggregationClient(
            name,
            self.config,
            self.signers[name].signing if self.signers else None,
            self.verification,
        )

    def factory(self, name: str) -> NDArray[np.int64]:
        self.calls[name] += 1
        return self.vectors[name]

    def there(self, stage: str) -> list[str]:
        """Who has not dropped out before a stage."""
        place = STAGES.index(stage)
        return [name for name in self.names if STAGES.index(self.drops.get(name, "never")) > place]

    def send(self, name: str, message: bytes) -> None:
        self.server.receive(name, message)

    def advertise(self) -> bytes:
        for name in self.there("advertise"):
            self.send(name, self.clients[name].advertise())
        return self.server.keys()

    def share(self, keys: bytes) -> dict[str, bytes]:
        for name in self.there("share"):
            client = self.clients[name]
            self.send(name, client.share_keys(keys))
            self.secrets[name] = client._progress.masking, client._progress.seed
        return self.server.ciphertexts()

    def mask(self, boxes: Mapping[str, bytes]) -> None:
        for name in self.there("mask"):
            self.send(name, self.clients[name].mask(boxes[name], partial(self.factory, name)))

    def request(self) -> bytes:
        if self.config.signed:
            survivors = self.server.survivors()
            for name in self.there("sign"):
                self.send(name, self.clients[name].sign_survivors(survivors))
        return self.server.request()

    def answer(self, request: bytes) -> None:
        for name in self.there("answer"):
            if not self.config.signed or name in self.there("sign"):
                self.send(name, self.clients[name].unmask(request))

    def run(
        self, drops: Mapping[str, str] | None = None
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the sum and the survivors."""
        self.drops = dict(drops or {})
        self.mask(self.share(self.advertise()))
        self.answer(self.request())
        return self.server.sum()

    def expected(self, survivors: Sequence[str]) -> NDArray[np.int64]:
        """Return the plain sum, modulo 2^64."""
        words = np.stack([self.vectors[name].view(np.uint64) for name in survivors])
        return np.asarray(words.sum(0, dtype=np.uint64).view(np.int64))
