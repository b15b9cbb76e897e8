"""A key that all ranks of a group have and a listener on their transport does not have."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from torchmetrics_fed.aggregation.secure.keys import (
    KEY_BYTES,
    TAG_BYTES,
    KeyPair,
    box_key,
    digest,
    seal,
    unseal,
)

BOX_BYTES = KEY_BYTES + TAG_BYTES
"""Bytes of a sealed key."""


def agreed_key(rank: int, exchange: Callable[[bytes], list[bytes]]) -> bytes:
    """Return a fresh key, the same on every rank.

    The first rank draws it, and seals it for every other rank with a secret that the two agree on
    by X25519. It hides from a listener. It does not hide from a party that can change the messages
    of the ranks, as nobody authenticates the ranks of a process group.

    Args:
        rank: the place of this rank.
        exchange: returns the payloads of all ranks in their order.
    """
    pair = KeyPair()
    public_keys = exchange(pair.public)
    context = digest(b"ranks key", *public_keys)
    if rank != 0:
        boxes = exchange(bytes(BOX_BYTES * len(public_keys)))[0]
        box = boxes[BOX_BYTES * rank : BOX_BYTES * (rank + 1)]
        return unseal(box_key(pair.agree(public_keys[0]), context, 0, rank), box)
    key = secrets.token_bytes(KEY_BYTES)
    sealed = [bytes(BOX_BYTES)]  # the first rank has the key
    for partner in range(1, len(public_keys)):
        secret = pair.agree(public_keys[partner])
        sealed.append(seal(box_key(secret, context, 0, partner), key))
    exchange(b"".join(sealed))
    return key
