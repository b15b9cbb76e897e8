"""SecureSumConfig: what all parties of one sum agree on, and how many of them it takes to open it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torchmetrics_fed.errors import InputError, SecureSumError
from torchmetrics_fed.sync.secure_sum.keys import digest
from torchmetrics_fed.sync.secure_sum.wire import Kind, Reader, frame, pack_text, pack_u16, text_size

__all__ = ["MOST_CELLS", "MOST_CLIENTS", "SecureSumConfig"]

# Everyone agrees on a key with everyone: beyond this the cost is no longer reasonable.
MOST_CLIENTS = 1024
MOST_CELLS = 1 << 27


@dataclass(frozen=True)
class SecureSumConfig:
    """One sum. The server sends it to the clients, who take part only if it asks for what they agreed to.

    Args:
        round_id: a name that is never used again, 1 to 255 bytes. A retry is another round.
        spec_fingerprint: what is summed, 1 to 64 bytes.
        cells: length of the vectors.
        min_clients: a sum of fewer clients is not opened; at least 3.
        max_colluding: how many clients may work with the server.
        threshold: how many clients must answer to open the sum. If not given, more than two thirds.
        signed: whether keys and survivors are signed, which protects from a server that lies.

    Example:
        >>> from torchmetrics_fed.sync.secure_sum import SecureSumConfig
        >>> SecureSumConfig("round 1", b"spec", cells=8192, min_clients=8).threshold_for(64)
        43
    """

    round_id: str
    spec_fingerprint: bytes
    cells: int
    min_clients: int
    max_colluding: int = 1
    threshold: int | None = None
    signed: bool = False

    def __post_init__(self) -> None:
        for name, size, most in (
            ("round_id", text_size(self.round_id), 255),
            ("spec_fingerprint", len(self.spec_fingerprint) if isinstance(self.spec_fingerprint, bytes) else 0, 64),
        ):
            if not 1 <= size <= most:
                raise InputError(f"Expected argument `{name}` of 1 to {most} bytes but got {getattr(self, name)!r}.")
        self._check_int("cells", self.cells, 1, MOST_CELLS)
        self._check_int("min_clients", self.min_clients, 3, MOST_CLIENTS)
        self._check_int("max_colluding", self.max_colluding, 0, self.min_clients - 1)
        if self.threshold is not None:
            self._check_int("threshold", self.threshold, self.min_clients, MOST_CLIENTS)
        if not isinstance(self.signed, bool):
            raise InputError(f"Expected argument `signed` to be a bool but got {type(self.signed).__name__}.")

    @staticmethod
    def _check_int(name: str, value: int, least: int, most: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InputError(
                f"Expected argument `{name}` to be an int from {least} to {most} but got {value!r}. With fewer than 3 "
                "clients, or if all collude, a sum hides nobody."
            )

    def threshold_for(self, clients: int) -> int:
        r"""Return how many of the clients it takes to open the sum.

        At least :math:`\lfloor (n + c) / 2 \rfloor + 1`: two sets of as many then have an honest client in common, who
        answers once, even if the c colluding ones answer twice.
        """
        least = max(self.min_clients, (clients + self.max_colluding) // 2 + 1)
        threshold = max(least, 2 * clients // 3 + 1) if self.threshold is None else self.threshold
        if not least <= threshold <= clients <= MOST_CLIENTS:
            raise SecureSumError(
                f"Expected a threshold from {least} to the number of clients but got {threshold} for {clients} clients "
                f"with min_clients={self.min_clients} and max_colluding={self.max_colluding}. "
                + ("Wait for more clients." if threshold > clients else "Raise the threshold or invite fewer clients.")
            )
        return threshold

    @cached_property
    def hash(self) -> bytes:
        """The hash that every message carries."""
        return digest(b"config", self._body)

    def to_bytes(self) -> bytes:
        """Return the message that starts the sum."""
        return frame(Kind.START, self.hash, self._body)

    @classmethod
    def from_bytes(cls, data: bytes) -> SecureSumConfig:
        """Return the configuration in a message. Whether to take part in such a sum is the client's to decide."""
        reader = Reader(data, Kind.START, None)
        round_id = reader.text()
        fingerprint = reader.take(reader.take(1)[0])
        cells = int.from_bytes(reader.take(4), "little")
        min_clients, max_colluding, threshold = reader.u16(), reader.u16(), reader.u16()
        signed = reader.take(1)[0]
        reader.end()
        try:
            config = cls(round_id, fingerprint, cells, min_clients, max_colluding, threshold or None, bool(signed))
        except InputError as error:
            raise SecureSumError(f"Expected a message START that can be used. {error}") from None
        if signed > 1 or config.hash != reader.config:
            raise reader.error("the hash of its configuration", "another")
        return config

    @property
    def _body(self) -> bytes:
        return b"".join(
            (
                pack_text(self.round_id),
                bytes([len(self.spec_fingerprint)]) + self.spec_fingerprint,
                self.cells.to_bytes(4, "little"),
                pack_u16(self.min_clients),
                pack_u16(self.max_colluding),
                pack_u16(self.threshold or 0),
                bytes([self.signed]),
            )
        )
