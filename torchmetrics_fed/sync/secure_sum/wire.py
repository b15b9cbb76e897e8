"""Wire: the frame of every message, and a reader that checks lengths before it reads.

A frame is magic, version, kind, the hash of the configuration, and a body. Integers are little-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from itertools import pairwise

from torchmetrics_fed.errors import SecureSumError

__all__ = ["HASH_BYTES", "Kind", "Reader", "frame", "pack_indices", "pack_text", "pack_u16", "text_size"]

HASH_BYTES = 32
_HEADER = struct.Struct("<4sBB32s")
_MAGIC = b"TMSS"
_VERSION = 1


class Kind(IntEnum):
    """What a message is."""

    START = 1
    ADVERTISE = 2
    KEYS = 3
    SHARES = 4
    CIPHERTEXTS = 5
    MASKED = 6
    SURVIVORS = 7
    SIGNATURE = 8
    REQUEST = 9
    ANSWER = 10
    PROGRESS = 11
    """Not sent: what a client keeps for its next process."""


def frame(kind: Kind, config: bytes, *parts: bytes) -> bytes:
    """Return the message whose body is the parts."""
    return _HEADER.pack(_MAGIC, _VERSION, kind, config) + b"".join(parts)


def pack_u16(number: int) -> bytes:
    """Return two bytes."""
    return number.to_bytes(2, "little")


def pack_text(text: str) -> bytes:
    """Return a length of one byte and the text in UTF-8."""
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def text_size(text: object) -> int:
    """Return the length of a text in UTF-8; 0 of what is no text."""
    try:
        return len(text.encode()) if isinstance(text, str) else 0
    except UnicodeEncodeError:
        return 0


def pack_indices(indices: tuple[int, ...]) -> bytes:
    """Return a count and the indices."""
    return struct.pack(f"<{1 + len(indices)}H", len(indices), *indices)


class Reader:
    """Reads the body of a message of one kind.

    Args:
        data: the message.
        kind: the kind that it must be.
        config: the hash of the configuration that it must carry; None to take any.
    """

    def __init__(self, data: bytes, kind: Kind, config: bytes | None) -> None:
        self._kind = kind
        if not isinstance(data, bytes) or len(data) < _HEADER.size:
            got = f"{len(data)}" if isinstance(data, bytes) else type(data).__name__
            raise self.error(f"at least {_HEADER.size} bytes", got)
        magic, version, came, self.config = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise SecureSumError(
                f"Expected a message of the secure sum, version {_VERSION}, but got "
                f"{f'version {version}' if magic == _MAGIC else 'something else'}. Install the same version everywhere."
            )
        if came != kind:
            name = Kind(came).name if came in set(Kind) else f"of unknown kind {came}"
            raise SecureSumError(f"Expected a message {kind.name} but got one {name}. Send what this stage asks for.")
        if config is not None and self.config != config:
            raise SecureSumError(
                f"Expected the message {kind.name} of this round and configuration but it was made for another. Give "
                "all parties the same SecureSumConfig, and do not send old messages again."
            )
        self._data = data
        self._at = _HEADER.size

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self._at + size
        if end > len(self._data):
            raise self.error(f"{end} bytes or more", str(len(self._data)))
        self._at, start = end, self._at
        return self._data[start:end]

    @property
    def rest(self) -> bytes:
        """What was not read yet."""
        return self._data[self._at :]

    def u16(self) -> int:
        """Return a number of two bytes."""
        return int.from_bytes(self.take(2), "little")

    def text(self) -> str:
        """Return a text of 1 to 255 bytes."""
        encoded = self.take(self.take(1)[0])
        try:
            text = encoded.decode()
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise self.error("a text in UTF-8", "bytes that are none")
        return text

    def indices(self, below: int) -> tuple[int, ...]:
        """Return a count and as many increasing indices."""
        count = self.u16()
        if count > below:
            raise self.error(f"at most {below} clients", str(count))
        numbers = struct.unpack(f"<{count}H", self.take(2 * count))
        return self.increasing(numbers, below)

    def increasing(self, numbers: tuple[int, ...], below: int) -> tuple[int, ...]:
        """Return the numbers if they increase and are all below a limit."""
        if any(one >= other for one, other in pairwise((*numbers, below))):
            raise self.error(f"increasing indices below {below}", "others")
        return numbers

    def rows(self, count: int, size: int) -> list[bytes]:
        """Return ``count`` pieces of ``size`` bytes, once all are known to be there."""
        table = self.take(count * size)
        return [table[start : start + size] for start in range(0, count * size, size)]

    def end(self) -> None:
        """Raise unless everything was read."""
        if self._at != len(self._data):
            raise self.error(f"{self._at} bytes", str(len(self._data)))

    def error(self, expected: str, got: str) -> SecureSumError:
        """The error that the message is not what it should be."""
        return SecureSumError(
            f"Expected {expected} in a message {self._kind.name} but got {got}. It was cut or changed on its way: send "
            "it again as it was made."
        )
