"""Secure aggregation made from its specification alone, with nothing of the package.

docs/specifications/secure_aggregation.md must be enough to write these functions.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

PRIME = 2**256 + 297


def hash_of(label: str, *parts: bytes) -> bytes:
    """Return the hash of parts under a label."""
    data = b"torchmetrics-fed secure aggregation 2 "
    for part in (label.encode(), *parts):
        data += struct.pack("<Q", len(part)) + part
    return hashlib.sha256(data).digest()


def derive(secret: bytes, label: str, context: bytes, *indices: int) -> bytes:
    """Return a key that is derived from a secret: HKDF of RFC 5869, one block."""
    info = hash_of(label, context, struct.pack(f"<{len(indices)}H", *indices))
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def agree(private: bytes, public: bytes) -> bytes:
    """Return the secret that two key pairs have in common."""
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def public_key(private: bytes) -> bytes:
    """Return the public key that belongs to a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, statement: bytes) -> bytes:
    """Return the Ed25519 signature of a statement."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(statement)


def seal(key: bytes, content: bytes) -> bytes:
    """Return the box with a content."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, None)


def keystream(key: bytes, cells: int) -> tuple[int, ...]:
    """Return the words that a key adds to a vector."""
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * cells))
    return struct.unpack(f"<{cells}Q", stream)


def pair_sign(index: int, partner: int) -> int:
    """Return whether a client adds (1) or subtracts (-1) the mask of a pair."""
    if index < partner:
        return 1
    return -1


def pair_key(secret: bytes, context: bytes, index: int, partner: int) -> bytes:
    """Return the key of the mask of a pair."""
    lower, higher = sorted((index, partner))
    return derive(secret, "pairwise mask", context, lower, higher)


def add_mask(vector: list[int], key: bytes, sign: int = 1) -> list[int]:
    """Return a vector with a keystream added or subtracted."""
    words = keystream(key, len(vector))
    return [value + sign * word for value, word in zip(vector, words, strict=True)]


def signed_words(vector: list[int]) -> list[int]:
    """Return integers modulo 2^64, from -2^63 to 2^63 - 1."""
    return [(value + 2**63) % 2**64 - 2**63 for value in vector]


def shares_of(secret: bytes, coefficients: list[bytes], count: int) -> list[bytes]:
    """Return Shamir's shares at the points 1 to ``count``."""
    polynomial = [int.from_bytes(term, "little") for term in (secret, *coefficients)]
    shares = []
    for point in range(1, count + 1):
        value = sum(term * point**power for power, term in enumerate(polynomial))
        shares.append((value % PRIME).to_bytes(33, "little"))
    return shares


def secret_of(points: list[int], shares: list[bytes]) -> bytes:
    """Return the secret of Shamir's shares at these points."""
    total = 0
    for point, share in zip(points, shares, strict=True):
        numerator = 1
        denominator = 1
        for x in points:
            if x != point:
                numerator *= x
                denominator *= x - point
        weight = numerator * pow(denominator, PRIME - 2, PRIME)
        total += int.from_bytes(share, "little") * weight
    return (total % PRIME).to_bytes(32, "little")


def framed(kind: int, *parts: bytes) -> bytes:
    """Return a message."""
    return b"TMFD\x03" + bytes([kind]) + b"".join(parts)


def text(name: str) -> bytes:
    """Return a text with its length."""
    encoded = name.encode()
    return bytes([len(encoded)]) + encoded


def number(value: int) -> bytes:
    """Return an index or a count."""
    return struct.pack("<H", value)


def indices(*values: int) -> bytes:
    """Return indices with their number."""
    return struct.pack(f"<{1 + len(values)}H", len(values), *values)


def words(vector: list[int]) -> bytes:
    """Return a vector modulo 2^64."""
    return struct.pack(f"<{len(vector)}Q", *(value % 2**64 for value in vector))


