"""Shamir's secret sharing over the prime field of order 2^256 + 297: any ``threshold`` shares give the secret.

The secret is the value at 0 of a random polynomial of degree ``threshold - 1``; share x is its value at x. Fewer shares
fit every secret equally well. Not constant-time: fine for secrets that are used once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from torchmetrics_fed.errors import InputError, SecureAggregationError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

# A point is below 2^16, so this many steps add at most 128 bits before the next reduction.
_LAZY_STEPS = 8


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return the shares at points 1 to ``count``, of which any ``threshold`` give ``secret``."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < 1 << 16:
        raise InputError(
            f"Expected a secret of {SECRET_BYTES} bytes and 1 <= threshold <= count < 65536 but got {len(secret)} "
            f"bytes, threshold {threshold} and count {count}."
        )
    falling = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [
        int.from_bytes(secret, "little")
    ]
    blocks = [falling[start : start + _LAZY_STEPS] for start in range(0, threshold, _LAZY_STEPS)]
    return [
        _evaluate(blocks, point).to_bytes(SHARE_BYTES, "little") for point in range(1, count + 1)
    ]


def _evaluate(blocks: list[list[int]], point: int) -> int:
    """Horner's rule, reduced once a block."""
    value = 0
    for block in blocks:
        for coefficient in block:
            value = value * point + coefficient
        value %= PRIME
    return value


class Combiner:
    r"""Gives the secrets of which shares at the same points are known.

    The secret is :math:`\sum_i \lambda_i f(x_i)` with Lagrange's :math:`\lambda_i = \prod_{j \ne i} x_j / (x_j - x_i)`,
    computed once for all secrets.
    """

    def __init__(self, points: Sequence[int]) -> None:
        if (
            len(set(points)) != len(points)
            or not points
            or not all(0 < point < 1 << 16 for point in points)
        ):
            raise InputError(
                f"Expected distinct points between 1 and 65535 but got {len(points)} that are not."
            )
        self._weights = [_weight(point, points) for point in points]

    def combine(self, shares: Sequence[bytes]) -> bytes:
        """Return the secret; shares that do not belong together give a wrong one, or raise."""
        values = [int.from_bytes(share, "little") for share in shares]
        if len(values) != len(self._weights) or any(value >= PRIME for value in values):
            raise SecureAggregationError(
                f"Expected {len(self._weights)} shares below the field's order but got {len(values)}, or one beyond "
                "it. Leave out the client that sent it."
            )
        secret = (
            sum(weight * value for weight, value in zip(self._weights, values, strict=True)) % PRIME
        )
        if secret >> 8 * SECRET_BYTES:
            raise SecureAggregationError(
                f"Expected shares of a secret of {SECRET_BYTES} bytes but they give a longer one: a share is corrupt. "
                "Start a new round."
            )
        return secret.to_bytes(SECRET_BYTES, "little")


def _weight(point: int, points: Sequence[int]) -> int:
    above = below = 1
    for other in points:
        if other != point:
            above, below = above * other % PRIME, below * (other - point) % PRIME
    return above * pow(below, -1, PRIME) % PRIME
