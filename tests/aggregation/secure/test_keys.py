"""Keys: two clients agree on one secret, and every key has one purpose."""

from __future__ import annotations

import pytest

from torchmetrics_fed.aggregation.secure import new_signing_keys
from torchmetrics_fed.aggregation.secure.keys import (
    KeyPair,
    box_key,
    commitment,
    digest,
    is_signed,
    pair_key,
    seal,
    seed_key,
    signing_key_of,
    unseal,
)
from torchmetrics_fed.errors import InputError, SecureAggregationError

SECRET = bytes(32)


def test_two_clients_agree_on_the_key_of_their_mask() -> None:
    ann = KeyPair()
    ben = KeyPair()
    key = pair_key(ann.agree(ben.public), b"context", 3, 5)
    assert key == pair_key(ben.agree(ann.public), b"context", 5, 3)


def test_every_key_is_for_one_purpose() -> None:
    keys = {
        box_key(SECRET, b"a", 1, 2),
        box_key(SECRET, b"a", 2, 1),
        box_key(SECRET, b"a", 1, 258),
        pair_key(SECRET, b"a", 1, 2),
        pair_key(SECRET, b"b", 1, 2),
        seed_key(SECRET, b"a", 1),
        seed_key(SECRET, b"a", 2),
        commitment(SECRET, b"a", 1),
    }
    assert len(keys) == 8


def test_a_digest_depends_on_where_its_parts_end() -> None:
    digests = {digest(b"a", b"bc"), digest(b"ab", b"c"), digest(b"a", b"b", b"c"), digest(b"abc")}
    assert len(digests) == 4


def test_a_box_opens_with_its_key_only_and_unchanged() -> None:
    box = seal(SECRET, b"content")
    assert unseal(SECRET, box) == b"content"
    with pytest.raises(SecureAggregationError, match="does not open"):
        unseal(bytes([1] * 32), box)
    for place in range(len(box)):
        changed = box[:place] + bytes([box[place] ^ 1]) + box[place + 1 :]
        with pytest.raises(SecureAggregationError, match="does not open"):
            unseal(SECRET, changed)


def test_a_signature_is_of_one_statement_and_one_key() -> None:
    keys = new_signing_keys()
    signature = signing_key_of(keys.signing).sign(b"statement")
    assert is_signed(b"statement", signature, keys.verification)
    assert not is_signed(b"another statement", signature, keys.verification)
    assert not is_signed(b"statement", signature, new_signing_keys().verification)
    assert not is_signed(b"statement", signature, b"no key")


@pytest.mark.parametrize("private", [b"short", "text", None])
def test_a_signing_key_is_32_bytes(private: object) -> None:
    with pytest.raises(InputError, match="`signing_key` to be the 32 bytes"):
        signing_key_of(private)  # type: ignore[arg-type]
