"""Wire: the frame of all bytes that this package sends or keeps, and one reader that checks before it reads.

A frame is magic, version, kind and a body. Integers are little-endian; a text is a length of one byte and UTF-8. A
sealed frame ends with a checksum of all that stands before it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise

from torchmetrics_fed.errors import FederatedMetricError, WireError

DIGEST_BYTES = 32
_HEADER = struct.Struct("<4sBB")
_MAGIC = b"TMFD"
VERSION = 3
"""The version of the wire format: a change to any byte is a new one."""


class Kind(IntEnum):
    """What a message is."""

    QUERY = 1
    SHARE = 2
    RELEASE = 3
    # a stage's request, and any file of the folder that carries one
    STAGE_REQUEST = 4
    FILE = 5
    # secure aggregation, in the order of its stages
    START = 10
    ADVERTISE = 11
    KEYS = 12
    KEY_SHARES = 13
    CIPHERTEXTS = 14
    MASKED = 15
    SURVIVORS = 16
    SIGNATURE = 17
    REQUEST = 18
    ANSWER = 19
    # never sent: what a client, a coordinator or a node keeps for its next process
    PROGRESS = 30
    CLIENT = 31
    COORDINATOR = 32
    NOTES = 33


def frame(kind: Kind, *parts: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, VERSION, kind) + b"".join(parts)


def sealed_frame(kind: Kind, *parts: bytes) -> bytes:
    """Return a frame that ends with its SHA-256, which finds damage. It is no signature: anybody can compute it."""
    data = frame(kind, *parts)
    return data + hashlib.sha256(data).digest()


def kind_of(data: bytes) -> Kind:
    """Return what a message is, or raise if it is none of this package, or of another version."""
    if len(data) < _HEADER.size or data[:4] != _MAGIC:
        raise WireError("Expected bytes that this package wrote but got others.")
    _check_version(data[4])
    if data[5] not in set(Kind):
        raise WireError(
            f"Expected a message that this package knows but got one of unknown kind {data[5]}."
        )
    return Kind(data[5])


def _check_version(version: int, error: type[FederatedMetricError] = WireError) -> None:
    if version != VERSION:
        raise error(
            f"Expected version {VERSION} of the wire format but got version {version}. Install one version of "
            "torchmetrics-fed everywhere, and make the message or the file again with it."
        )


def pack_text(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise WireError(
            f"Expected a text that UTF-8 can encode but got {text!r}. Use another name."
        ) from error
    if len(encoded) > 255:
        raise WireError(
            f"Expected a name of at most 255 bytes but got {len(encoded)}. Send a digest of it."
        )
    return bytes([len(encoded)]) + encoded


def text_size(text: object) -> int:
    """Return the length of a text in UTF-8; 0 of what is no text."""
    try:
        return len(text.encode()) if isinstance(text, str) else 0
    except UnicodeEncodeError:
        return 0


def pack_block(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def pack_indices(indices: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{1 + len(indices)}H", len(indices), *indices)


def pack_table(rows: Mapping[int, bytes]) -> bytes:
    return pack_indices(tuple(sorted(rows))) + b"".join(rows[index] for index in sorted(rows))


class Reader:
    """Reads the body of a message of one kind, or raises. It never takes more bytes than there are.

    Args:
        data: the message.
        kind: which kind it must be.
        error: what is raised.
        sealed: whether the message ends with a checksum, which is compared before anything is read.
    """

    def __init__(
        self,
        data: bytes | bytearray,
        kind: Kind,
        error: type[FederatedMetricError] = WireError,
        *,
        sealed: bool = False,
    ) -> None:
        self._kind, self._error = kind, error
        if not isinstance(data, bytes | bytearray) or len(data) < _HEADER.size:
            got = f"{len(data)}" if isinstance(data, bytes | bytearray) else type(data).__name__
            raise self.error(f"at least {_HEADER.size} bytes", got)
        magic, version, came = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise self.error(f"the magic {_MAGIC!r}", f"{magic!r}")
        _check_version(version, error)
        if came != kind:
            name = Kind(came).name if came in set(Kind) else f"of unknown kind {came}"
            raise error(
                f"Expected a message {kind.name} but got one {name}. Send what was asked for."
            )
        self._data = memoryview(data).toreadonly()
        self._at = _HEADER.size
        if sealed:
            self._open_seal()

    def _open_seal(self) -> None:
        body = self._data[:-DIGEST_BYTES]
        if hashlib.sha256(body).digest() != self._data[-DIGEST_BYTES:]:
            raise self._error(
                f"Expected a message {self._kind.name} with its own checksum but got another: the file was damaged, "
                "cut or changed after it was written. Get it once more from where it came from."
            )
        self._data = body

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._data):
            raise self.error(f"{end} bytes or more", str(len(self._data)))
        self._at, start = end, self._at
        return self._data[start:end]

    @property
    def rest(self) -> memoryview:
        return self._data[self._at :]

    def number(self, size: int) -> int:
        return int.from_bytes(self.view(size), "little")

    def block(self) -> bytes:
        return self.take(self.number(8))

    def text(self, empty: bool = False) -> str:
        """Return a text of up to 255 bytes, of at least one unless it may be empty."""
        encoded = self.take(self.number(1))
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            raise self.error("a text in UTF-8", "other bytes") from None
        if not text and not empty:
            raise self.error("a text", "an empty one")
        return text

    def indices(self, below: int) -> tuple[int, ...]:
        count = self.number(2)
        if count > below:
            raise self.error(f"at most {below} clients", str(count))
        numbers = struct.unpack(f"<{count}H", self.view(2 * count))
        if any(one >= other for one, other in pairwise((*numbers, below))):
            raise self.error(f"increasing indices below {below}", "others")
        return numbers

    def rows(self, count: int, size: int) -> list[bytes]:
        """Return ``count`` pieces of ``size`` bytes, once all are known to be there."""
        table = self.take(count * size)
        return [table[size * place : size * (place + 1)] for place in range(count)]

    def table(self, below: int, size: int) -> dict[int, bytes]:
        indices = self.indices(below)
        return dict(zip(indices, self.rows(len(indices), size), strict=True))

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.error(f"{self._at} bytes", str(len(self._data)))

    def error(self, expected: str, got: str) -> FederatedMetricError:
        return self._error(
            f"Expected {expected} in a message {self._kind.name} but got {got}. It was cut or changed on its way, or "
            "is something else: send the bytes as they were made."
        )
