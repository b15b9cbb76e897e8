"""Test vectors of secure aggregation; `vectors.py` writes them.

Random draws of the package are replaced, here and in no public call, by values that the vectors
list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
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

NAMES = ("ann", "ben", "cem", "dia")
"""The clients."""
VECTORS = {"ann": [1, -2, 3], "ben": [2**62, 0, -7], "cem": [2**62, 5, 0]}
"""The vectors that are summed: dia drops out after she has shared her keys. The first cell wraps
around."""
ROUND_ID = "7/1"
BINDING = hashlib.sha256(b"what is summed").digest()
CELLS = 3
MIN_CLIENTS = 3
MAX_COLLUDING = 1


class ThresholdCase(NamedTuple):
    """A number of clients, and what a config demands of them."""

    clients: int
    min_clients: int
    max_colluding: int


THRESHOLD_CASES = (
    ThresholdCase(3, 3, 1),
    ThresholdCase(4, 3, 1),
    ThresholdCase(10, 8, 1),
    ThresholdCase(10, 6, 5),
    ThresholdCase(64, 8, 1),
    ThresholdCase(1024, 100, 99),
)


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
    """Return the vectors of the parts of secure aggregation, each by itself."""
    return {
        "digest": {
            "label": "cohort",
            "parts": [b"".hex(), b"ab".hex()],
            "digest": keys.digest(b"cohort", b"", b"ab").hex(),
        },
        "agreement": agreement(),
        "seed": {
            "seed": listed("seed").hex(),
            "context": listed("context").hex(),
            "index": 258,
            "key": keys.seed_key(listed("seed"), listed("context"), 258).hex(),
            "commitment": keys.commitment(listed("seed"), listed("context"), 258).hex(),
        },
        "mask": keystream(),
        "box": {
            "key": listed("box").hex(),
            "content": b"two shares".hex(),
            "box": keys.seal(listed("box"), b"two shares").hex(),
        },
        "shamir": shared_secret(),
        "thresholds": [thresholds(case) for case in THRESHOLD_CASES],
    }


def agreement() -> dict[str, Any]:
    """Return two key pairs, their common secret, and keys that are made from it."""
    pair = keys.KeyPair(listed("key", 0))
    peer = keys.KeyPair(listed("key", 1))
    secret = pair.agree(peer.public)
    context = listed("context")
    return {
        "private": [pair.private.hex(), peer.private.hex()],
        "public": [pair.public.hex(), peer.public.hex()],
        "secret": secret.hex(),
        "context": context.hex(),
        "box_key_from_4_to_1": keys.box_key(secret, context, 4, 1).hex(),
        "pair_key_of_4_and_1": keys.pair_key(secret, context, 4, 1).hex(),
    }


def keystream() -> dict[str, Any]:
    """Return the words of a mask."""
    stream = mask.MaskedVector(4)
    stream.mask(listed("stream"))
    return {
        "key": listed("stream").hex(),
        "words": [str(word) for word in stream.values.view(np.uint64)],
    }


def shared_secret() -> dict[str, Any]:
    """Return five shares of a secret, three of which are enough."""
    coefficients = [listed("coefficient", 0), (shamir.PRIME - 1).to_bytes(33, "little")]
    with mock.patch.object(shamir, "secrets", ListedNumbers(reversed(coefficients))):
        shares = shamir.split(listed("secret"), 3, 5)
    return {
        "secret": listed("secret").hex(),
        "coefficients": [coefficient.hex() for coefficient in coefficients],
        "shares": [share.hex() for share in shares],
    }


def thresholds(case: ThresholdCase) -> dict[str, int]:
    """Return the default threshold, and the smallest one that is safe."""
    config = SecureAggregationConfig("r", b"b", 1, case.min_clients, case.max_colluding)
    return {
        "clients": case.clients,
        "min_clients": case.min_clients,
        "max_colluding": case.max_colluding,
        "default": config.threshold_for(case.clients),
        "least": max(case.min_clients, (case.clients + case.max_colluding) // 2 + 1),
    }


class ListedNumbers:
    """Stands for the module `secrets`: returns listed numbers, little-endian, in turn."""

    def __init__(self, numbers: Iterable[bytes]) -> None:
        self._numbers = iter(list(numbers))

    def randbelow(self, bound: int) -> int:
        """Return the next number."""
        return int.from_bytes(next(self._numbers), "little")


class ListedBytes:
    """Stands for the module `secrets`: returns the same bytes again and again."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def token_bytes(self, size: int) -> bytes:
        """Return the bytes."""
        return self._value


