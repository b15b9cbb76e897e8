"""Arguments of the samplers, checked and made exact."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from torchmetrics_fed.errors import InputError

Number = Fraction | int | float
"""A float is a dyadic rational, and taken as exactly that."""

Shape = int | Sequence[int]


def checked_number(name: str, value: Number, least: float, most: float) -> Fraction:
    """`value` as a fraction, if within [least, most]."""
    if not least <= value <= most:
        raise InputError(f"Expected `{name}` within [{least:.3g}, {most:.3g}], but got {value}.")
    exact = Fraction(value.item() if isinstance(value, np.generic) else value)
    # A fraction made of numpy integers keeps them, and they would overflow.
    return Fraction(int(exact.numerator), int(exact.denominator))


def checked_clients(clients: int) -> int:
    """The number of clients that share the noise."""
    if isinstance(clients, float) or operator.index(clients) < 1:
        raise InputError(f"Expected `clients` to be an integer of at least 1, but got {clients}.")
    return operator.index(clients)


def checked_shape(shape: Shape) -> tuple[int, ...]:
    """`shape` as a tuple."""
    sides = shape if isinstance(shape, Sequence) else (shape,)
    if any(side < 0 for side in sides):
        raise InputError(f"Expected `shape` to have no negative side, but got {shape}.")
    return tuple(map(operator.index, sides))
