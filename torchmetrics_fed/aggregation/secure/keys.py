"""Keys: X25519 agreement, HKDF-SHA256, sealed boxes, Ed25519 signatures and commitments.

Every key, hash and signature is bound to its purpose by a label: none can stand for another.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from torchmetrics_fed.errors import InputError, SecureAggregationError

KEY_BYTES = 32
"""Bytes of a key of X25519, Ed25519 or ChaCha20."""

SIGNATURE_BYTES = 64
"""Bytes of an Ed25519 signature."""

TAG_BYTES = 16
"""Bytes by which a sealed box is longer than its content."""

_NONCE = bytes(12)
"""The nonce of every box. A key seals one box, so that the nonce need not differ."""

_DOMAIN = b"torchmetrics-fed secure aggregation 2 "
"""The beginning of every hashed text, with the version of the protocol."""


def digest(label: bytes, *parts: bytes) -> bytes:
    """Return the SHA-256 of the parts, each with its length, under a label."""
    hasher = hashlib.sha256(_DOMAIN)
    for part in (label, *parts):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def derive(secret: bytes, label: bytes, *context: bytes) -> bytes:
    """Return a key that is derived from a secret for one purpose, by HKDF-SHA256."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=digest(label, *context)).derive(secret)


def box_key(secret: bytes, roster: bytes, sender: int, recipient: int) -> bytes:
    """Return the key of the box that a sender seals for a recipient."""
    return derive(secret, b"box", roster, _ordered(sender, recipient))


def pair_key(secret: bytes, context: bytes, index: int, partner: int) -> bytes:
    """Return the key of the mask that two clients share, the same for both."""
    lower = min(index, partner)
    higher = max(index, partner)
    return derive(secret, b"pairwise mask", context, _ordered(lower, higher))


def seed_key(seed: bytes, context: bytes, index: int) -> bytes:
    """Return the key of the mask that a client makes from its seed."""
    return derive(seed, b"self mask", context, _ordered(index))


def commitment(seed: bytes, roster: bytes, index: int) -> bytes:
    """Return the hash of a seed. The server compares it with the seed that it reconstructs."""
    return digest(b"seed commitment", roster, _ordered(index), seed)


def _ordered(*indices: int) -> bytes:
    return b"".join(index.to_bytes(2, "little") for index in indices)


class KeyPair:
    """An X25519 key pair, fresh unless its private key is given."""

    def __init__(self, private: bytes | None = None) -> None:
        if private is None:
            self._key = X25519PrivateKey.generate()
        else:
            self._key = X25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        """The private key, 32 bytes."""
        return self._key.private_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """Return the secret that this pair has in common with the owner of a public key."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise SecureAggregationError(
                "Expected a public key of X25519 but got one that agrees with every key on the "
                "same secret. Leave out the client that sent it."
            ) from None


def seal(key: bytes, content: bytes) -> bytes:
    """Return the content encrypted and authenticated. A key seals once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """Return the content of a box. Raises if it was sealed with another key, or changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except InvalidTag:
        raise SecureAggregationError(
            "Expected a ciphertext that was made for this client in this round but it does not "
            "open. Start a new round; if it happens again leave out its sender."
        ) from None


class SigningKeys(NamedTuple):
    """A long-term Ed25519 key pair."""

    signing: bytes
    verification: bytes


def new_signing_keys() -> SigningKeys:
    """Return a fresh key pair for signatures.

    The signing key stays with the client. The verification key goes to all other clients.

    Example:
        >>> from torchmetrics_fed.aggregation.secure import new_signing_keys
        >>> signing, verification = new_signing_keys()
        >>> len(signing)
        32
    """
    key = Ed25519PrivateKey.generate()
    return SigningKeys(key.private_bytes_raw(), key.public_key().public_bytes_raw())


def signing_key_of(private: bytes) -> Ed25519PrivateKey:
    """Return the key that signs a client's statements. A statement is a digest under a label."""
    try:
        return Ed25519PrivateKey.from_private_bytes(private)
    except (TypeError, ValueError):
        raise InputError(
            f"Expected argument `signing_key` to be the {KEY_BYTES} bytes of an Ed25519 private "
            f"key but got another {type(private).__name__}. Make one with new_signing_keys()."
        ) from None


def is_signed(statement: bytes, signature: bytes, verification: bytes) -> bool:
    """Return whether the owner of the verification key has signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(verification).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
