"""masked_sum: a sum over ranks that do not drop out, in which no rank's vector travels unmasked."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch
from torch import Tensor

from torchmetrics_fed.aggregation.secure.keys import KEY_BYTES, KeyPair, digest, pair_key
from torchmetrics_fed.aggregation.secure.mask import MaskedVector
from torchmetrics_fed.errors import InputError, SyncError
from torchmetrics_fed.release.wire import DIGEST_BYTES

_NONCE_BYTES = 16
PAYLOAD_BYTES = KEY_BYTES + DIGEST_BYTES + _NONCE_BYTES
# The view of a rank that cannot take part; no hash is this.
_REFUSAL = bytes(DIGEST_BYTES)


def masked_sum(
    vector: Tensor, rank: int, view: bytes, exchange: Callable[[bytes], list[bytes]], sum: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the sum of all ranks' vectors modulo 2^64, each sent under masks that cancel.

    Hides a rank's vector from who listens to the transport and from other ranks, but not from n - 1 of them together
    (with two ranks, from the other), nor from who can change what the ranks exchange.

    Args:
        vector: int64, of the same shape on every rank.
        rank: this rank's place in what ``exchange`` returns.
        view: what this rank believes: spec, round, world. Unless all are the same every rank raises.
        exchange: returns the payloads of all ranks in their order, 80 bytes each.
        sum: returns the sum of all ranks' int64 tensors, wrapping around.
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
            f"Expected {PAYLOAD_BYTES} bytes of every rank but got others. Install the same version on all."
        )
    beliefs = [payload[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] for payload in payloads]
    refusing = [place for place, belief in enumerate(beliefs) if belief == _REFUSAL]
    if refusing:
        raise SyncError(f"Expected int64 vectors on all ranks but not so on ranks {refusing}; nothing was sent.")
    if len(set(beliefs)) > 1:
        raise SyncError(
            f"Expected all {len(payloads)} ranks to sum the same but they have {len(set(beliefs))} views of spec, "
            "round and shape; nothing was sent. Build the metric with the same arguments on every rank."
        )
    if len({payload[:KEY_BYTES] for payload in payloads}) != len(payloads):
        raise SyncError("Expected every rank to have a key of its own but one came twice; nothing was sent.")
    if not 0 <= rank < len(payloads) or payloads[rank] != own:
        raise SyncError(
            f"Expected this rank's payload at place {rank} of {len(payloads)} but it is not there; nothing was sent. "
            "Pass `rank` and `exchange` of the same group."
        )
