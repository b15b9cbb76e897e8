"""Mask: keystreams that are added to a vector modulo 2^64 and cancel in the sum.

All arithmetic is between uint64 arrays because numpy makes a float of ``uint64 + int64``.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from torchmetrics_fed.errors import InputError

_WORD = np.dtype("<u8")
# Block counter and nonce: every key makes one keystream.
_START = bytes(16)


class MaskedVector:
    """A vector modulo 2^64, zero at first, to which vectors and masks are added."""

    def __init__(self, cells: int) -> None:
        self._words: NDArray[np.uint64] = np.zeros(cells, dtype=_WORD)
        self._zeros = bytes(8 * cells)
        self._stream = bytearray(8 * cells)

    def add(self, values: NDArray[np.int64]) -> None:
        """Add integers, int64 and as many as there are cells."""
        if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.shape != self._words.shape:
            kind = (
                f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
            )
            raise InputError(f"Expected a vector of int64 of shape {self._words.shape} but got {kind}; it is not sent.")
        self._words += np.ascontiguousarray(values, dtype="<i8").view(_WORD)

    def add_bytes(self, data: bytes) -> None:
        """Add what another one's `to_bytes` returned."""
        self._words += np.frombuffer(data, dtype=_WORD)

    def mask(self, key: bytes) -> None:
        """Add the key's keystream."""
        self._words += self._keystream(key)

    def unmask(self, key: bytes) -> None:
        """Subtract the key's keystream."""
        self._words -= self._keystream(key)

    def mask_pair(self, key: bytes, own: int, other: int) -> None:
        """Add the mask of a pair on the side of the lower index, subtract it on the other, whose own undoes it."""
        (self.mask if own < other else self.unmask)(key)

    def copy(self) -> MaskedVector:
        """Return a vector with the same values."""
        other = MaskedVector(len(self._words))
        other._words += self._words
        return other

    @property
    def values(self) -> NDArray[np.int64]:
        """The values as integers from -2^63 to 2^63 - 1."""
        return self._words.view("<i8").astype(np.int64)

    def to_bytes(self) -> bytes:
        """Return eight bytes per cell, little-endian."""
        return self._words.tobytes()

    def _keystream(self, key: bytes) -> NDArray[np.uint64]:
        Cipher(ChaCha20(key, _START), mode=None).encryptor().update_into(self._zeros, self._stream)
        return np.frombuffer(self._stream, dtype=_WORD)
