"""Messages after the keys are known. Clients are named by their index in the roster."""

from __future__ import annotations

from dataclasses import dataclass

from torchmetrics_fed.aggregation.secure.keys import SIGNATURE_BYTES, TAG_BYTES
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, pack_indices, pack_u16

# A share of the masking key and one of the seed.
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


def _reader(data: bytes, kind: Kind, roster: Roster, about: bytes) -> Reader:
    """Return a reader past the hash of what a message is about, which must be the expected one."""
    reader = roster.config.reader(data, kind)
    if reader.take(DIGEST_BYTES) != about:
        raise SecureAggregationError(
            f"Expected a message {kind.name} about the same clients and keys as before but it is about others. The "
            "server must send everyone the same: leave this round, and start another only if the server is trusted."
        )
    return reader


def _sender(reader: Reader, roster: Roster) -> int:
    (sender,) = reader.increasing((reader.u16(),), len(roster))
    return sender


@dataclass(frozen=True)
class KeyShares:
    """Client to server: a commitment to the seed, and a sealed box for every other client, in their order."""

    sender: int
    commitment: bytes
    boxes: list[bytes]

    def to_bytes(self, roster: Roster) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.KEY_SHARES, roster.hash, pack_u16(self.sender), self.commitment, *self.boxes)

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster) -> KeyShares:
        """Return the content of a message."""
        reader = _reader(data, Kind.KEY_SHARES, roster, roster.hash)
        shares = cls(_sender(reader, roster), reader.take(DIGEST_BYTES), reader.rows(len(roster) - 1, BOX_BYTES))
        reader.end()
        return shares

    def box_for(self, recipient: int) -> bytes:
        """Return the box that another client can open."""
        return self.boxes[recipient - (recipient > self.sender)]


@dataclass(frozen=True)
class Ciphertexts:
    """Server to one client: the boxes that others sealed for it."""

    senders: tuple[int, ...]
    boxes: list[bytes]

    def to_bytes(self, roster: Roster) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.CIPHERTEXTS, roster.hash, pack_indices(self.senders), *self.boxes)

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster) -> Ciphertexts:
        """Return the content of a message."""
        reader = _reader(data, Kind.CIPHERTEXTS, roster, roster.hash)
        senders = reader.indices(len(roster))
        boxes = reader.rows(len(senders), BOX_BYTES)
        reader.end()
        return cls(senders, boxes)


@dataclass(frozen=True)
class Masked:
    """Client to server: its masked vector."""

    sender: int
    vector: bytes

    def to_bytes(self, roster: Roster, cohort: bytes) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.MASKED, cohort, pack_u16(self.sender), self.vector)

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster, cohort: bytes) -> Masked:
        """Return the content of a message."""
        reader = _reader(data, Kind.MASKED, roster, cohort)
        masked = cls(_sender(reader, roster), reader.take(8 * roster.config.cells))
        reader.end()
        return masked


@dataclass(frozen=True)
class Survivors:
    """Server to clients, where signatures are asked for: whose vectors it has."""

    survivors: tuple[int, ...]

    def to_bytes(self, roster: Roster, cohort: bytes) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.SURVIVORS, cohort, pack_indices(self.survivors))

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster, cohort: bytes) -> Survivors:
        """Return the content of a message."""
        reader = _reader(data, Kind.SURVIVORS, roster, cohort)
        survivors = cls(reader.indices(len(roster)))
        reader.end()
        return survivors


@dataclass(frozen=True)
class Signature:
    """Client to server: its signature of the survivors."""

    sender: int
    signature: bytes

    def to_bytes(self, roster: Roster, survivors: bytes) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.SIGNATURE, survivors, pack_u16(self.sender), self.signature)

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster, survivors: bytes) -> Signature:
        """Return the content of a message."""
        reader = _reader(data, Kind.SIGNATURE, roster, survivors)
        signature = cls(_sender(reader, roster), reader.take(SIGNATURE_BYTES))
        reader.end()
        return signature


@dataclass(frozen=True)
class Request:
    """Server to clients: open the sum of these survivors, who signed that it is them."""

    survivors: tuple[int, ...]
    signatures: dict[int, bytes]

    def to_bytes(self, roster: Roster, cohort: bytes) -> bytes:
        """Return the message."""
        signers = pack_indices(tuple(self.signatures)) if roster.config.signed else b""
        return roster.config.frame(
            Kind.REQUEST, cohort, pack_indices(self.survivors), signers, *self.signatures.values()
        )

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster, cohort: bytes) -> Request:
        """Return the content of a message."""
        reader = _reader(data, Kind.REQUEST, roster, cohort)
        survivors = reader.indices(len(roster))
        signers = reader.indices(len(roster)) if roster.config.signed else ()
        signatures = dict(zip(signers, reader.rows(len(signers), SIGNATURE_BYTES), strict=True))
        reader.end()
        return cls(survivors, signatures)


@dataclass(frozen=True)
class Answer:
    """Client to server: for everyone in the cohort one share, of a survivor's seed or of a dropped one's key."""

    sender: int
    shares: list[bytes]

    def to_bytes(self, roster: Roster, survivors: bytes) -> bytes:
        """Return the message."""
        return roster.config.frame(Kind.ANSWER, survivors, pack_u16(self.sender), *self.shares)

    @classmethod
    def from_bytes(cls, data: bytes, roster: Roster, survivors: bytes, count: int) -> Answer:
        """Return the content of a message."""
        reader = _reader(data, Kind.ANSWER, roster, survivors)
        answer = cls(_sender(reader, roster), reader.rows(count, SHARE_BYTES))
        reader.end()
        return answer
