"""Mask: keystreams that are added to a vector modulo 2^64 and cancel in the sum.

Two clients share the mask of a pair: the client with the lower index adds it, the other subtracts
it. :func:`masked_sum` sums the vectors of ranks that all stay to the end.

All arithmetic is between uint64 arrays, because numpy makes a float of ``uint64 + int64``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES, KeyPair, digest, pair_key
from torchmetrics_fed.errors import InputError, SyncError
from torchmetrics_fed.release.wire import DIGEST_BYTES

_NONCE_BYTES = 16
"""Bytes of the random number in a rank's payload."""

PAYLOAD_BYTES = KEY_BYTES + DIGEST_BYTES + _NONCE_BYTES
"""Bytes that each rank sends to all ranks: public key, digest of its view, random number."""

_WORD = np.dtype("<u8")
"""The dtype of a masked vector: integers modulo 2^64."""

_START = bytes(16)
"""Block counter and nonce of every keystream. A key makes one keystream."""

_REFUSAL = bytes(DIGEST_BYTES)
"""The digest that a rank sends when it cannot take part. It is no digest of a view."""


class MaskedVector:
    """A vector modulo 2^64, zero at first, to which vectors and masks are added."""

    def __init__(self, cells: int) -> None:
        self._words: NDArray[np.uint64] = np.zeros(cells, dtype=_WORD)
        self._zeros = bytes(8 * cells)
        self._stream = bytearray(8 * cells)

    def add(self, values: NDArray[np.int64]) -> None:
        """Add a vector of int64."""
        if not isinstance(values, np.ndarray):
            raise self._wrong_vector(type(values).__name__)
        if values.dtype != np.int64 or values.shape != self._words.shape:
            raise self._wrong_vector(f"{values.dtype} of shape {values.shape}")
        self._words += np.ascontiguousarray(values, dtype="<i8").view(_WORD)

    def _wrong_vector(self, got: str) -> InputError:
        return InputError(
            f"Expected a vector of int64 of shape {self._words.shape} but got {got}; it is not "
            "sent."
        )

    def add_bytes(self, data: bytes) -> None:
        """Add the vector that :meth:`to_bytes` wrote."""
        self._words += np.frombuffer(data, dtype=_WORD)

    def mask(self, key: bytes) -> None:
        """Add the keystream of a key."""
        self._words += self._keystream(key)

    def unmask(self, key: bytes) -> None:
        """Subtract the keystream of a key."""
        self._words -= self._keystream(key)

    def mask_pair(self, key: bytes, index: int, partner: int) -> None:
        """Add the mask of a pair for the client with the lower index, otherwise subtract it."""
        if index < partner:
            self.mask(key)
        else:
            self.unmask(key)

    def copy(self) -> MaskedVector:
        """Return a vector with the same values."""
        duplicate = MaskedVector(len(self._words))
        duplicate._words += self._words
        return duplicate

    @property
    def values(self) -> NDArray[np.int64]:
        """The values as integers from -2^63 to 2^63 - 1."""
        return self._words.view("<i8").astype(np.int64)

    def to_bytes(self) -> bytes:
        """Return the values, eight bytes each, little-endian."""
        return self._words.tobytes()

    def _keystream(self, key: bytes) -> NDArray[np.uint64]:
        Cipher(ChaCha20(key, _START), mode=None).encryptor().update_into(self._zeros, self._stream)
        return np.frombuffer(self._stream, dtype=_WORD)


def masked_sum(
    vector: Tensor,
    rank: int,
    view: bytes,
    exchange: Callable[[bytes], list[bytes]],
    sum: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the sum of all ranks' vectors modulo 2^64, each sent under masks that cancel.

    The masks hide a rank's vector from listeners on the transport and from other ranks. They do not
    hide it from n - 1 ranks together (of two ranks, from the other one), nor from an attacker who
    changes the payloads.

    Args:
        vector: int64, of the same shape on every rank.
        rank: the number of this rank.
        view: the description of the sum by this rank: spec, round, world. Unless it is the same on
            every rank, every rank raises.
        exchange: returns the payloads of all ranks in their order, 80 bytes each; the payload of
            this rank stands at place ``rank``.
        sum: returns the sum of all ranks' int64 tensors, wrapping around.
    """
    is_usable = isinstance(vector, Tensor) and vector.dtype == torch.int64
    view_digest = _REFUSAL
    if is_usable:
        view_digest = digest(b"ranks view", view, repr(tuple(vector.shape)).encode())
    pair = KeyPair()
    payload = pair.public + view_digest + secrets.token_bytes(_NONCE_BYTES)
    payloads = exchange(payload)
    if not is_usable:  # only now, so that the other ranks do not wait
        got = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise InputError(f"Expected argument `vector` to be int64 but got {got}; nothing was sent.")
    _check_payloads(payloads)
    if not 0 <= rank < len(payloads) or payloads[rank] != payload:
        raise SyncError(
            f"Expected this rank's payload at place {rank} of {len(payloads)} but it is not there; "
            "nothing was sent. Pass `rank` and `exchange` of the same group."
        )
    if len(payloads) == 1:
        return vector.clone()
    context = digest(b"ranks", *payloads)
    masked = MaskedVector(vector.numel())
    for partner, partner_payload in enumerate(payloads):
        if partner == rank:
            continue
        secret = pair.agree(partner_payload[:KEY_BYTES])
        key = pair_key(secret, context, rank, partner)
        masked.mask_pair(key, rank, partner)
    masked.add(vector.detach().cpu().numpy().reshape(-1))
    return sum(torch.from_numpy(masked.values).reshape(vector.shape).to(vector.device))


def _check_payloads(payloads: list[bytes]) -> None:
    """Raise, on every rank alike, unless all ranks have the same view and different keys."""
    if any(len(payload) != PAYLOAD_BYTES for payload in payloads):
        raise SyncError(
            f"Expected {PAYLOAD_BYTES} bytes of every rank but got others. Install one version on "
            "all."
        )
    views = [payload[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] for payload in payloads]
    refusing = [rank for rank, view in enumerate(views) if view == _REFUSAL]
    if refusing:
        raise SyncError(
            f"Expected int64 vectors on all ranks but not so on ranks {refusing}; nothing was sent."
        )
    if len(set(views)) > 1:
        raise SyncError(
            f"Expected all {len(payloads)} ranks to sum the same but they have {len(set(views))} "
            "views of spec, round and shape; nothing was sent. Build the metric with the same "
            "arguments on every rank."
        )
    keys = {payload[:KEY_BYTES] for payload in payloads}
    if len(keys) != len(payloads):
        raise SyncError(
            "Expected every rank to have a key of its own but one came twice; nothing was sent."
        )
