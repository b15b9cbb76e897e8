"""Roster: the clients of an aggregation with their keys, and the messages that are bound to it.

Once the keys are known, clients are named by their index in the roster. A client sends its index
and rows of bytes. The server sends tables of bytes, by client. Each message has a subject: the hash
of the roster, of the cohort (the clients that exchanged shares) or of the survivors (the clients
whose vectors are summed).

=========== ========= ==========================================================================
kind        subject   content
=========== ========= ==========================================================================
KEY_SHARES  roster    rows: a commitment to the seed, then a sealed box for every other client,
                      in their order
CIPHERTEXTS roster    table: the boxes that other clients sealed for this client
MASKED      cohort    row: the masked vector
SURVIVORS   cohort    signed aggregations only. Table without content: the survivors
SIGNATURE   survivors row: the client's signature of the survivors
REQUEST     cohort    table without content: the survivors; if signed, table: their signatures
ANSWER      survivors rows: for each client of the cohort a share, of a survivor's seed or of a
                      dropped client's masking key
=========== ========= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from torchmetrics_fed.aggregation.secure.config import MOST_CLIENTS, SecureAggregationConfig
from torchmetrics_fed.aggregation.secure.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
    digest,
    is_signed,
)
from torchmetrics_fed.aggregation.secure.shamir import SHARE_BYTES
from torchmetrics_fed.errors import SecureAggregationError
from torchmetrics_fed.release.wire import (
    DIGEST_BYTES,
    Kind,
    Reader,
    pack_indices,
    pack_table,
    pack_text,
)

BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Bytes of a sealed box: a share of the masking key and a share of the seed."""


@dataclass(frozen=True)
class Advertisement:
    """The public keys of one client."""

    client_id: str
    sealing: bytes
    """Other clients seal shares for this client with it."""
    masking: bytes
    """Other clients agree on masks with it."""
    signature: bytes = b""
    """The signature of name and keys; empty unless the configuration asks for signatures."""

    @property
    def body(self) -> bytes:
        """The message without the signature."""
        return pack_text(self.client_id) + self.sealing + self.masking

    def statement(self, config: SecureAggregationConfig) -> bytes:
        """Return the digest that the client signs."""
        return digest(b"advertisement", config.hash, self.body)

    def check_signature(
        self, config: SecureAggregationConfig, verification_keys: Mapping[str, bytes]
    ) -> None:
        """Raise unless the client has signed its keys for this aggregation."""
        verification_key = verification_keys.get(self.client_id)
        reason = "there is no verification key for it"
        if verification_key is not None:
            if is_signed(self.statement(config), self.signature, verification_key):
                return
            reason = "the signature is wrong"
        raise SecureAggregationError(
            f"Expected keys signed by client {self.client_id!r} for this round but {reason}. Leave "
            "the client out, or give every client the same verification keys."
        )

    def to_bytes(self, config: SecureAggregationConfig) -> bytes:
        """Return the message to the server."""
        return config.frame(Kind.ADVERTISE, self.body, self.signature)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> Advertisement:
        """Return the keys in a message."""
        reader = config.reader(data, Kind.ADVERTISE)
        advertisement = cls.read(reader, config.signed)
        reader.end()
        return advertisement

    @classmethod
    def read(cls, reader: Reader, signed: bool) -> Advertisement:
        """Return the next keys of a message, with a signature if ``signed``."""
        client_id = reader.text()
        sealing = reader.take(KEY_BYTES)
        masking = reader.take(KEY_BYTES)
        signature = b""
        if signed:
            signature = reader.take(SIGNATURE_BYTES)
        return cls(client_id, sealing, masking, signature)


