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
from torchmetrics_fed.aggregation.secure.keys import SigningKeys
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.release.wire import Kind

__all__ = [
    "STAGES",
    "Federation",
    "known_to_all",
    "masked_federation",
    "request_of",
    "survivors_of",
]

STAGES = ("advertise", "share", "mask", "sign", "answer", "never")
"""A client drops out before one of these stages, or never."""


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
    tables: list[Mapping[int, bytes]] = [dict.fromkeys(survivors, b"")]
    if roster.config.signed:
        tables.append(signatures or {})
    return roster.pack_tables(Kind.REQUEST, cohort, *tables)


class Federation:
    """Clients and a server of one aggregation, and the vectors of the clients."""

    def __init__(
        self,
        names: Sequence[str],
        cells: int = 8,
        signed: bool = False,
        vectors: Mapping[str, NDArray[np.int64]] | None = None,
        round_id: str = "round",
        threshold: int | None = None,
        min_clients: int = 3,
        config: SecureAggregationConfig | None = None,
    ) -> None:
        self.names = tuple(names)
        if config is None:
            config = SecureAggregationConfig(
                round_id, b"spec", cells, min_clients, threshold=threshold, signed=signed
            )
        self.config = config
        self.signers: dict[str, SigningKeys] = {}
        self.verification: dict[str, bytes] | None = None
        if signed:
            self.signers = {name: new_signing_keys() for name in names}
            self.verification = {name: pair.verification for name, pair in self.signers.items()}
        self.server = SecureAggregationServer(self.config)
        self.clients = {name: self.client(name) for name in names}
        if vectors is None:
            generator = np.random.default_rng(len(names))
            vectors = {name: generator.integers(-(2**40), 2**40, cells) for name in names}
        self.vectors = dict(vectors)
        self.drops: dict[str, str] = {}
        self.calls = dict.fromkeys(names, 0)
        """How often the vector of each client was drawn."""
        self.secrets: dict[str, tuple[bytes, bytes]] = {}
        """The masking key and the seed of each client."""

    def client(self, name: str) -> SecureAggregationClient:
        """Return a new client of that name."""
        return SecureAggregationClient(name, self.config, self.signing_key(name), self.verification)

    def signing_key(self, name: str) -> bytes | None:
        """Return the signing key of a client, if the aggregation is signed."""
        if not self.signers:
            return None
        return self.signers[name].signing

    def factory(self, name: str) -> NDArray[np.int64]:
        """Draw the vector of a client."""
        self.calls[name] += 1
        return self.vectors[name]

    def present(self, stage: str) -> list[str]:
        """Return the clients that have not dropped out before a stage."""
        present = []
        for name in self.names:
            drops_before = self.drops.get(name, "never")
            if STAGES.index(drops_before) > STAGES.index(stage):
                present.append(name)
        return present

    def send(self, name: str, message: bytes) -> None:
        self.server.receive(name, message)

    def advertise(self) -> bytes:
        for name in self.present("advertise"):
            self.send(name, self.clients[name].advertise())
        return self.server.keys()

    def share(self, keys: bytes) -> dict[str, bytes]:
        for name in self.present("share"):
            client = self.clients[name]
            self.send(name, client.share_keys(keys))
            self.secrets[name] = (client._progress.masking, client._progress.seed)
        return self.server.ciphertexts()

    def mask(self, boxes: Mapping[str, bytes]) -> None:
        for name in self.present("mask"):
            self.send(name, self.clients[name].mask(boxes[name], partial(self.factory, name)))

    def request(self) -> bytes:
        if self.config.signed:
            survivors = self.server.survivors()
            for name in self.present("sign"):
                self.send(name, self.clients[name].sign_survivors(survivors))
        return self.server.request()

    def answer(self, request: bytes) -> None:
        for name in self.present("answer"):
            if not self.config.signed or name in self.present("sign"):
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


def masked_federation(
    signed: bool = False, names: str = "abcd", drops: Mapping[str, str] | None = None
) -> Federation:
    """Return a federation whose clients have sent their masked vectors."""
    federation = Federation(names, signed=signed)
    federation.drops = dict(drops or {})
    federation.mask(federation.share(federation.advertise()))
    return federation


def known_to_all(federation: Federation) -> tuple[Roster, bytes]:
    """Return the roster, and the hash of the cohort, as every party knows them."""
    roster = federation.server._roster
    return roster, roster.cohort_hash(federation.server._cohort)
