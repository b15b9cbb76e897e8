"""SecureAggregationConfig: the agreement of all parties of one aggregation.

These rules hold for every configuration:

- Every message of an aggregation carries the hash of its configuration.
- A sum of fewer than ``min_clients`` clients, or of fewer than 3, is never opened.
- Any two sets of clients that can open a sum have an honest client in common; see
  :meth:`SecureAggregationConfig.threshold_for`.
- A client takes part only if the configuration is the one it agreed to; see
  :meth:`SecureAggregationConfig.check_agreed`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchmetrics_fed.aggregation.secure.keys import digest
from torchmetrics_fed.errors import InputError, SecureAggregationError, check_int
from torchmetrics_fed.release import Query, Spec
from torchmetrics_fed.release.wire import DIGEST_BYTES, Kind, Reader, frame, pack_text, text_size

MOST_CLIENTS = 1024
"""The most clients of an aggregation. All pairs of clients agree on a key: beyond this number the
cost is no longer reasonable."""

MOST_CELLS = 1 << 27
"""The longest vector, 1 GiB."""

_NUMBERS = struct.Struct("<IHHHB")
"""Cells, min_clients, max_colluding, threshold or 0, signed."""


@dataclass(frozen=True)
class SecureAggregationConfig:
    """The settings of one aggregation. The server sends them to the clients.

    Args:
        round_id: a name that is never used again, 1 to 255 bytes. A retry is another round.
        binding: a digest that says which vectors are summed, 1 to 64 bytes.
        cells: length of the vectors.
        min_clients: a sum of fewer clients is not opened; at least 3.
        max_colluding: the number of clients that may work with the server.
        threshold: the number of clients that must reply to open the sum. If not given, more than
            two thirds.
        signed: whether keys and survivors are signed, which protects from a server that lies.

    Example:
        >>> from torchmetrics_fed.aggregation.secure import SecureAggregationConfig
        >>> SecureAggregationConfig("round 1", b"spec", cells=8192, min_clients=8).threshold_for(64)
        43
    """

    round_id: str
    binding: bytes
    cells: int
    min_clients: int
    max_colluding: int = 1
    threshold: int | None = None
    signed: bool = False

    def __post_init__(self) -> None:
        if not 1 <= text_size(self.round_id) <= 255:
            raise InputError(
                f"Expected argument `round_id` of 1 to 255 bytes but got {self.round_id!r}."
            )
        if not isinstance(self.binding, bytes) or not 1 <= len(self.binding) <= 64:
            raise InputError(
                f"Expected argument `binding` of 1 to 64 bytes but got {self.binding!r}."
            )
        reason = ", because with fewer than 3 clients, or if all collude, a sum hides nobody,"
        check_int("cells", self.cells, 1, MOST_CELLS)
        check_int("min_clients", self.min_clients, 3, MOST_CLIENTS, which=reason)
        check_int("max_colluding", self.max_colluding, 0, self.min_clients - 1, which=reason)
        if self.threshold is not None:
            check_int("threshold", self.threshold, self.min_clients, MOST_CLIENTS)
        if not isinstance(self.signed, bool):
            raise InputError(
                f"Expected argument `signed` to be a bool but got {type(self.signed).__name__}."
            )

    @classmethod
    def for_query(
        cls,
        spec: Spec,
        query: Query,
        round_id: str,
        *,
        min_clients: int | None = None,
        **options: Any,
    ) -> SecureAggregationConfig:
        """Return the aggregation of the replies to a query, bound to the digests of spec and query.

        Args:
            spec: the spec of the replies.
            query: the query.
            round_id: a name that is never used again.
            min_clients: the least number of clients; at least that of the spec's privacy.
            **options: ``threshold`` and ``signed``.
        """
        needed = 3
        if spec.privacy.charges:
            needed = spec.clients_needed
        return cls(
            round_id,
            spec.binding(query),
            cells=math.prod(spec.shape(query)),
            min_clients=max(min_clients or 0, needed),
            max_colluding=getattr(spec.privacy, "max_colluding", 1),
            **options,
        )

    def check_agreed(self, spec: Spec, query: Query, signed: bool) -> None:
        """Raise unless this is the aggregation that a client agreed to.

        Args:
            spec: the spec of the client.
            query: the query that the client replies to.
            signed: whether the client asks for signatures.
        """
        expected = self.for_query(
            spec,
            query,
            self.round_id,
            min_clients=self.min_clients,
            threshold=self.threshold,
            signed=signed,
        )
        if self != expected:
            raise SecureAggregationError(
                f"Expected a {'signed ' * signed}aggregation of {expected.cells} cells, bound to "
                f"{expected.binding.hex()[:16]}, of at least {expected.min_clients} clients but "
                f"got one of {self.cells} cells, bound to {self.binding.hex()[:16]}, of at least "
                f"{self.min_clients}{', unsigned' * (not self.signed)}. Build the metric with the "
                "same arguments on both sides."
            )

    def frame(self, kind: Kind, *parts: bytes) -> bytes:
        """Return a message of this aggregation."""
        return frame(kind, self.hash, *parts)

    def reader(self, data: bytes, kind: Kind) -> Reader:
        """Return a reader of a message of this aggregation, past its hash."""
        reader = Reader(data, kind, SecureAggregationError)
        if reader.take(DIGEST_BYTES) != self.hash:
            raise SecureAggregationError(
                f"Expected the message {kind.name} of this round and configuration but it was made "
                "for another. Give all parties the same SecureAggregationConfig, and do not send "
                "old messages again."
            )
        return reader

    def threshold_for(self, clients: int) -> int:
        r"""Return how many of the clients it takes to open the sum.

        It takes at least :math:`\lfloor (n + c) / 2 \rfloor + 1` of n clients. Two sets of as many
        clients then have an honest client in common, who replies once, even if the c colluding
        clients reply twice.
        """
        least = max(self.min_clients, (clients + self.max_colluding) // 2 + 1)
        threshold = self.threshold
        if threshold is None:
            threshold = max(least, 2 * clients // 3 + 1)
        if threshold > clients:
            raise SecureAggregationError(
                f"Expected at least {threshold} clients but got {clients}, so the aggregation "
                "never began. Wait for more clients, or start a new round."
            )
        if threshold < least or clients > MOST_CLIENTS:
            raise SecureAggregationError(
                f"Expected a threshold from {least} to the number of clients but got {threshold} "
                f"for {clients} clients with min_clients={self.min_clients} and "
                f"max_colluding={self.max_colluding}. Raise the threshold or invite fewer clients."
            )
        return threshold

    @cached_property
    def hash(self) -> bytes:
        """The hash that every message of this aggregation carries."""
        return digest(b"config", self._body)

    def to_bytes(self) -> bytes:
        """Return the message that starts the aggregation."""
        return self.frame(Kind.START, self._body)

    @classmethod
    def from_bytes(cls, data: bytes) -> SecureAggregationConfig:
        """Return the configuration in a message. The client decides whether it takes part."""
        reader = Reader(data, Kind.START, SecureAggregationError)
        claimed_hash = reader.take(DIGEST_BYTES)
        round_id = reader.text()
        binding = reader.take(reader.number(1))
        numbers = reader.take(_NUMBERS.size)
        cells, min_clients, max_colluding, threshold, signed = _NUMBERS.unpack(numbers)
        reader.end()
        try:
            config = cls(
                round_id,
                binding,
                cells=cells,
                min_clients=min_clients,
                max_colluding=max_colluding,
                threshold=threshold or None,
                signed=bool(signed),
            )
        except InputError as error:
            raise SecureAggregationError(
                f"Expected a message START that can be used. {error}"
            ) from None
        if signed > 1 or config.hash != claimed_hash:
            raise reader.error("the hash of its configuration", "another")
        return config

    @property
    def _body(self) -> bytes:
        numbers = _NUMBERS.pack(
            self.cells,
            self.min_clients,
            self.max_colluding,
            self.threshold or 0,
            self.signed,
        )
        return pack_text(self.round_id) + bytes([len(self.binding)]) + self.binding + numbers
