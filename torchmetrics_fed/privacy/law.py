"""Law: the noise in a reply, as a ledger records it.

Invariants:

- The law of a reply is enough to compute its privacy loss, without the metric and the data.
- The parameter is an exact fraction, so a law that is read from a file equals the law in use.
- This module imports no numpy, so that a ledger opens fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from torchmetrics_fed.errors import InputError, check_int


@dataclass(frozen=True)
class Law:
    r"""The law of the noise in one reply, and the change it hides: the input of a composition.

    Every cell of the sum of ``shares`` honest shares has independent noise of one law, and the
    worst change between neighbouring data moves the cells by ``shifts``. So the privacy loss of a
    reply is a sum over the cells that move: for each, the loss between the law and the shifted law.

    Args:
        mechanism: the name of the law.
        parameter: of the noise in the sum, exactly. ``"polya"``: the rate r of the two-sided
            geometric law, whose mass at x is proportional to :math:`e^{-r |x|}`. ``"gamma"``: the
            rate of the Laplace law, whose density is proportional to the same. ``"skellam"``: the
            mean of each of the two Poisson laws. ``"discrete_gaussian"``: sigma squared; the sum of
            n shares is the convolution of n discrete Gaussians, each with the n-th part of it.
        shifts: pairs of a shift and the number of cells that move by it.
        shares: the smallest number of honest shares in the sum.

    Example:
        >>> from fractions import Fraction
        >>> from torchmetrics_fed.privacy.law import Law
        >>> print(Law("polya", Fraction(1, 3), shifts=((1, 3),), shares=7))
        polya 0.333333, shift x cells 1x3, 7 shares
    """

    mechanism: str
    parameter: Fraction
    shifts: tuple[tuple[int, int], ...]
    shares: int = 1

    def __post_init__(self) -> None:
        if self.parameter <= 0:
            raise InputError(
                f"Expected argument `parameter` to be above 0 but got {self.parameter!r}."
            )
        check_int("shares", self.shares, 1)
        for shift, cells in self.shifts:
            check_int("shifts", shift, 1)
            check_int("shifts", cells, 1)

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values; the parameter is text, "numerator/denominator"."""
        return {
            "mechanism": self.mechanism,
            "parameter": f"{self.parameter.numerator}/{self.parameter.denominator}",
            "shifts": [list(pair) for pair in self.shifts],
            "shares": self.shares,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Law:
        """Return the law whose :attr:`fields` these are."""
        return cls(
            mechanism=fields["mechanism"],
            parameter=Fraction(fields["parameter"]),
            shifts=tuple((shift, cells) for shift, cells in fields["shifts"]),
            shares=fields["shares"],
        )

    def __str__(self) -> str:
        shifts = " ".join(f"{shift}x{cells}" for shift, cells in self.shifts)
        shares = "1 share" if self.shares == 1 else f"{self.shares} shares"
        return f"{self.mechanism} {float(self.parameter):.6g}, shift x cells {shifts}, {shares}"
