"""Test vectors of secure aggregation; `vectors.py` writes them.

What the package draws at random is replaced, here and in no public call, by values that the vectors
list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from torchmetrics_fed.aggregation.secure import (
    SecureAggregationClient,
    SecureAggregationConfig,
    SecureAggregationServer,
    client,
    keys,
    mask,
    shamir,
)
from torchmetrics_fed.aggregation.secure.roster import Roster
from torchmetrics_fed.release.wire import kind_of

NAMES = "ann", "ben", "cem", "dia"
VECTORS = {"ann": [1, -2, 3], "ben": [2**62, 0, -7], "cem": [2**62, 5, 0]}
"""What is summed: dia drops out after she has shared her keys. The first cell wraps around."""
CONFIG = {
    "round_id": "7/1",
    "binding": hashlib.sha256(b"what is summed").digest(),
    "cells": 3,
    "min_clients": 3,
}


def listed(*names: object) -> bytes:
    """Return 32 bytes that stand for random ones."""
    return hashlib.sha256(" ".join(map(str, ("vectors", *names))).encode()).digest()


def vectors() -> dict[str, Any]:
    """Return the vectors of secure aggregation."""
    return {
        **primitives(),
        "unsigned": run(signed=False),
        "signed": run(signed=True),
        "ranks": ranks(),
    }


def primitives() -> dict[str, Any]:
    """Return the vectors of what secure aggregation is made of, each by itself."""
    one, other = (keys.KeyPair(listed("key", number)) for number in range(2))
    secret, context = one.agree(other.public), listed("context")
    stream = mask.MaskedVector(4)
    stream.mask(listed("stream"))
    coefficients = [listed("coefficient", 0), (shamir.PRIME - 1).to_bytes(33, "little")]
    drawn = iter([int.from_bytes(each, "little") for each in reversed(coefficients)])
    with mock.patch.object(shamir, "secrets", SimpleNamespace(randbelow=lambda below: next(drawn))):
        parts = shamir.split(listed("secret"), 3, 5)
    return {
        "digest": {
            "label": "cohort",
            "parts": [b"".hex(), b"ab".hex()],
            "digest": keys.digest(b"cohort", b"", b"ab").hex(),
        },
        "agreement": {
            "private": [one.private.hex(), other.private.hex()],
            "public": [one.public.hex(), other.public.hex()],
            "secret": secret.hex(),
            "context": context.hex(),
            "box_key_from_4_to_1": keys.box_key(secret, context, 4, 1).hex(),
            "pair_key_of_4_and_1": keys.pair_key(secret, context, 4, 1).hex(),
        },
        "seed": {
            "seed": listed("seed").hex(),
            "context": context.hex(),
            "index": 258,
            "key": keys.seed_key(listed("seed"), context, 258).hex(),
            "commitment": keys.commitment(listed("seed"), context, 258).hex(),
        },
        "mask": {
            "key": listed("stream").hex(),
            "words": [str(word) for word in stream.values.view(np.uint64)],
        },
        "box": {
            "key": listed("box").hex(),
            "content": b"two shares".hex(),
            "box": keys.seal(listed("box"), b"two shares").hex(),
        },
        "shamir": {
            "secret": listed("secret").hex(),
            "coefficients": [each.hex() for each in coefficients],
            "shares": [each.hex() for each in parts],
        },
        "thresholds": [
            {
                "clients": n,
                "min_clients": least,
                "max_colluding": c,
                "default": SecureAggregationConfig("r", b"b", 1, least, c).threshold_for(n),
                "least": max(least, (n + c) // 2 + 1),
            }
            for n, least, c in (
                (3, 3, 1),
                (4, 3, 1),
                (10, 8, 1),
                (10, 6, 5),
                (64, 8, 1),
                (1024, 100, 99),
            )
        ],
    }


@contextmanager
def drawing(values: dict[str, Any]) -> Iterator[None]:
    """Let a client draw the listed values: two key pairs, then a seed and the polynomials."""
    pairs = [keys.KeyPair(bytes.fromhex(values[name])) for name in ("sealing_key", "masking_key")]
    falling = [
        each
        for name in ("key_coefficients", "seed_coefficients")
        for each in reversed(values[name])
    ]
    numbers = iter([int.from_bytes(bytes.fromhex(each), "little") for each in falling])
    seed = bytes.fromhex(values["seed"])
    with (
        mock.patch.object(keys, "KeyPair", side_effect=pairs),
        mock.patch.object(client, "secrets", SimpleNamespace(token_bytes=lambda size: seed)),
        mock.patch.object(
            shamir, "secrets", SimpleNamespace(randbelow=lambda below: next(numbers))
        ),
    ):
        yield


def run(signed: bool) -> dict[str, Any]:
    """Return all messages of an aggregation of four clients, one of whom drops out before it
    masks."""
    config = SecureAggregationConfig(**CONFIG, signed=signed)  # type: ignore[arg-type]
    threshold = config.threshold_for(len(NAMES))
    drawn: dict[str, dict[str, Any]] = {
        name: {
            **{
                what: listed(signed, name, what).hex()
                for what in ("sealing_key", "masking_key", "seed")
            },
            **{
                f"{what}_coefficients": [
                    listed(signed, name, what, power).hex() for power in range(1, threshold)
                ]
                for what in ("key", "seed")
            },
            **({"signing_key": listed(name, "signing key").hex()} if signed else {}),
        }
        for name in NAMES
    }
    signing = {
        name: bytes.fromhex(drawn[name]["signing_key"]) if signed else None for name in NAMES
    }
    verification = {
        name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for name, key in signing.items()
        if key is not None
    }
    known = verification if signed else None
    clients = {name: SecureAggregationClient(name, config, signing[name], known) for name in NAMES}
    server, messages = SecureAggregationServer(config, known), list[dict[str, str]]()

    def down(message: bytes, *to: str) -> bytes:
        messages.append({"kind": kind_of(message).name, "to": ", ".join(to), "hex": message.hex()})
        return message

    def up(name: str, message: bytes) -> None:
        messages.append({"kind": kind_of(message).name, "from": name, "hex": message.hex()})
        server.receive(name, message)

    down(server.start(), *NAMES)
    sent: dict[str, bytes] = {}
    for name in NAMES:
        with drawing(drawn[name]):
            sent[name] = clients[name].advertise()
        up(name, sent[name])
    keys_message = down(server.keys(), *NAMES)
    for name in NAMES:
        with drawing(drawn[name]):
            answer = clients[name].share_keys(keys_message)
        up(name, answer)
    boxes = {name: down(message, name) for name, message in server.ciphertexts().items()}
    for name, values in VECTORS.items():
        up(name, clients[name].mask(boxes[name], lambda values=values: np.array(values)))  # type: ignore[misc]
    if signed:
        survivors = down(server.survivors(), *VECTORS)
        for name in VECTORS:
            up(name, clients[name].sign_survivors(survivors))
    request = down(server.request(), *VECTORS)
    for name in VECTORS:
        up(name, clients[name].unmask(request))
    total, among = server.sum()
    roster, cohort = Roster.from_bytes(keys_message, config), tuple(range(len(NAMES)))
    hashes = {
        "config": config.hash,
        "roster": roster.hash,
        "cohort": roster.cohort_hash(cohort),
        "survivors": roster.survivors_hash(cohort, tuple(roster.indices[name] for name in among)),
    }
    return {
        "config": {
            **CONFIG,
            "binding": config.binding.hex(),
            "max_colluding": 1,
            "threshold": None,
            "signed": signed,
        },
        "threshold": threshold,
        "drawn": drawn,
        "verification_keys": {name: key.hex() for name, key in verification.items()},
        "vectors": VECTORS,
        "hashes": {name: each.hex() for name, each in hashes.items()},
        "messages": messages,
        "survivors": list(among),
        "sum": total.tolist(),
    }


def ranks() -> dict[str, Any]:
    """Return what three ranks exchange and sum."""
    view, rows = b"view", [[5, -1], [7, 0], [2**63 - 1, 4]]
    private = [listed("rank", number) for number in range(3)]
    nonces = [listed("nonce", number)[:16] for number in range(3)]
    belief = keys.digest(b"ranks view", view, repr((2,)).encode())
    payloads = [
        keys.KeyPair(key).public + belief + nonce
        for key, nonce in zip(private, nonces, strict=True)
    ]
    masked: list[torch.Tensor] = []

    def sent(vector: torch.Tensor) -> torch.Tensor:
        masked.append(vector)
        return vector

    for rank, row in enumerate(rows):
        with (
            mock.patch.object(mask, "KeyPair", lambda rank=rank: keys.KeyPair(private[rank])),
            mock.patch.object(
                mask, "secrets", SimpleNamespace(token_bytes=lambda size, rank=rank: nonces[rank])
            ),
        ):
            mask.masked_sum(torch.tensor(row), rank, view, lambda own: payloads, sent)
    return {
        "view": view.hex(),
        "shape": "(2,)",
        "private": [key.hex() for key in private],
        "nonces": [nonce.hex() for nonce in nonces],
        "vectors": rows,
        "payloads": [payload.hex() for payload in payloads],
        "masked": [vector.tolist() for vector in masked],
        "sum": torch.stack(masked).sum(0).tolist(),
    }
