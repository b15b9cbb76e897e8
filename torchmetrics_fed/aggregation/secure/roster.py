"""Roster: who takes part, with which keys, and the messages and hashes that are bound to it.

After the keys are known clients are named by their index in the roster. A client sends its index and rows of bytes, the
server sends tables of bytes by client; each is about a hash:

=========== ========= ============================================================================================
kind        about     content
=========== ========= ============================================================================================
KEY_SHARES  roster    rows: a commitment to the seed, then a sealed box for every other client, in their order
CIPHERTEXTS roster    table: the boxes that others sealed for this client
MASKED      cohort    row: the masked vector
SURVIVORS   cohort    table without content, where signatures are asked for: whose vectors the server has
SIGNATURE   survivors row: the client's signature of the survivors
REQUEST     cohort    table without content: whose sum to open; where asked for, table: who signed that it is them
ANSWER      survivors rows: for everyone in the cohort a share, of a survivor's seed or of a dropped one's key
=========== ========= ============================================================================================
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

# A share of the masking key and one of the seed.
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True)
class Advertisement:
    """The public keys of one client: shares for it are sealed with one, masks are agreed with the other."""

    client_id: str
    sealing: bytes
    masking: bytes
    signature: bytes = b""
    """Of all this; empty unless the configuration asks for signatures."""

    @property
    def body(self) -> bytes:
        """Everything but the signature."""
        return pack_text(self.client_id) + self.sealing + self.masking

    def statement(self, config: SecureAggregationConfig) -> bytes:
        return digest(b"advertisement", config.hash, self.body)

    def check_signature(
        self, config: SecureAggregationConfig, verification_keys: Mapping[str, bytes]
    ) -> None:
        verification = verification_keys.get(self.client_id)
        if verification is None or not is_signed(
            self.statement(config), self.signature, verification
        ):
            raise SecureAggregationError(
                f"Expected keys signed by client {self.client_id!r} for this round but "
                + (
                    "the signature is wrong."
                    if verification
                    else "there is no verification key for it."
                )
                + " Leave the client out, or give every client the same verification keys."
            )

    def to_bytes(self, config: SecureAggregationConfig) -> bytes:
        return config.frame(Kind.ADVERTISE, self.body, self.signature)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> Advertisement:
        reader = config.reader(data, Kind.ADVERTISE)
        advertisement = cls.read(reader, config.signed)
        reader.end()
        return advertisement

    @classmethod
    def read(cls, reader: Reader, signed: bool) -> Advertisement:
        return cls(
            reader.text(),
            reader.take(KEY_BYTES),
            reader.take(KEY_BYTES),
            reader.take(SIGNATURE_BYTES * signed),
        )


@dataclass(frozen=True)
class Roster:
    """All clients that exchange shares, in the order of their names. A client's index is its place in it.

    Raises :class:`SecureAggregationError` where names or keys repeat, or there are too few clients for the threshold.
    """

    config: SecureAggregationConfig
    clients: tuple[Advertisement, ...]

    def __post_init__(self) -> None:
        names = [client.client_id for client in self.clients]
        keys = {key for client in self.clients for key in (client.sealing, client.masking)}
        if any(one >= other for one, other in pairwise(names)) or len(keys) != 2 * len(names):
            raise SecureAggregationError(
                f"Expected {len(names)} clients in the order of their names, each with two keys of its own, but a name "
                "or a key comes twice or out of order. Leave out the client that copies another."
            )
        self.config.threshold_for(len(names))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def threshold(self) -> int:
        return self.config.threshold_for(len(self.clients))

    @cached_property
    def indices(self) -> dict[str, int]:
        return {client.client_id: index for index, client in enumerate(self.clients)}

    @cached_property
    def hash(self) -> bytes:
        """The hash of configuration, names and keys."""
        return digest(b"roster", self.config.hash, *(client.body for client in self.clients))

    def cohort_hash(self, cohort: tuple[int, ...]) -> bytes:
        """Return the hash of those who exchanged shares."""
        return digest(b"cohort", self.hash, pack_indices(cohort))

    def survivors_hash(self, cohort: tuple[int, ...], survivors: tuple[int, ...]) -> bytes:
        """Return the hash of those whose masked vectors are summed, which is what survivors sign."""
        return digest(b"survivors", self.cohort_hash(cohort), pack_indices(survivors))

    def check_quorum(self, indices: tuple[int, ...], what: str) -> None:
        if len(indices) < self.threshold:
            raise SecureAggregationError(
                f"Expected at least {self.threshold} of {len(self)} clients {what} but got {len(indices)}; nothing is "
                "opened. Wait for more, or start a new round."
            )

    def to_bytes(self) -> bytes:
        parts = (part for client in self.clients for part in (client.body, client.signature))
        return self.config.frame(Kind.KEYS, len(self).to_bytes(2, "little"), *parts)

    @classmethod
    def from_bytes(cls, data: bytes, config: SecureAggregationConfig) -> Roster:
        reader = config.reader(data, Kind.KEYS)
        count = reader.number(2)
        if count > MOST_CLIENTS:
            raise reader.error(f"at most {MOST_CLIENTS} clients", str(count))
        clients = tuple(Advertisement.read(reader, config.signed) for _ in range(count))
        reader.end()
        return cls(config, clients)

    def pack_rows(self, kind: Kind, about: bytes, sender: int, *rows: bytes) -> bytes:
        return self.config.frame(kind, about, sender.to_bytes(2, "little"), *rows)

    def read_rows(
        self, data: bytes, kind: Kind, about: bytes, cohort: int = 0
    ) -> tuple[int, list[bytes]]:
        """Return who sent a client's message, and its rows; of an answer, as many as the cohort has clients."""
        reader = self._reader(data, kind, about)
        if (sender := reader.number(2)) >= len(self):
            raise reader.error(f"an index below {len(self)}", str(sender))
        rows = [reader.take(size) for size in row_sizes(kind, self.config, len(self), cohort)]
        reader.end()
        return sender, rows

    def pack_tables(self, kind: Kind, about: bytes, *tables: Mapping[int, bytes]) -> bytes:
        return self.config.frame(kind, about, *map(pack_table, tables))

    def read_tables(self, data: bytes, kind: Kind, about: bytes) -> list[dict[int, bytes]]:
        sizes = {Kind.CIPHERTEXTS: [BOX_BYTES], Kind.SURVIVORS: [0], Kind.REQUEST: [0]}[kind]
        if kind is Kind.REQUEST and self.config.signed:
            sizes = [0, SIGNATURE_BYTES]
        reader = self._reader(data, kind, about)
        tables = [reader.table(len(self), size) for size in sizes]
        reader.end()
        return tables

    def _reader(self, data: bytes, kind: Kind, about: bytes) -> Reader:
        """Return a reader past the hash of what a message is about, which must be the expected one."""
        reader = self.config.reader(data, kind)
        if reader.take(DIGEST_BYTES) != about:
            raise SecureAggregationError(
                f"Expected a message {kind.name} about the same clients and keys as before but it is about others. The "
                "server must send everyone the same: leave this round, and start another only if the server is trusted."
            )
        return reader


def row_sizes(kind: Kind, config: SecureAggregationConfig, clients: int, cohort: int) -> list[int]:
    return {
        Kind.KEY_SHARES: [DIGEST_BYTES] + [BOX_BYTES] * (clients - 1),
        Kind.MASKED: [8 * config.cells],
        Kind.SIGNATURE: [SIGNATURE_BYTES],
        Kind.ANSWER: [SHARE_BYTES] * cohort,
    }[kind]
