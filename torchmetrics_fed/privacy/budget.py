"""LedgerEntry: what one release costs. Budget: what all may cost, by addition (exact) or privacy loss distributions."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from torchmetrics_fed.errors import BudgetExceededError, InputError, LedgerConflictError, check_choice

Amounts = tuple[float, float]
Composition = Literal["addition", "pld"]

_FINEST = 1e-4  # grid of the losses; coarser for a large sum, so that about 1e5 cells are the most ever held
_CELLS = 1e5
_LARGEST = 50.0  # beyond it e^epsilon is noise in float64, and addition is as good


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
        if isinstance(self.round, Integral) and not isinstance(self.round, bool):
            object.__setattr__(self, "round", str(int(self.round)))
        object.__setattr__(self, "epsilon", _checked_epsilon("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _checked_delta(self.delta))
        named = {"data": "a name", "round": "an integer or a name"}
        for name in ("data", "round", "mechanism", "time", "spec", "session"):
            value = getattr(self, name)
            known = isinstance(value, str) and value.encode(errors="replace").decode() == value
            if not known or (name in named and not value):
                raise InputError(f"Expected argument `{name}` to be {named.get(name, 'a string')} but got {value!r}.")

    @property
    def key(self) -> tuple[str, str, str]:
        """Data, round and spec: entries that agree in it are one release."""
        return self.data, self.round, self.spec

    @property
    def amounts(self) -> tuple[float, float]:
        return self.epsilon, self.delta


class Spent(NamedTuple):
    """What all releases cost together."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Budget:
    """All releases together are (``epsilon``, ``delta``)-differentially private; None is no limit."""

    epsilon: float | None = None
    delta: float = 1e-6
    composition: Composition = "addition"
    time: str = field(default="", compare=False)
    """When it was recorded in a file (UTC)."""

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.12g} at delta {self.delta:g}, composed by {self.composition}"

    def agreed(self, given: dict[str, Any], change: bool) -> Budget:
        """Return what is recorded, or with ``change`` what is given; raise where the two differ without it."""
        wanted = replace(self, **given)
        if wanted != self and not change:
            raise LedgerConflictError(
                f"Expected the budget that this ledger's file has recorded, {self}, but got {wanted}. Leave out "
                "`budget`, `delta` and `composition`, or pass `change_budget=True` if whoever answers for the data "
                "wants another budget."
            )
        return wanted

    def spent(self, amounts: Sequence[Amounts]) -> Spent:
        if self.composition == "pld":
            return Spent(compose_pld(amounts, self.delta), self.delta)
        epsilon, delta = add_up(amounts)
        return Spent(float(epsilon), float(delta))

    def left(self, amounts: Sequence[Amounts]) -> float:
        """Epsilon that is left after releases with these (epsilon, delta)."""
        if self.epsilon is None:
            return math.inf
        if self.composition == "pld":
            return max(0.0, self.epsilon - self.spent(amounts).epsilon)
        return max(0.0, float(exact(self.epsilon) - add_up(amounts)[0]))

    def check(self, amounts: Sequence[Amounts], new: Amounts) -> None:
        if self.epsilon is None:
            return
        after, excess = [*amounts, new], ""
        if self.composition == "pld":
            together = compose_pld(after, self.delta)
            if together > self.epsilon:
                excess = f"this release needs epsilon {new[0]} and makes it {together:.6g} of {self.epsilon} in all"
                excess += f" (at delta {self.delta}), {self.left(amounts):.6g} of {self.epsilon} is left"
        else:
            epsilon, delta = add_up(after)
            if epsilon > exact(self.epsilon):
                excess = f"this release needs epsilon {new[0]}, {self.left(amounts)} of {self.epsilon} is left"
            elif delta > exact(self.delta):
                left = max(0.0, float(exact(self.delta) - add_up(amounts)[1]))
                excess = f"this release needs delta {new[1]}, {left} of {self.delta} is left"
        if excess:
            raise BudgetExceededError(
                f"Expected a release within the budget but {excess}. Release no more of this data, or build the ledger "
                "with a larger `budget` or `delta`, and `change_budget=True` if it is a file."
            )


def checked_budget(
    budget: float | None, delta: float | None, composition: str | None, name: str = "composition"
) -> dict[str, Any]:
    """The fields of a :class:`Budget` that are given; ``name`` is what the caller calls the composition."""
    given = {
        "epsilon": None if budget is None else _checked_epsilon("budget", budget),
        "delta": None if delta is None else _checked_delta(delta),
        "composition": composition,
    }
    if composition is not None:
        check_choice(name, composition, get_args(Composition))
    return {name: value for name, value in given.items() if value is not None}


def _checked_epsilon(name: str, value: Any) -> float:
    number = _number(value)
    if not 0 < number < math.inf:
        raise InputError(f"Expected argument `{name}` to be a finite number > 0 but got {value!r}.")
    return number


def _checked_delta(value: Any) -> float:
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


def exact(value: float) -> Fraction:
    """The decimal that ``value`` prints as, so that a hundred times 0.1 is 10 and not 9.99999999999998.

    It differs from the binary ``value`` by at most half a unit in the last place, 1.2e-16 of it.
    """
    return Fraction(repr(float(value)))


def add_up(amounts: Iterable[tuple[float, float]]) -> tuple[Fraction, Fraction]:
    """Sum of the epsilons and of the deltas: holds for any mechanisms, amounts chosen as one goes along included."""
    epsilon, delta = Fraction(0), Fraction(0)
    for (one, other), times in Counter(amounts).items():
        epsilon += times * exact(one)
        delta += times * exact(other)
    return epsilon, delta


def compose_pld(amounts: Iterable[tuple[float, float]], delta: float) -> float:
    r"""An epsilon that all releases together satisfy at ``delta``; infinite if their own deltas are above it.

    Each release counts as the worst mechanism with its amounts: randomised response, whose privacy loss is
    :math:`\pm\varepsilon` with odds :math:`e^\varepsilon`, and infinite with probability :math:`\delta`. Every
    :math:`(\varepsilon, \delta)` mechanism is a post-processing of it (Kairouz, Oh, Viswanath 2015), so nothing is
    assumed of the noise. Losses are rounded up. Never above the sum where the sum holds at ``delta`` too.

    The releases may depend on earlier results, and so may stopping; the amounts must not (addition allows even that).
    """
    count = Counter(amounts)
    total, deltas = add_up(count.elements())
    added = float(total) if deltas <= exact(delta) else math.inf
    if not count or max(epsilon for epsilon, _ in count) > _LARGEST:
        return added
    library = pld_library()
    interval = max(_FINEST, float(total) / _CELLS)
    composed = None
    for (epsilon, own), times in count.items():
        worst = library.common.DifferentialPrivacyParameters(epsilon, own)
        one = library.privacy_loss_distribution.from_privacy_parameters(worst, interval).self_compose(times)
        composed = one if composed is None else composed.compose(one)
    assert composed is not None
    return min(added, float(composed.get_epsilon_for_delta(delta)))


def pld_library() -> Any:
    """The ``dp_accounting.pld`` package, or an error that says how to get it."""
    try:
        return importlib.import_module("dp_accounting.pld")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected the package `dp-accounting` for composition by PLD but it is not installed. "
            "Run `pip install dp-accounting`, or compose by addition.",
            name=error.name,
        ) from error