@dataclass(frozen=True)
class Roster:
    """The clients of an aggregation in the order of their names, with their keys.

    The index of a client is its place in the roster. Raises :class:`SecureAggregationError` if
    names or keys repeat, or if there are too few clients for the threshold.
    """

    config: SecureAggregationConfig
    clients: tuple[Advertisement, ...]

    def __post_init__(self) -> None:
        names = [client.client_id for client in self.clients]
        keys = {client.sealing for client in self.clients}
        keys |= {client.masking for client in self.clients}
        are_ordered = all(name < successor for name, successor in pairwise(names))
        if not are_ordered or len(keys) != 2 * len(names):
            raise SecureAggregationError(
                f"Expected {len(names)} clients in the order of their names, each with two keys of "
                "its own, but a name or a key comes twice or out of order. Leave out the client "
                "that copies another."
            )
        self.config.threshold_for(len(names))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def threshold(self) -> int:
        """The number of clients that it takes to open the sum."""
        return self.config.threshold_for(len(self.clients))

    @cached_property
    def indices(self) -> dict[str, int]:
        """The index of each client, by name."""
        return {client.client_id: index for index, client in enumerate(self.clients)}

    @cached_property
    def hash(self) -> bytes:
        """The hash of configuration, names and keys."""
        bodies = [client.body for client in self.clients]
        return digest(b"roster", self.config.hash, *bodies)

    def cohort_hash(self, cohort: tuple[int, ...]) -> bytes:
        """Return the hash of the clients that exchanged shares."""
        return digest(b"cohort", self.hash, pack_indices(cohort))

    def survivors_hash(self, cohort: tuple[int, ...], survivors: tuple[int, ...]) -> bytes:
        """Return the hash of the clients whose masked vectors are summed. Survivors sign it."""
        return digest(b"survivors", self.cohort_hash(cohort), pack_indices(survivors))

    def check_quorum(self, indices: tuple[int, ...], purpose: str) -> None:
        """Raise if there are fewer clients than the threshold. ``purpose`` is for the error."""
        if len(indices) < self.threshold:
            raise SecureAggregationError(
                f"Expected at least {self.threshold} of {len(self)} clients {purpose} but got "
                f"{len(indices)}; nothing is opened. Wait for more, or start a new round."
            )

    def to_bytes(self) -> bytes:
        """Return the message with all keys, for every client."""
        count = len(self).to_bytes(2, "little")
        entries = [client.body + client.signature for client in self.clients]
        return self.config.frame(Kind.KEYS, count, *entries)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> Roster:
        """Return the roster in a message."""
        reader = config.reader(data, Kind.KEYS)
        count = reader.number(2)
        if count > MOST_CLIENTS:
            raise reader.error(f"at most {MOST_CLIENTS} clients", str(count))
        clients = tuple(Advertisement.read(reader, config.signed) for _ in range(count))
        reader.end()
        return cls(config, clients)

    def pack_rows(self, kind: Kind, subject: bytes, sender: int, *rows: bytes) -> bytes:
        """Return a client's message to the server."""
        return self.config.frame(kind, subject, sender.to_bytes(2, "little"), *rows)

    def read_rows(
        self, data: bytes, kind: Kind, subject: bytes, cohort: int = 0
    ) -> tuple[int, list[bytes]]:
        """Return the sender of a client's message, and its rows.

        Args:
            data: the message.
            kind: the kind of the message.
            subject: the hash that the message must be about.
            cohort: for an answer, the number of clients in the cohort.
        """
        reader = self._reader(data, kind, subject)
        sender = reader.number(2)
        if sender >= len(self):
            raise reader.error(f"an index below {len(self)}", str(sender))
        rows = [reader.take(size) for size in row_sizes(kind, self.config, len(self), cohort)]
        reader.end()
        return sender, rows

    def pack_tables(self, kind: Kind, subject: bytes, *tables: Mapping[int, bytes]) -> bytes:
        """Return a message of the server."""
        return self.config.frame(kind, subject, *map(pack_table, tables))

    def read_tables(self, data: bytes, kind: Kind, subject: bytes) -> list[dict[int, bytes]]:
        """Return the tables in a message of the server."""
        reader = self._reader(data, kind, subject)
        sizes = _table_sizes(kind, signed=self.config.signed)
        tables = [reader.table(len(self), size) for size in sizes]
        reader.end()
        return tables

    def _reader(self, data: bytes, kind: Kind, subject: bytes) -> Reader:
        """Return a reader of a message, past its subject. Raises for another subject."""
        reader = self.config.reader(data, kind)
        if reader.take(DIGEST_BYTES) != subject:
            raise SecureAggregationError(
                f"Expected a message {kind.name} about the same clients and keys as before but it "
                "is about others. The server must send everyone the same: leave this round, and "
                "start another only if the server is trusted."
            )
        return reader


def row_sizes(kind: Kind, config: SecureAggregationConfig, clients: int, cohort: int) -> list[int]:
    """Return the bytes of each row of a client's message.

    Args:
        kind: the kind of the message.
        config: the configuration of the aggregation.
        clients: the number of clients in the roster.
        cohort: the number of clients that exchanged shares.
    """
    if kind is Kind.KEY_SHARES:
        return [DIGEST_BYTES] + [BOX_BYTES] * (clients - 1)
    sizes = {
        Kind.MASKED: [8 * config.cells],
        Kind.SIGNATURE: [SIGNATURE_BYTES],
        Kind.ANSWER: [SHARE_BYTES] * cohort,
    }
    return sizes[kind]


def _table_sizes(kind: Kind, *, signed: bool) -> list[int]:
    """Return the bytes of a row in each table of the server's message."""
    if kind is Kind.REQUEST and signed:
        return [0, SIGNATURE_BYTES]
    sizes = {
        Kind.CIPHERTEXTS: [BOX_BYTES],
        Kind.SURVIVORS: [0],
        Kind.REQUEST: [0],
    }
    return sizes[kind]
