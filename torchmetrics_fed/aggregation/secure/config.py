"""SecureAggregationConfig: what all parties of one aggregation agree on, and how many it takes to open the sum."""

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

# Everyone agrees on a key with everyone: beyond this the cost is no longer reasonable.
MOST_CLIENTS = 1024
MOST_CELLS = 1 << 27
_NUMBERS = struct.Struct("<IHHHB")  # cells, min_clients, max_colluding, threshold or 0, signed


@dataclass(frozen=True)
class SecureAggregationConfig:
    """One aggregation. The server sends it to the clients, who take part only if it asks for what they agreed to.

    Args:
        round_id: a name that is never used again, 1 to 255 bytes. A retry is another round.
        binding: the digest of what is summed, 1 to 64 bytes.
        cells: length of the vectors.
        min_clients: a sum of fewer clients is not opened; at least 3.
        max_colluding: how many clients may work with the server.
        threshold: how many clients must answer to open the sum. If not given, more than two thirds.
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
        hides = ", because with fewer than 3 clients, or if all collude, a sum hides nobody,"
        check_int("cells", self.cells, 1, MOST_CELLS)
        check_int("min_clients", self.min_clients, 3, MOST_CLIENTS, hides)
        check_int("max_colluding", self.max_colluding, 0, self.min_clients - 1, hides)
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
        """Return the aggregation of the answers to a query; it is bound to spec and query by their whole digest.

        ``min_clients`` is at least that of the spec's privacy. ``options`` are ``threshold`` and ``signed``.
        """
        colluding, cells = getattr(spec.privacy, "max_colluding", 1), math.prod(spec.shape(query))
        needed = max(min_clients or 0, spec.clients_needed if spec.privacy.charges else 3)
        return cls(round_id, spec.binding(query), cells, needed, colluding, **options)

    def check_agreed(self, spec: Spec, query: Query, signed: bool) -> None:
        """Raise unless this sums answers to a query, with enough clients, and signed if so: what a client agreed to."""
        own: dict[str, Any] = {"min_clients": self.min_clients, "threshold": self.threshold}
        expected = self.for_query(spec, query, self.round_id, signed=signed, **own)
        if self != expected:
            raise SecureAggregationError(
                f"Expected a {'signed ' * signed}aggregation of {expected.cells} cells, bound to "
                f"{expected.binding.hex()[:16]}, of at least {expected.min_clients} clients but got one of "
                f"{self.cells} cells, bound to {self.binding.hex()[:16]}, of at least {self.min_clients}"
                f"{', unsigned' * (not self.signed)}. Build the metric with the same arguments on both sides."
            )

    def frame(self, kind: Kind, *parts: bytes) -> bytes:
        return frame(kind, self.hash, *parts)

    def reader(self, data: bytes, kind: Kind) -> Reader:
        """Return a reader of a message of this aggregation, past its binding."""
        reader = Reader(data, kind, SecureAggregationError)
        if reader.take(DIGEST_BYTES) != self.hash:
            raise SecureAggregationError(
                f"Expected the message {kind.name} of this round and configuration but it was made for another. Give "
                "all parties the same SecureAggregationConfig, and do not send old messages again."
            )
        return reader

    def threshold_for(self, clients: int) -> int:
        r"""Return how many of the clients it takes to open the sum.

        At least :math:`\lfloor (n + c) / 2 \rfloor + 1`: two sets of as many then have an honest client in common, who
        answers once, even if the c colluding ones answer twice.
        """
        least = max(self.min_clients, (clients + self.max_colluding) // 2 + 1)
        threshold = max(least, 2 * clients // 3 + 1) if self.threshold is None else self.threshold
        if not least <= threshold <= clients <= MOST_CLIENTS:
            raise SecureAggregationError(
                f"Expected at least {threshold} clients but got {clients}, so the aggregation never began. Wait for "
                "more clients, or start a new round."
                if threshold > clients
                else f"Expected a threshold from {least} to the number of clients but got {threshold} for {clients} "
                f"clients with min_clients={self.min_clients} and max_colluding={self.max_colluding}. Raise the "
                "threshold or invite fewer clients."
            )
        return threshold

    @cached_property
    def hash(self) -> bytes:
        return digest(b"config", self._body)

    def to_bytes(self) -> bytes:
        """Return the message that starts the aggregation."""
        return self.frame(Kind.START, self._body)

    @classmethod
    def from_bytes(cls, data: bytes) -> SecureAggregationConfig:
        """Return the configuration in a message. Whether to take part in such a sum is the client's to decide."""
        reader = Reader(data, Kind.START, SecureAggregationError)
        claimed, round_id, binding = (
            reader.take(DIGEST_BYTES),
            reader.text(),
            reader.take(reader.number(1)),
        )
        cells, min_clients, max_colluding, threshold, signed = _NUMBERS.unpack(
            reader.take(_NUMBERS.size)
        )
        reader.end()
        try:
            config = cls(
                round_id,
                binding,
                cells,
                min_clients,
                max_colluding,
                threshold or None,
                bool(signed),
            )
        except InputError as error:
            raise SecureAggregationError(
                f"Expected a message START that can be used. {error}"
            ) from None
        if signed > 1 or config.hash != claimed:
            raise reader.error("the hash of its configuration", "another")
        return config

    @property
    def _body(self) -> bytes:
        numbers = self.cells, self.min_clients, self.max_colluding, self.threshold or 0, self.signed
        return (
            pack_text(self.round_id)
            + bytes([len(self.binding)])
            + self.binding
            + _NUMBERS.pack(*numbers)
        )
