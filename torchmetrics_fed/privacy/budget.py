"""LedgerEntry: the price of one release. Budget: what all releases may cost, by addition or PLDs.

An entry is charged for a whole release before its first draw. Each query that is answered adds an
`AnsweredQuery` with the law of its noise, so that a tighter composition can be made of the same
ledger later: the amounts (epsilon, delta) alone forget what the noise was. A `Reservation` is an
entry that may still be charged, until a time.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from torchmetrics_fed.errors import (
    BudgetExceededError,
    InputError,
    LedgerConflictError,
    check_choice,
)
from torchmetrics_fed.privacy.law import Law

Amounts = tuple[float, float]
"""Epsilon and delta."""
EntryKey = tuple[str, str, str]
"""Data, round and spec: entries that agree in them are one release."""
Composition = Literal["addition", "pld"]

_FINEST = 1e-4  # grid of the losses; coarser for a large sum, so that about 1e5 cells are the most ever held
_CELLS = 1e5
_LARGEST = 50.0  # beyond it e^epsilon is noise in float64, and addition is as good


@dataclass(frozen=True)
class AnsweredQuery:
    """One query of a charged release: its digest, its fraction of epsilon, the law of its noise."""

    digest: str
    fraction: float
    law: Law | None = None
    """None where a release was charged without one."""

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values."""
        law = None if self.law is None else self.law.fields
        return {"query": self.digest, "fraction": self.fraction, "law": law}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> AnsweredQuery:
        law = None if fields["law"] is None else Law.from_fields(fields["law"])
        return cls(digest=fields["query"], fraction=float(fields["fraction"]), law=law)


@dataclass(frozen=True)
class LedgerEntry:
    """One private release: of which data, in which round, at what price, by what, and when it was charged (UTC).

    ``spec`` is the digest of what was agreed on and ``client`` the random name of who counted the data; both are empty
    where a release is entered by hand. A round may be given as an integer and is kept as a string: rounds 1 and "1" are
    the same. ``queries`` are those that were answered so far, in their order; the ledger fills them in.

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
    client: str = ""
    queries: tuple[AnsweredQuery, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.round, Integral) and not isinstance(self.round, bool):
            object.__setattr__(self, "round", str(int(self.round)))
        object.__setattr__(self, "epsilon", _checked("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _checked("delta", self.delta))
        named = {"data": "a name", "round": "an integer or a name"}
        for name in ("data", "round", "mechanism", "time", "spec", "client"):
            value = getattr(self, name)
            known = isinstance(value, str) and value.encode(errors="replace").decode() == value
            if not known or (name in named and not value):
                raise InputError(
                    f"Expected argument `{name}` to be {named.get(name, 'a string')} but got {value!r}."
                )

    @property
    def key(self) -> EntryKey:
        """Data, round and spec: entries that agree in it are one release."""
        return self.data, self.round, self.spec

    @property
    def amounts(self) -> Amounts:
        return self.epsilon, self.delta

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws of the noise in the answers so far, in the order of the queries.

        A release that was entered by hand has none.
        """
        return tuple(query.law for query in self.queries if query.law is not None)

    @property
    def fields(self) -> dict[str, Any]:
        """What is recorded when the release is charged: everything but the queries."""
        return {
            part.name: getattr(self, part.name) for part in fields(self) if part.name != "queries"
        }


@dataclass(frozen=True)
class Reservation:
    """A release that a client intends to take part in: its part of the budget is kept until a time.

    Args:
        entry: what the release will cost.
        until: when the reservation ends, in seconds since 1970 (UTC).
    """

    entry: LedgerEntry
    until: float

    def __post_init__(self) -> None:
        if not isinstance(self.until, Real) or not math.isfinite(self.until):
            raise InputError(
                "Expected argument `until` to be a finite number of seconds but got "
                f"{self.until!r}."
            )


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

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", _checked("budget", self.epsilon))
        object.__setattr__(self, "delta", _checked("delta", self.delta))
        check_choice("composition", self.composition, get_args(Composition))

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.12g} at delta {self.delta:g}, composed by {self.composition}"
        )

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
        return Spent(*map(float, add_up(amounts)))

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
        epsilon, delta = add_up([*amounts, new])
        if self.composition == "pld":
            together = compose_pld([*amounts, new], self.delta)
            if together <= self.epsilon:
                return
            excess = f"epsilon {new[0]} and makes it {together:.6g} of {self.epsilon} in all (at delta {self.delta}), "
            excess += f"{self.left(amounts):.6g} of {self.epsilon}"
        elif epsilon > exact(self.epsilon):
            excess = f"epsilon {new[0]}, {self.left(amounts)} of {self.epsilon}"
        elif delta > exact(self.delta):
            left = max(0.0, float(exact(self.delta) - add_up(amounts)[1]))
            excess = f"delta {new[1]}, {left} of {self.delta}"
        else:
            return
        raise BudgetExceededError(
            f"Expected a release within the budget but this release needs {excess} is left. Release no more of this "
            "data, or build the ledger with a larger `budget` or `delta`, and `change_budget=True` if it is a file."
        )


def _checked(name: str, value: Any) -> float:
    """``value`` as a float. No -0.0, which not every store keeps."""
    try:
        number = (
            float(value) + 0.0
            if isinstance(value, Real) and not isinstance(value, bool)
            else math.nan
        )
    except OverflowError:
        number = math.nan
    known, expected = 0 < number < math.inf, "a finite number > 0"
    if name == "delta":
        known, expected = 0 <= number < 1, "a number in [0, 1)"
    if not known:
        raise InputError(f"Expected argument `{name}` to be {expected} but got {value!r}.")
    return number


