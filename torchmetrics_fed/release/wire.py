"""Wire: the frame of all bytes that this package sends or stores, and the reader that checks them.

These rules hold for every message:

- A frame is magic, version, kind and a body. Integers are little-endian. A text is a length of one
  byte and UTF-8. A block is a length of eight bytes and the content.
- A sealed frame ends with the SHA-256 of all bytes before it. The checksum finds damage. It is not
  a signature: anyone can compute it.
- A value has one encoding. Readers compare lengths with the input before they allocate anything,
  and refuse bytes that are left over.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise

from torchmetrics_fed.errors import FederatedMetricError, WireError

DIGEST_BYTES = 32
"""Bytes of a SHA-256 digest."""

VERSION = 3
"""The version of the wire format. A change of any byte is a new version."""

_MAGIC = b"TMFD"
"""The first bytes of every message."""

_HEADER = struct.Struct("<4sBB")
"""Magic, version, kind."""


class Kind(IntEnum):
    """The kinds of messages, with their byte on the wire."""

    QUERY = 1
    SHARE = 2
    RELEASE = 3
    # the request of a stage, and any file of a shared folder
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
    # never sent: the state that a client, a coordinator or a node stores for its next process
    PROGRESS = 30
    CLIENT = 31
    COORDINATOR = 32
    NOTES = 33


def frame(kind: Kind, *parts: bytes) -> bytes:
    """Return a message of this kind. The parts, joined, are its body."""
    return _HEADER.pack(_MAGIC, VERSION, kind) + b"".join(parts)


def sealed_frame(kind: Kind, *parts: bytes) -> bytes:
    """Return a message that ends with its SHA-256."""
    data = frame(kind, *parts)
    return data + hashlib.sha256(data).digest()


def kind_of(data: bytes) -> Kind:
    """Return the kind of a message. Raises for foreign bytes and for another version."""
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
            f"Expected version {VERSION} of the wire format but got version {version}. Install one "
            "version of torchmetrics-fed everywhere, and make the message or the file again with "
            "it."
        )


def pack_text(text: str) -> bytes:
    """Return the length of a text in one byte, and the text in UTF-8."""
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
    """Return the bytes of a text in UTF-8; 0 for a value that is not a text."""
    if not isinstance(text, str):
        return 0
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def pack_block(data: bytes) -> bytes:
    """Return the length of ``data`` in eight bytes, and ``data``."""
    return len(data).to_bytes(8, "little") + data


def pack_indices(indices: tuple[int, ...]) -> bytes:
    """Return the number of indices, and the indices, two bytes each."""
    return struct.pack(f"<{1 + len(indices)}H", len(indices), *indices)


def pack_table(rows: Mapping[int, bytes]) -> bytes:
    """Return the indices of the rows in ascending order, and the rows in this order."""
    indices = tuple(sorted(rows))
    return pack_indices(indices) + b"".join(rows[index] for index in indices)


class Reader:
    """Reads the body of a message of one kind, or raises. It never takes more bytes than there are.

    Args:
        data: the message.
        kind: the kind that the message must have.
        error: the class of the errors that are raised.
        sealed: whether the message ends with a checksum, which is compared before the body is read.
    """

    def __init__(
        self,
        data: bytes | bytearray,
        kind: Kind,
        error: type[FederatedMetricError] = WireError,
        *,
        sealed: bool = False,
    ) -> None:
        self._kind = kind
        self._error = error
        self._check_header(data)
        self._data = memoryview(data).toreadonly()
        self._position = _HEADER.size
        if sealed:
            self._open_seal()

    def _check_header(self, data: bytes | bytearray) -> None:
        least = f"at least {_HEADER.size} bytes"
        if not isinstance(data, bytes | bytearray):
            raise self.error(least, type(data).__name__)
        if len(data) < _HEADER.size:
            raise self.error(least, f"{len(data)}")
        magic, version, kind = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise self.error(f"the magic {_MAGIC!r}", f"{magic!r}")
        _check_version(version, self._error)
        if kind == self._kind:
            return
        name = f"of unknown kind {kind}"
        if kind in set(Kind):
            name = Kind(kind).name
        raise self._error(
            f"Expected a message {self._kind.name} but got one {name}. Send what was asked for."
        )

    def _open_seal(self) -> None:
        body = self._data[:-DIGEST_BYTES]
        checksum = self._data[-DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != checksum:
            raise self._error(
                f"Expected a message {self._kind.name} with its own checksum but got another: the "
                "file was damaged, cut or changed after it was written. Get it once more from "
                "where it came from."
            )
        self._data = body

    def take(self, size: int) -> bytes:
        """Return a copy of the next ``size`` bytes."""
        return bytes(self.view(size))

    def view(self, size: int) -> memoryview:
        """Return the next ``size`` bytes, without a copy."""
        start = self._position
        end = start + size
        if end > len(self._data):
            raise self.error(f"{end} bytes or more", str(len(self._data)))
        self._position = end
        return self._data[start:end]

    @property
    def rest(self) -> memoryview:
        """All bytes that were not read yet, without a copy."""
        return self._data[self._position :]

    def number(self, size: int) -> int:
        """Return the integer in the next ``size`` bytes."""
        return int.from_bytes(self.view(size), "little")

    def block(self) -> bytes:
        """Return the content that :func:`pack_block` packed."""
        return self.take(self.number(8))

    def text(self, empty: bool = False) -> str:
        """Return the text that :func:`pack_text` packed. An empty text raises unless ``empty``."""
        encoded = self.take(self.number(1))
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            raise self.error("a text in UTF-8", "other bytes") from None
        if not text and not empty:
            raise self.error("a text", "an empty one")
        return text

    def indices(self, below: int) -> tuple[int, ...]:
        """Return the indices that :func:`pack_indices` packed: ascending, all below ``below``."""
        count = self.number(2)
        if count > below:
            raise self.error(f"at most {below} clients", str(count))
        indices = struct.unpack(f"<{count}H", self.view(2 * count))
        if any(index >= successor for index, successor in pairwise((*indices, below))):
            raise self.error(f"increasing indices below {below}", "others")
        return indices

    def rows(self, count: int, size: int) -> list[bytes]:
        """Return ``count`` rows of ``size`` bytes. Raises first if they are not all there."""
        table = self.take(count * size)
        return [table[size * place : size * (place + 1)] for place in range(count)]

    def table(self, below: int, size: int) -> dict[int, bytes]:
        """Return the rows that :func:`pack_table` packed, by their index."""
        indices = self.indices(below)
        rows = self.rows(len(indices), size)
        return dict(zip(indices, rows, strict=True))

    def end(self) -> None:
        """Raise if bytes are left over."""
        if self._position != len(self._data):
            raise self.error(f"{self._position} bytes", str(len(self._data)))

    def error(self, expected: str, got: str) -> FederatedMetricError:
        """Return the error for a message whose content is not what the format asks for."""
        return self._error(
            f"Expected {expected} in a message {self._kind.name} but got {got}. It was cut or "
            "changed on its way, or is something else: send the bytes as they were made."
        )
