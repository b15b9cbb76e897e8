"""Keys: X25519 agreement, HKDF-SHA256, sealed boxes, signatures and commitments, each bound to what it is for."""

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
SIGNATURE_BYTES = 64
TAG_BYTES = 16

# Every key seals one box, so that the nonce need not differ.
_NONCE = bytes(12)
_DOMAIN = b"torchmetrics-fed secure aggregation 2 "


def digest(label: bytes, *parts: bytes) -> bytes:
    """Return the SHA-256 of the parts, each with its length, under a label."""
    whole = hashlib.sha256(_DOMAIN)
    for part in (label, *parts):
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def derive(secret: bytes, label: bytes, *context: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=digest(label, *context)).derive(secret)


def box_key(secret: bytes, roster: bytes, sender: int, recipient: int) -> bytes:
    return derive(secret, b"box", roster, _ordered(sender, recipient))


def pair_key(secret: bytes, context: bytes, one: int, other: int) -> bytes:
    """Return the key of the mask that two clients share, the same for both."""
    return derive(secret, b"pairwise mask", context, _ordered(min(one, other), max(one, other)))


def seed_key(seed: bytes, context: bytes, index: int) -> bytes:
    return derive(seed, b"self mask", context, _ordered(index))


def commitment(seed: bytes, roster: bytes, index: int) -> bytes:
    """Return the hash by which the server knows a seed when it sees it."""
    return digest(b"seed commitment", roster, _ordered(index), seed)


def _ordered(*indices: int) -> bytes:
    return b"".join(index.to_bytes(2, "little") for index in indices)


class KeyPair:
    """An X25519 key pair, fresh unless its private key is given."""

    def __init__(self, private: bytes | None = None) -> None:
        self._key = (
            X25519PrivateKey.generate()
            if private is None
            else X25519PrivateKey.from_private_bytes(private)
        )

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        return self._key.private_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise SecureAggregationError(
                "Expected a public key of X25519 but got one that agrees with every key on the same secret. Leave out "
                "the client that sent it."
            ) from None


def seal(key: bytes, content: bytes) -> bytes:
    """Return the content encrypted and authenticated. A key seals once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def unseal(key: bytes, box: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except InvalidTag:
        raise SecureAggregationError(
            "Expected a ciphertext that was made for this client in this round but it does not open. Start a new "
            "round; if it happens again leave out its sender."
        ) from None


class SigningKeys(NamedTuple):
    """A long-term Ed25519 key pair."""

    signing: bytes
    verification: bytes


def new_signing_keys() -> SigningKeys:
    """Return a fresh pair: the signing key stays with the client, the verification key goes to all others.

    Example:
        >>> from torchmetrics_fed.aggregation.secure import new_signing_keys
        >>> signing, verification = new_signing_keys()
        >>> len(signing)
        32
    """
    key = Ed25519PrivateKey.generate()
    return SigningKeys(key.private_bytes_raw(), key.public_key().public_bytes_raw())


def signing_key_of(private: bytes) -> Ed25519PrivateKey:
    """Return the key that signs what a client says, which is always a digest under its own label."""
    try:
        return Ed25519PrivateKey.from_private_bytes(private)
    except (TypeError, ValueError):
        raise InputError(
            f"Expected argument `signing_key` to be the {KEY_BYTES} bytes of an Ed25519 private key but got another "
            f"{type(private).__name__}. Make one with new_signing_keys()."
        ) from None


def is_signed(statement: bytes, signature: bytes, verification: bytes) -> bool:
    """Whether the signature of the statement is that of the key's owner."""
    try:
        Ed25519PublicKey.from_public_bytes(verification).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
