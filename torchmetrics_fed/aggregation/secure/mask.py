"""Mask: keystreams that are added to a vector modulo 2^64 and cancel in the sum; masked_sum, of ranks that all stay.

All arithmetic is between uint64 arrays because numpy makes a float of ``uint64 + int64``.
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

_WORD = np.dtype("<u8")
# Block counter and nonce: every key makes one keystream.
_START = bytes(16)

_NONCE_BYTES = 16
PAYLOAD_BYTES = KEY_BYTES + DIGEST_BYTES + _NONCE_BYTES
# The view of a rank that cannot take part; no hash is this.
_REFUSAL = bytes(DIGEST_BYTES)


class MaskedVector:
    """A vector modulo 2^64, zero at first, to which vectors and masks are added."""

    def __init__(self, cells: int) -> None:
        self._words: NDArray[np.uint64] = np.zeros(cells, dtype=_WORD)
        self._zeros = bytes(8 * cells)
        self._stream = bytearray(8 * cells)

    def add(self, values: NDArray[np.int64]) -> None:
        known = isinstance(values, np.ndarray)
        if not known or values.dtype != np.int64 or values.shape != self._words.shape:
            kind = f"{values.dtype} of shape {values.shape}" if known else type(values).__name__
            raise InputError(
                f"Expected a vector of int64 of shape {self._words.shape} but got {kind}; it is not sent."
            )
        self._words += np.ascontiguousarray(values, dtype="<i8").view(_WORD)

    def add_bytes(self, data: bytes) -> None:
        self._words += np.frombuffer(data, dtype=_WORD)

    def mask(self, key: bytes) -> None:
        self._words += self._keystream(key)

    def unmask(self, key: bytes) -> None:
        self._words -= self._keystream(key)

    def mask_pair(self, key: bytes, own: int, other: int) -> None:
        """Add the mask of a pair on the side of the lower index, subtract it on the other."""
        (self.mask if own < other else self.unmask)(key)

    def copy(self) -> MaskedVector:
        other = MaskedVector(len(self._words))
        other._words += self._words
        return other

    @property
    def values(self) -> NDArray[np.int64]:
        """The values as integers from -2^63 to 2^63 - 1."""
        return self._words.view("<i8").astype(np.int64)

    def to_bytes(self) -> bytes:
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

    Hides a rank's vector from who listens to the transport and from other ranks, but not from n - 1 of them together
    (with two ranks, from the other), nor from who can change what the ranks exchange.

    The vector is int64, of the same shape on every rank. ``view`` is what this rank believes: spec, round, world;
    unless all are the same every rank raises. ``exchange`` returns the payloads of all ranks in their order, 80 bytes
    each, this one's at ``rank``; ``sum`` the sum of all ranks' int64 tensors, wrapping around.
    """
    usable = isinstance(vector, Tensor) and vector.dtype == torch.int64
    belief = digest(b"ranks view", view, repr(tuple(vector.shape)).encode()) if usable else _REFUSAL
    pair, nonce = KeyPair(), secrets.token_bytes(_NONCE_BYTES)
    payload = pair.public + belief + nonce
    payloads = exchange(payload)
    if not usable:  # only now, so that the other ranks do not wait
        got = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise InputError(f"Expected argument `vector` to be int64 but got {got}; nothing was sent.")
    _check(payloads, payload, rank)
    if len(payloads) == 1:
        return vector.clone()
    context = digest(b"ranks", *payloads)
    masked = MaskedVector(vector.numel())
    for other, theirs in enumerate(payloads):
        if other != rank:
            secret = pair.agree(theirs[:KEY_BYTES])
            masked.mask_pair(pair_key(secret, context, rank, other), rank, other)
    masked.add(vector.detach().cpu().numpy().reshape(-1))
    return sum(torch.from_numpy(masked.values).reshape(vector.shape).to(vector.device))


def _check(payloads: list[bytes], own: bytes, rank: int) -> None:
    """Raise, on every rank alike, unless all have the same view and keys of their own."""
    if any(len(payload) != PAYLOAD_BYTES for payload in payloads):
        raise SyncError(
            f"Expected {PAYLOAD_BYTES} bytes of every rank but got others. Install one version on all."
        )
    beliefs = [payload[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] for payload in payloads]
    refusing = [place for place, belief in enumerate(beliefs) if belief == _REFUSAL]
    if refusing:
        raise SyncError(
            f"Expected int64 vectors on all ranks but not so on ranks {refusing}; nothing was sent."
        )
    if len(set(beliefs)) > 1:
        raise SyncError(
            f"Expected all {len(payloads)} ranks to sum the same but they have {len(set(beliefs))} views of spec, "
            "round and shape; nothing was sent. Build the metric with the same arguments on every rank."
        )
    if len({payload[:KEY_BYTES] for payload in payloads}) != len(payloads):
        raise SyncError(
            "Expected every rank to have a key of its own but one came twice; nothing was sent."
        )
    if not 0 <= rank < len(payloads) or payloads[rank] != own:
        raise SyncError(
            f"Expected this rank's payload at place {rank} of {len(payloads)} but it is not there; nothing was sent. "
            "Pass `rank` and `exchange` of the same group."
        )
