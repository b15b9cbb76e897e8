"""Budget: how much privacy all releases together may cost, and by which composition it is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from torchmetrics_fed.errors import BudgetExceededError, InputError, LedgerConflictError
from torchmetrics_fed.privacy.composition import add_up, compose_pld, exact
from torchmetrics_fed.privacy.entry import checked_delta, checked_epsilon

Amounts = tuple[float, float]
Composition = Literal["addition", "pld"]


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
        """The cost of releases with these (epsilon, delta)."""
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
        """Raise unless there is room for a ``new`` release after those."""
        if self.epsilon is None:
            return
        after = [*amounts, new]
        excess = ""
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


def checked_budget(budget: float | None, delta: float | None, composition: str | None) -> dict[str, Any]:
    """The fields of a :class:`Budget` that are given."""
    given = {
        "epsilon": None if budget is None else checked_epsilon("budget", budget),
        "delta": None if delta is None else checked_delta(delta),
        "composition": None if composition is None else checked_composition("composition", composition),
    }
    return {name: value for name, value in given.items() if value is not None}


def checked_composition(name: str, value: str) -> Composition:
    """``value`` if it is a way to compose."""
    if value not in get_args(Composition):
        raise InputError(f"Expected argument `{name}` to be one of {get_args(Composition)} but got {value!r}.")
    return value  # type: ignore[return-value]
