"""Shamir's laws: enough shares give the secret, fewer fit any secret, wrong ones are seen."""

from __future__ import annotations

import secrets
from itertools import combinations

import pytest

from torchmetrics_fed import InputError
from torchmetrics_fed.aggregation.secure.shamir import PRIME, SHARE_BYTES, Combiner, split
from torchmetrics_fed.errors import SecureAggregationError


def test_the_order_of_the_field_is_a_prime_beyond_every_secret() -> None:
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (
        2,
        3,
        5,
        7,
        11,
        13,
        *(2 + secrets.randbelow(PRIME - 3) for _ in range(30)),
    ):  # Miller-Rabin
        values = [pow(base, odd << power, PRIME) for power in range(twos)]
        assert values[0] == 1 or PRIME - 1 in values


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (1, 4), (3, 4), (4, 4), (3, 6)])
def test_every_set_of_threshold_shares_gives_the_secret(
    secret: bytes, threshold: int, count: int
) -> None:
    shares = split(secret, threshold, count)
    assert all(len(share) == SHARE_BYTES for share in shares)
    for places in combinations(range(count), threshold):
        combiner = Combiner([place + 1 for place in places])
        assert combiner.combine([shares[place] for place in places]) == secret


def test_large_sets_give_the_secret() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, 171, 256)
    places = sorted(secrets.SystemRandom().sample(range(256), 171))
    assert (
        Combiner([place + 1 for place in places]).combine([shares[place] for place in places])
        == secret
    )


def test_one_share_too_few_fits_every_secret() -> None:
    shares = split(secrets.token_bytes(32), 3, 4)
    for wanted in (bytes(32), b"\x55" * 32):  # a third share exists that makes it this secret
        partial = [
            Combiner([1, 2, 3])._weights[place] * int.from_bytes(shares[place], "little")
            for place in (0, 1)
        ]
        third = (int.from_bytes(wanted, "little") - sum(partial)) * pow(
            Combiner([1, 2, 3])._weights[2], -1, PRIME
        )
        assert (
            Combiner([1, 2, 3]).combine([*shares[:2], (third % PRIME).to_bytes(33, "little")])
            == wanted
        )


def test_the_same_secret_is_never_shared_the_same_way() -> None:
    assert len({split(bytes(32), 3, 3)[0] for _ in range(20)}) == 20


def test_shares_add() -> None:
    one, other = (split(number.to_bytes(32, "little"), 2, 3) for number in (5, 7))
    added = [
        ((int.from_bytes(a, "little") + int.from_bytes(b, "little")) % PRIME).to_bytes(33, "little")
        for a, b in zip(one, other, strict=True)
    ]
    assert Combiner([2, 3]).combine(added[1:]) == (12).to_bytes(32, "little")


def test_misuse_is_refused() -> None:
    for threshold, count in ((0, 3), (4, 3), (2, 1 << 16)):
        with pytest.raises(InputError, match="Expected a secret of 32 bytes"):
            split(bytes(32), threshold, count)
    with pytest.raises(InputError, match="Expected a secret of 32 bytes"):
        split(bytes(33), 2, 3)
    for points in ([], [1, 1], [0, 1], [1 << 16]):
        with pytest.raises(InputError, match="Expected distinct points"):
            Combiner(points)
    with pytest.raises(SecureAggregationError, match="beyond"):
        Combiner([1]).combine([b"\xff" * 33])
    with pytest.raises(SecureAggregationError, match="Expected 2 shares"):
        Combiner([1, 2]).combine([bytes(33)])
    with pytest.raises(SecureAggregationError, match="a share is corrupt"):
        Combiner([1]).combine([(PRIME - 1).to_bytes(33, "little")])
