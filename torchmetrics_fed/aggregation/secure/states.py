"""States: how far client and server of one aggregation have come, which stage moves them on, what a client remembers.

Every stage is gone through exactly where its table has a row; everything moves forward only, and once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS, SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES, digest
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.release.wire import (
    DIGEST_BYTES,
    Kind,
    pack_block,
    pack_indices,
    pack_table,
    pack_text,
)


class ClientState(IntEnum):
    """How far a client has come."""

    NEW = 0
    ADVERTISED = 1
    SHARED = 2
    MASKED = 3
    SIGNED = 4
    ANSWERED = 5
    PURGED = 6


_CLIENT = {
    (ClientState.NEW, Stage.ADVERTISE): ClientState.ADVERTISED,
    (ClientState.ADVERTISED, Stage.SHARE_KEYS): ClientState.SHARED,
    (ClientState.SHARED, Stage.MASK): ClientState.MASKED,
    # the same request gets the same answer
    (ClientState.ANSWERED, Stage.UNMASK): ClientState.ANSWERED,
}
_UNSIGNED_CLIENT = {
    (ClientState.MASKED, Stage.UNMASK): ClientState.ANSWERED,
}
_SIGNED_CLIENT = {
    (ClientState.MASKED, Stage.SIGN): ClientState.SIGNED,
    (ClientState.SIGNED, Stage.UNMASK): ClientState.ANSWERED,
}
CLIENT_MOVES = {False: _CLIENT | _UNSIGNED_CLIENT, True: _CLIENT | _SIGNED_CLIENT}
"""By whether it is signed: state and stage to the client's next state. ``purge`` is allowed anywhere, and ends it."""

_SERVER = {
    (Stage.ADVERTISE, "keys"): Stage.SHARE_KEYS,
    (Stage.SHARE_KEYS, "ciphertexts"): Stage.MASK,
}
_UNSIGNED_SERVER = {
    (Stage.MASK, "request"): Stage.UNMASK,
}
_SIGNED_SERVER = {
    (Stage.MASK, "survivors"): Stage.SIGN,
    (Stage.SIGN, "request"): Stage.UNMASK,
}
SERVER_MOVES = {False: _SERVER | _UNSIGNED_SERVER, True: _SERVER | _SIGNED_SERVER}
"""By whether it is signed: the stage whose replies the server collects and the call that closes it, to the next."""

REPLIES = {
    Stage.ADVERTISE: Kind.ADVERTISE,
    Stage.SHARE_KEYS: Kind.KEY_SHARES,
    Stage.MASK: Kind.MASKED,
    Stage.SIGN: Kind.SIGNATURE,
    Stage.UNMASK: Kind.ANSWER,
}
"""The kind of message that a client replies in a stage."""


@dataclass(repr=False)
class Progress:
    """What a client knows of one sum, all of it secret."""

    state: ClientState = ClientState.NEW
    sealing: bytes = b""
    masking: bytes = b""
    """The private keys."""
    seed: bytes = b""
    roster: Roster | None = None
    agreed: dict[int, bytes] = field(default_factory=dict)
    """The secrets shared with the other clients' sealing keys."""
    held: dict[int, bytes] = field(default_factory=dict)
    """For each client a share of its masking key and one of its seed."""
    cohort: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()
    answer: bytes = b""

    def to_bytes(self, client_id: str, config: SecureAggregationConfig) -> bytes:
        roster = self.roster.to_bytes() if self.roster else b""
        blocks = map(pack_block, (self.sealing, self.masking, self.seed, roster))
        tables = (
            pack_table(self.agreed),
            pack_table(self.held),
            pack_indices(self.cohort),
            pack_indices(self.survivors),
        )
        body = b"".join(
            (pack_text(client_id), bytes([self.state]), *blocks, *tables, pack_block(self.answer))
        )
        return config.frame(Kind.PROGRESS, digest(b"progress", body), body)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> tuple[str, Progress]:
        reader = config.reader(data, Kind.PROGRESS)
        checksum = reader.take(DIGEST_BYTES)
        if digest(b"progress", bytes(reader.rest)) != checksum:
            raise reader.error("the checksum of its content", "another")
        client_id, state = reader.text(), ClientState(reader.number(1))
        sealing, masking, seed, roster = (reader.block() for _ in range(4))
        known = Roster.from_bytes(roster, config) if roster else None
        tables = reader.table(MOST_CLIENTS, KEY_BYTES), reader.table(MOST_CLIENTS, 2 * SHARE_BYTES)
        lists = reader.indices(MOST_CLIENTS), reader.indices(MOST_CLIENTS)
        progress = cls(state, sealing, masking, seed, known, *tables, *lists, reader.block())
        reader.end()
        return client_id, progress
