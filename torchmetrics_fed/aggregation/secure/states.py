"""States: the tables of moves of client and server, and the memory of a client.

A client goes through the stages of one aggregation, each once and in this order::

    unsigned: NEW -advertise-> ADVERTISED -share_keys-> SHARED -mask-> MASKED -unmask-> ANSWERED

    signed:   NEW -advertise-> ADVERTISED -share_keys-> SHARED -mask-> MASKED -sign-> SIGNED
              SIGNED -unmask-> ANSWERED

A stage is allowed exactly where the table has a row for it. All moves go forward. Two more rules
hold: a client that has answered gives the same answer to the same request, and ``purge``
leads from any state to PURGED, where no stage is allowed.

The server collects the replies of one stage until a call closes the stage::

    unsigned: ADVERTISE -keys-> SHARE_KEYS -ciphertexts-> MASK -request-> UNMASK

    signed:   ADVERTISE -keys-> SHARE_KEYS -ciphertexts-> MASK -survivors-> SIGN -request-> UNMASK
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
    """The states of a client, with their byte in a stored client."""

    NEW = 0
    """The client has sent nothing."""
    ADVERTISED = 1
    """It has sent its public keys."""
    SHARED = 2
    """It has sent shares of its masking key and its seed."""
    MASKED = 3
    """It has sent its masked vector."""
    SIGNED = 4
    """It has signed one list of survivors."""
    ANSWERED = 5
    """It has sent the shares that open the sum of one list of survivors."""
    PURGED = 6
    """It has dropped all secrets."""


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
"""For unsigned and signed aggregations: from the state and the stage to the client's next state."""

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
"""For unsigned and signed aggregations: from the stage whose replies the server collects, and the
call that closes it, to the next stage."""

REPLIES = {
    Stage.ADVERTISE: Kind.ADVERTISE,
    Stage.SHARE_KEYS: Kind.KEY_SHARES,
    Stage.MASK: Kind.MASKED,
    Stage.SIGN: Kind.SIGNATURE,
    Stage.UNMASK: Kind.ANSWER,
}
"""The kind of a client's reply in each stage."""


@dataclass(repr=False)
class Progress:
    """The memory of a client in one aggregation. All of it is secret."""

    state: ClientState = ClientState.NEW
    sealing: bytes = b""
    """The private key with which boxes are sealed, until the keys are shared."""
    masking: bytes = b""
    """The private key with which masks are agreed on, until the vector is masked."""
    seed: bytes = b""
    """The seed of the client's self mask, until the vector is masked."""
    roster: Roster | None = None
    agreed: dict[int, bytes] = field(default_factory=dict)
    """The secrets shared with the other clients' sealing keys."""
    share_pairs: dict[int, bytes] = field(default_factory=dict)
    """For each client a share of its masking key and a share of its seed, side by side."""
    cohort: tuple[int, ...] = ()
    """The clients that exchanged shares."""
    survivors: tuple[int, ...] = ()
    """The clients that this client has signed or answered for."""
    answer: bytes = b""
    """The message that opens the sum of the survivors."""

    def to_bytes(self, client_id: str, config: SecureAggregationConfig) -> bytes:
        """Return the memory of a client, with a checksum."""
        roster = b""
        if self.roster:
            roster = self.roster.to_bytes()
        parts = [
            pack_text(client_id),
            bytes([self.state]),
            pack_block(self.sealing),
            pack_block(self.masking),
            pack_block(self.seed),
            pack_block(roster),
            pack_table(self.agreed),
            pack_table(self.share_pairs),
            pack_indices(self.cohort),
            pack_indices(self.survivors),
            pack_block(self.answer),
        ]
        body = b"".join(parts)
        return config.frame(Kind.PROGRESS, digest(b"progress", body), body)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> tuple[str, Progress]:
        """Return the name of the client, and its memory."""
        reader = config.reader(data, Kind.PROGRESS)
        checksum = reader.take(DIGEST_BYTES)
        if digest(b"progress", bytes(reader.rest)) != checksum:
            raise reader.error("the checksum of its content", "another")
        client_id = reader.text()
        progress = cls(ClientState(reader.number(1)))
        progress.sealing = reader.block()
        progress.masking = reader.block()
        progress.seed = reader.block()
        roster = reader.block()
        if roster:
            progress.roster = Roster.from_bytes(roster, config)
        progress.agreed = reader.table(MOST_CLIENTS, KEY_BYTES)
        progress.share_pairs = reader.table(MOST_CLIENTS, 2 * SHARE_BYTES)
        progress.cohort = reader.indices(MOST_CLIENTS)
        progress.survivors = reader.indices(MOST_CLIENTS)
        progress.answer = reader.block()
        reader.end()
        return client_id, progress
