"""LedgerEntry: one private release, and the checks of what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from torchmetrics_fed.errors import InputError


@dataclass(frozen=True)
class LedgerEntry:
    """One private release: of which data, in which round, at what price, by what, and when it was charged (UTC).

    ``spec`` is the digest of what was agreed on and ``session`` the random name of who counted the data; both are empty
    where a release is entered by hand. A round may be given as an integer and is kept as a string: rounds 1 and "1" are
    the same.

    Example:
        >>> from torchmetrics_fed import PrivacyLedger
        >>> entry = PrivacyLedger().spend("validation", round=1, epsilon=0.5)
        >>> entry.data, entry.round, entry.epsilon
        ('validation', '1', 0.5)
    """

    data: str
    round: str
    epsilon: float
    delta: float = 0.0
    mechanism: str = ""
    time: str = field(default="", compare=False)
    spec: str = ""
    session: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "round", _plain(self.round))
        object.__setattr__(self, "epsilon", checked_epsilon("epsilon", self.epsilon))
        object.__setattr__(self, "delta", checked_delta(self.delta))
        named = {"data": "a name", "round": "an integer or a name"}
        for name in ("data", "round", "mechanism", "time", "spec", "session"):
            value = getattr(self, name)
            if not isinstance(value, str) or (name in named and not value) or not _is_text(value):
                raise InputError(f"Expected argument `{name}` to be {named.get(name, 'a string')} but got {value!r}.")

    @property
    def key(self) -> tuple[str, str, str]:
        """Data, round and spec: entries that agree in it are one release."""
        return self.data, self.round, self.spec

    @property
    def amounts(self) -> tuple[float, float]:
        """Epsilon and delta."""
        return self.epsilon, self.delta


def checked_epsilon(name: str, value: Any) -> float:
    """``value`` as a float if it is finite and positive."""
    number = _number(value)
    if not 0 < number < math.inf:
        raise InputError(f"Expected argument `{name}` to be a finite number > 0 but got {value!r}.")
    return number


def checked_delta(value: Any) -> float:
    """``value`` as a float if it is a probability below 1."""
    number = _number(value)
    if not 0 <= number < 1:
        raise InputError(f"Expected argument `delta` to be a number in [0, 1) but got {value!r}.")
    return number


def _number(value: Any) -> float:
    """``value`` as a float, and NaN if it is none. No -0.0, which not every store keeps."""
    try:
        return float(value) + 0.0 if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    return str(int(value)) if isinstance(value, Integral) and not isinstance(value, bool) else value
