"""Exponentials and logarithms as integers: x stands as floor(2^192 x), within one unit.

`decimal` rounds exp and ln correctly at any precision, and 80 digits (2^-265) leave bit 192 right.
The context is our own, so that a caller's precision or traps cannot change the noise.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

BITS = 192
UNIT = 1 << BITS
NEGLIGIBLE = UNIT >> 128
"""Weights below 2^-128 of the largest one are left out of tables."""


def _context() -> Context:
    return Context(80, ROUND_HALF_EVEN, -999_999, 999_999, 1, 0, flags=[], traps=[])


def _exp_minus(rate: Fraction, context: Context) -> Decimal:
    return context.exp(context.divide(Decimal(-rate.numerator), Decimal(rate.denominator)))


def decay(rate: Fraction) -> int:
    """exp(-rate), for rate >= 0."""
    context = _context()
    return int(context.multiply(_exp_minus(rate, context), Decimal(UNIT)))


def logarithmic_mass(epsilon: Fraction) -> int:
    """-ln(1 - q) = sum over k >= 1 of q^k / k, with q = exp(-epsilon), for epsilon >= 2^-40."""
    context = _context()
    success = context.subtract(Decimal(1), _exp_minus(epsilon, context))
    return int(context.multiply(context.ln(success), Decimal(-UNIT)))


def product(left: int, right: int) -> int:
    """left · right."""
    return (left * right) >> BITS