@contextmanager
def drawing(values: dict[str, Any]) -> Iterator[None]:
    """Let a client draw the listed values: two key pairs, then a seed and the polynomials."""
    sealing_key = keys.KeyPair(bytes.fromhex(values["sealing_key"]))
    masking_key = keys.KeyPair(bytes.fromhex(values["masking_key"]))
    coefficients: list[bytes] = []
    for polynomial in ("key_coefficients", "seed_coefficients"):
        falling = reversed(values[polynomial])
        coefficients.extend(bytes.fromhex(coefficient) for coefficient in falling)
    seed = ListedBytes(bytes.fromhex(values["seed"]))
    with (
        mock.patch.object(keys, "KeyPair", side_effect=[sealing_key, masking_key]),
        mock.patch.object(client, "secrets", seed),
        mock.patch.object(shamir, "secrets", ListedNumbers(coefficients)),
    ):
        yield


def draws_of(name: str, threshold: int, *, signed: bool) -> dict[str, Any]:
    """Return the values that stand for a client's random draws, in hexadecimal."""
    values: dict[str, Any] = {}
    for key in ("sealing_key", "masking_key", "seed"):
        values[key] = listed(signed, name, key).hex()
    for polynomial in ("key", "seed"):
        values[f"{polynomial}_coefficients"] = [
            listed(signed, name, polynomial, power).hex() for power in range(1, threshold)
        ]
    if signed:
        values["signing_key"] = listed(name, "signing key").hex()
    return values


class RecordedServer:
    """The server, with a record of all messages from it and to it."""

    def __init__(self, server: SecureAggregationServer) -> None:
        self.server = server
        self.messages: list[dict[str, str]] = []

    def send(self, message: bytes, receivers: Iterable[str]) -> bytes:
        """Record a message from the server, and return it."""
        self.messages.append(
            {"kind": kind_of(message).name, "to": ", ".join(receivers), "hex": message.hex()}
        )
        return message

    def receive(self, name: str, message: bytes) -> None:
        """Record a message from a client, and let the server read it."""
        self.messages.append({"kind": kind_of(message).name, "from": name, "hex": message.hex()})
        self.server.receive(name, message)


def run(signed: bool) -> dict[str, Any]:
    """Return all messages of an aggregation of four clients.

    One of them drops out before she masks.
    """
    config = SecureAggregationConfig(
        round_id=ROUND_ID, binding=BINDING, cells=CELLS, min_clients=MIN_CLIENTS, signed=signed
    )
    threshold = config.threshold_for(len(NAMES))
    draws = {name: draws_of(name, threshold, signed=signed) for name in NAMES}
    signing_keys: dict[str, bytes] = {}
    if signed:
        signing_keys = {name: bytes.fromhex(draws[name]["signing_key"]) for name in NAMES}
    verification_keys = {
        name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
        for name, key in signing_keys.items()
    }
    clients = {
        name: SecureAggregationClient(
            name, config, signing_keys.get(name), verification_keys or None
        )
        for name in NAMES
    }
    server = SecureAggregationServer(config, verification_keys or None)
    recorded = RecordedServer(server)
    keys_message = _exchange_keys(recorded, clients, draws)
    _mask_and_unmask(recorded, clients, signed=signed)
    total, survivors = server.sum()
    roster = Roster.from_bytes(keys_message, config)
    cohort = tuple(range(len(NAMES)))
    survivor_numbers = tuple(roster.indices[name] for name in survivors)
    return {
        "config": {
            "round_id": ROUND_ID,
            "binding": BINDING.hex(),
            "cells": CELLS,
            "min_clients": MIN_CLIENTS,
            "max_colluding": MAX_COLLUDING,
            "threshold": None,
            "signed": signed,
        },
        "threshold": threshold,
        "drawn": draws,
        "verification_keys": {name: key.hex() for name, key in verification_keys.items()},
        "vectors": VECTORS,
        "hashes": {
            "config": config.hash.hex(),
            "roster": roster.hash.hex(),
            "cohort": roster.cohort_hash(cohort).hex(),
            "survivors": roster.survivors_hash(cohort, survivor_numbers).hex(),
        },
        "messages": recorded.messages,
        "survivors": list(survivors),
        "sum": total.tolist(),
    }