class Run:
    """All messages of one aggregation, from the values that its clients drew.

    Every client exchanges shares; those with a vector survive.
    """

    def __init__(self, run: dict[str, Any]) -> None:
        self.config = run["config"]
        self.drawn = run["drawn"]
        self.vectors = run["vectors"]
        self.names = sorted(self.drawn)
        self.indices = range(len(self.names))
        self.survivors = [self.names.index(name) for name in run["survivors"]]
        self.config_hash = hash_of("config", self._config_body())
        self.bodies = [self._advertised(name) for name in self.names]
        self.roster = hash_of("roster", self.config_hash, *self.bodies)
        self.cohort = hash_of("cohort", self.roster, indices(*self.indices))
        self.statement = hash_of("survivors", self.cohort, indices(*self.survivors))
        self.shares = [self._shares(name) for name in self.names]

    def _secret(self, name: str, field: str) -> bytes:
        return bytes.fromhex(self.drawn[name][field])

    def _config_body(self) -> bytes:
        binding = bytes.fromhex(self.config["binding"])
        numbers = struct.pack(
            "<IHHHB",
            self.config["cells"],
            self.config["min_clients"],
            self.config["max_colluding"],
            self.config["threshold"] or 0,
            self.config["signed"],
        )
        return text(self.config["round_id"]) + bytes([len(binding)]) + binding + numbers

    def _advertised(self, name: str) -> bytes:
        sealing = public_key(self._secret(name, "sealing_key"))
        masking = public_key(self._secret(name, "masking_key"))
        return text(name) + sealing + masking

    def _shares(self, name: str) -> list[tuple[bytes, bytes]]:
        """Return, for each client, a share of the masking key and a share of the seed."""
        count = len(self.names)
        drawn = self.drawn[name]
        key_coefficients = [bytes.fromhex(term) for term in drawn["key_coefficients"]]
        seed_coefficients = [bytes.fromhex(term) for term in drawn["seed_coefficients"]]
        key_shares = shares_of(self._secret(name, "masking_key"), key_coefficients, count)
        seed_shares = shares_of(self._secret(name, "seed"), seed_coefficients, count)
        return list(zip(key_shares, seed_shares, strict=True))

    def _signature(self, name: str, statement: bytes) -> bytes:
        if not self.config["signed"]:
            return b""
        return sign(self._secret(name, "signing_key"), statement)

    def _entry(self, index: int) -> bytes:
        """Return the keys of a client, with their signature."""
        statement = hash_of("advertisement", self.config_hash, self.bodies[index])
        return self.bodies[index] + self._signature(self.names[index], statement)

    def _box(self, sender: int, recipient: int) -> bytes:
        recipient_key = self.bodies[recipient][-64:-32]
        secret = agree(self._secret(self.names[sender], "sealing_key"), recipient_key)
        key = derive(secret, "box", self.roster, sender, recipient)
        return seal(key, b"".join(self.shares[sender][recipient]))

    def others(self, index: int) -> list[int]:
        """Return all clients but one."""
        return [partner for partner in self.indices if partner != index]

    def start(self) -> bytes:
        return framed(10, self.config_hash, self._config_body())

    def advertise(self, index: int) -> bytes:
        return framed(11, self.config_hash, self._entry(index))

    def keys(self) -> bytes:
        entries = [self._entry(index) for index in self.indices]
        return framed(12, self.config_hash, number(len(entries)), *entries)

    def key_shares(self, index: int) -> bytes:
        seed = self._secret(self.names[index], "seed")
        commitment = hash_of("seed commitment", self.roster, number(index), seed)
        boxes = [self._box(index, recipient) for recipient in self.others(index)]
        return framed(13, self.config_hash, self.roster, number(index), commitment, *boxes)

    def ciphertexts(self, index: int) -> bytes:
        senders = self.others(index)
        boxes = [self._box(sender, index) for sender in senders]
        return framed(14, self.config_hash, self.roster, indices(*senders), *boxes)

    def masked(self, index: int) -> bytes:
        name = self.names[index]
        seed_key = derive(self._secret(name, "seed"), "self mask", self.cohort, index)
        vector = add_mask(self.vectors[name], seed_key)
        for partner in self.others(index):
            partner_key = self.bodies[partner][-32:]
            secret = agree(self._secret(name, "masking_key"), partner_key)
            key = pair_key(secret, self.cohort, index, partner)
            vector = add_mask(vector, key, pair_sign(index, partner))
        return framed(15, self.config_hash, self.cohort, number(index), words(vector))

    def survivors_message(self) -> bytes:
        return framed(16, self.config_hash, self.cohort, indices(*self.survivors))

    def signature(self, index: int) -> bytes:
        """Return a survivor's signature of the survivors."""
        return self._signature(self.names[index], self.statement)

    def signature_message(self, index: int) -> bytes:
        return framed(17, self.config_hash, self.statement, number(index), self.signature(index))

    def request(self) -> bytes:
        survivors = indices(*self.survivors)
        tables = [survivors]
        if self.config["signed"]:
            tables += [survivors, *map(self.signature, self.survivors)]
        return framed(18, self.config_hash, self.cohort, *tables)

    def answer(self, index: int) -> bytes:
        shares = []
        for client in self.indices:
            key_share, seed_share = self.shares[client][index]
            shares.append(seed_share if client in self.survivors else key_share)
        return framed(19, self.config_hash, self.statement, number(index), *shares)

    def total(self) -> list[int]:
        """Return the sum of the survivors' vectors."""
        vectors = [self.vectors[self.names[index]] for index in self.survivors]
        return signed_words([sum(column) for column in zip(*vectors, strict=True)])
