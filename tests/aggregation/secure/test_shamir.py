"""Shamir: enough shares give the secret, fewer shares fit any secret, wrong shares are seen."""

from __future__ import annotations

import secrets
from itertools import combinations

import pytest

from torchmetrics_fed import InputError
from torchmetrics_fed.aggregation.secure.shamir import PRIME, SHARE_BYTES, Combiner, split
from torchmetrics_fed.errors import SecureAggregationError


def number(share: bytes) -> int:
    return int.from_bytes(share, "little")


def test_the_order_of_the_field_is_a_prime_beyond_every_secret() -> None:
    """The test of Miller and Rabin."""
    assert PRIME > 2**256
    odd = PRIME - 1
    twos = 0
    while odd % 2 == 0:
        odd //= 2
        twos += 1
    random_bases = [2 + secrets.randbelow(PRIME - 3) for _ in range(30)]
    for base in (2, 3, 5, 7, 11, 13, *random_bases):
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
    combiner = Combiner([place + 1 for place in places])
    assert combiner.combine([shares[place] for place in places]) == secret


def test_one_share_too_few_fits_every_secret() -> None:
    """For every secret there is a third share that gives it together with the first two.

    The secret is 3 f(1) - 3 f(2) + f(3).
    """
    first, second, *_ = split(secrets.token_bytes(32), 3, 4)
    for secret in (bytes(32), b"\x55" * 32):
        third = number(secret) - 3 * number(first) + 3 * number(second)
        shares = [first, second, (third % PRIME).to_bytes(33, "little")]
        assert Combiner([1, 2, 3]).combine(shares) == secret


def test_the_same_secret_is_never_shared_the_same_way() -> None:
    assert len({split(bytes(32), 3, 3)[0] for _ in range(20)}) == 20


def test_shares_add() -> None:
    shares_of_5 = split((5).to_bytes(32, "little"), 2, 3)
    shares_of_7 = split((7).to_bytes(32, "little"), 2, 3)
    shares = []
    for share_of_5, share_of_7 in zip(shares_of_5, shares_of_7, strict=True):
        value = (number(share_of_5) + number(share_of_7)) % PRIME
        shares.append(value.to_bytes(33, "little"))
    assert Combiner([2, 3]).combine(shares[1:]) == (12).to_bytes(32, "little")


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