def exact(value: float) -> Fraction:
    """The decimal that ``value`` prints as, so that a hundred times 0.1 is 10 and not 9.99999999999998.

    It differs from the binary ``value`` by at most half a unit in the last place, 1.2e-16 of it.
    """
    return Fraction(repr(float(value)))


def add_up(amounts: Iterable[Amounts]) -> tuple[Fraction, Fraction]:
    """Sum of the epsilons and of the deltas: holds for any mechanisms, amounts chosen as one goes along included."""
    epsilon, delta = Fraction(0), Fraction(0)
    for (one, other), times in Counter(amounts).items():
        epsilon += times * exact(one)
        delta += times * exact(other)
    return epsilon, delta


def compose_pld(amounts: Iterable[Amounts], delta: float) -> float:
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
    laws = []
    for amount, times in count.items():
        worst = library.common.DifferentialPrivacyParameters(*amount)
        laws.append(
            library.privacy_loss_distribution.from_privacy_parameters(worst, interval).self_compose(
                times
            )
        )
    composed = reduce(lambda one, other: one.compose(other), laws)
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


def overview(
    path: str | None,
    budgets: Sequence[Budget],
    entries: Sequence[LedgerEntry],
    digest: str,
    reservations: Sequence[Reservation] = (),
) -> str:
    """Return a ledger as text: budgets, oldest first, releases and the laws of their noise."""
    limit = budgets[-1]
    amounts = [entry.amounts for entry in entries]
    held = [reservation.entry.amounts for reservation in reservations]
    epsilon, delta = limit.spent(amounts)
    lines = ["Privacy ledger, in memory of one process"]
    if path is not None:
        lines = [f"Privacy ledger {_shown(path, 200)}"]
    lines += _budget_lines(budgets)
    left = "" if limit.epsilon is None else f" Left: epsilon {limit.left(amounts + held):.6g}."
    several = "" if len(entries) == 1 else "s"
    lines.append(
        f"Spent: epsilon {epsilon:.6g}, delta {delta:.3g}, by {len(entries)} release{several}.{left}"
    )
    lines += _reservation_lines(reservations)
    lines += ["", *_release_table(entries), "", *_MEANING]
    if any(entry.laws for entry in entries):
        lines += ["", "Noise in the answers of each release:", *_law_table(entries), ""]
    lines.append(f"SHA-256 of all records: {digest or 'there are none'}")
    return "\n".join(lines)


_MEANING = (
    "Each row is one private release. What it tells anybody of one person, beyond what all others' data tell,",
    "is limited by epsilon: the smaller, the less. Releases of the same people's data add up.",
)


def _budget_lines(budgets: Sequence[Budget]) -> list[str]:
    lines = []
    for number, budget in enumerate(budgets):
        if budget.epsilon is None:
            lines.append("Budget: none. Nothing limits what is spent; this is a record only.")
        else:
            title = "Budget" if number == 0 else "Changed to"
            since = f", recorded {_clock(budget.time)} UTC" if budget.time else ""
            lines.append(f"{title}: {budget}{since}")
    return lines


def _reservation_lines(reservations: Sequence[Reservation]) -> list[str]:
    lines = []
    for reservation in reservations:
        entry = reservation.entry
        until = datetime.fromtimestamp(reservation.until, timezone.utc).isoformat()
        lines.append(
            f"Reserved: epsilon {entry.epsilon:.6g}, for data {_shown(entry.data)}, "
            f"round {_shown(entry.round)}, until {_clock(until)} UTC."
        )
    return lines


def _release_table(entries: Sequence[LedgerEntry]) -> list[str]:
    titles = ["", "charged (UTC)", "data", "round", "epsilon", "delta", "mechanism"]
    rows = [[*titles, "epsilon so far"]]
    so_far = accumulate(exact(entry.epsilon) for entry in entries)
    for number, (entry, total) in enumerate(zip(entries, so_far, strict=True), 1):
        row = [
            f"{number}",
            _clock(entry.time),
            _shown(entry.data),
            _shown(entry.round),
            f"{entry.epsilon:.6g}",
            f"{entry.delta:.3g}",
            _shown(entry.mechanism),
            f"{float(total):.6g}",
        ]
        rows.append(row)
    return _aligned(rows)


def _law_table(entries: Sequence[LedgerEntry]) -> list[str]:
    """Return a row for each answered query: the laws, from which a tighter sum can be computed."""
    rows = [["", "of epsilon", "mechanism", "parameter", "shift x cells", "honest shares"]]
    for number, entry in enumerate(entries, 1):
        for query in entry.queries:
            law = query.law
            if law is not None:
                row = [
                    f"{number}",
                    f"{query.fraction:.6g}",
                    law.mechanism,
                    f"{float(law.parameter):.6g}",
                    _shown(" ".join(f"{shift}x{cells}" for shift, cells in law.shifts)),
                    f"{law.shares}",
                ]
                rows.append(row)
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, every column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _shown(name: str, longest: int = 40) -> str:
    """Return a name as it may stand in a table: on one line, no longer than a column."""
    name = name if name.isprintable() else repr(name)[1:-1]
    return name if len(name) <= longest else name[: longest - 3] + "..."


def _clock(time: str) -> str:
    return _shown(time[:19].replace("T", " "))