def _exchange_keys(
    recorded: RecordedServer,
    clients: dict[str, SecureAggregationClient],
    draws: dict[str, dict[str, Any]],
) -> bytes:
    """Let all clients advertise and share their keys, and return the message with all keys."""
    recorded.send(recorded.server.start(), NAMES)
    for name in NAMES:
        with drawing(draws[name]):
            advertisement = clients[name].advertise()
        recorded.receive(name, advertisement)
    keys_message = recorded.send(recorded.server.keys(), NAMES)
    for name in NAMES:
        with drawing(draws[name]):
            boxes = clients[name].share_keys(keys_message)
        recorded.receive(name, boxes)
    return keys_message


def _mask_and_unmask(
    recorded: RecordedServer, clients: dict[str, SecureAggregationClient], *, signed: bool
) -> None:
    """Let the clients that have not dropped out mask their vectors, and unmask the sum."""
    server = recorded.server
    boxes = {}
    for name, message in server.ciphertexts().items():
        boxes[name] = recorded.send(message, [name])
    for name, values in VECTORS.items():
        vector = np.array(values)
        recorded.receive(name, clients[name].mask(boxes[name], partial(np.copy, vector)))
    if signed:
        survivors = recorded.send(server.survivors(), VECTORS)
        for name in VECTORS:
            recorded.receive(name, clients[name].sign_survivors(survivors))
    request = recorded.send(server.request(), VECTORS)
    for name in VECTORS:
        recorded.receive(name, clients[name].unmask(request))


class ListedRank:
    """One of three ranks, whose draws are listed, and whose masked vector is kept."""

    def __init__(self, number: int) -> None:
        self.private = listed("rank", number)
        self.nonce = listed("nonce", number)[:16]
        self.masked = torch.empty(0)

    def payload(self, belief: bytes) -> bytes:
        """Return what the rank sends to all others first."""
        return keys.KeyPair(self.private).public + belief + self.nonce

    def keep(self, vector: torch.Tensor) -> torch.Tensor:
        """Keep a masked vector in place of summing it."""
        self.masked = vector
        return vector

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let the rank draw its key and its nonce."""
        pair = keys.KeyPair(self.private)
        with (
            mock.patch.object(mask, "KeyPair", return_value=pair),
            mock.patch.object(mask, "secrets", ListedBytes(self.nonce)),
        ):
            yield


def ranks() -> dict[str, Any]:
    """Return what three ranks exchange and sum."""
    view = b"view"
    vectors = [[5, -1], [7, 0], [2**63 - 1, 4]]
    belief = keys.digest(b"ranks view", view, repr((2,)).encode())
    all_ranks = [ListedRank(number) for number in range(len(vectors))]
    payloads = [rank.payload(belief) for rank in all_ranks]
    for number, rank in enumerate(all_ranks):
        with rank.drawing():
            mask.masked_sum(
                torch.tensor(vectors[number]),
                number,
                view,
                exchange=lambda payload: payloads,
                sum=rank.keep,
            )
    masked = [rank.masked for rank in all_ranks]
    return {
        "view": view.hex(),
        "shape": "(2,)",
        "private": [rank.private.hex() for rank in all_ranks],
        "nonces": [rank.nonce.hex() for rank in all_ranks],
        "vectors": vectors,
        "payloads": [payload.hex() for payload in payloads],
        "masked": [vector.tolist() for vector in masked],
        "sum": torch.stack(masked).sum(0).tolist(),
    }
