"""Shamir's secret sharing over the prime field of order 2^256 + 297.

The secret is the value at 0 of a random polynomial of degree ``threshold - 1``. The share at point
x is its value at x. Any ``threshold`` shares give the secret; fewer shares fit every secret equally
well (Shamir 1979). The arithmetic is not constant-time, which is fine for secrets that are used
once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from torchmetrics_fed.errors import InputError, SecureAggregationError

PRIME = 2**256 + 297
"""The order of the field: the smallest prime above every secret."""

SECRET_BYTES = 32
"""Bytes of a secret."""

SHARE_BYTES = 33
"""Bytes of a share, an element of the field."""

_MOST_POINTS = 1 << 16
"""Points are below this number."""

_LAZY_STEPS = 8
"""Steps of Horner's rule between two reductions. A point has at most 16 bits, so that the value
grows by at most 128 bits."""


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return the shares at points 1 to ``count``, of which any ``threshold`` give ``secret``."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < _MOST_POINTS:
        raise InputError(
            f"Expected a secret of {SECRET_BYTES} bytes and 1 <= threshold <= count < 65536 but "
            f"got {len(secret)} bytes, threshold {threshold} and count {count}."
        )
    # From the highest power to the constant term, which is the secret.
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    starts = range(0, threshold, _LAZY_STEPS)
    blocks = [coefficients[start : start + _LAZY_STEPS] for start in starts]
    values = [_evaluate(blocks, point) for point in range(1, count + 1)]
    return [value.to_bytes(SHARE_BYTES, "little") for value in values]


def _evaluate(blocks: list[list[int]], point: int) -> int:
    """Return the value of a polynomial at a point: Horner's rule, reduced once for each block."""
    value = 0
    for block in blocks:
        for coefficient in block:
            value = value * point + coefficient
        value %= PRIME
    return value


class Combiner:
    r"""Reconstructs secrets from their shares at the same points.

    The secret is :math:`\sum_i \lambda_i f(x_i)` with the Lagrange coefficients
    :math:`\lambda_i = \prod_{j \ne i} x_j / (x_j - x_i)`, which are computed once for all secrets.
    """

    def __init__(self, points: Sequence[int]) -> None:
        are_distinct = len(set(points)) == len(points)
        are_in_range = all(0 < point < _MOST_POINTS for point in points)
        if not points or not are_distinct or not are_in_range:
            raise InputError(
                f"Expected distinct points between 1 and 65535 but got {len(points)} that are not."
            )
        self._weights = [_weight(point, points) for point in points]

    def combine(self, shares: Sequence[bytes]) -> bytes:
        """Return the secret. Shares that do not belong together give a wrong secret, or raise."""
        values = [int.from_bytes(share, "little") for share in shares]
        if len(values) != len(self._weights) or any(value >= PRIME for value in values):
            raise SecureAggregationError(
                f"Expected {len(self._weights)} shares below the field's order but got "
                f"{len(values)}, or one beyond it. Leave out the client that sent it."
            )
        terms = [weight * value for weight, value in zip(self._weights, values, strict=True)]
        secret = sum(terms) % PRIME
        if secret >> 8 * SECRET_BYTES:
            raise SecureAggregationError(
                f"Expected shares of a secret of {SECRET_BYTES} bytes but they give a longer one: "
                "a share is corrupt. Start a new round."
            )
        return secret.to_bytes(SECRET_BYTES, "little")


def _weight(point: int, points: Sequence[int]) -> int:
    """Return the Lagrange coefficient of a point."""
    numerator = 1
    denominator = 1
    for x in points:
        if x != point:
            numerator = numerator * x % PRIME
            denominator = denominator * (x - point) % PRIME
    return numerator * pow(denominator, -1, PRIME) % PRIME
