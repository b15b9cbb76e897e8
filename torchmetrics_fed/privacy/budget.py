"""LedgerEntry: the price of one release. Budget: what all releases may cost together.

Invariants:

- An entry is charged for a whole release, before its first draw. It is never refunded.
- Entries that agree in data, round and spec are one release.
- Each query that is answered adds an :class:`AnsweredQuery` with the law of its noise. The amounts
  (epsilon, delta) alone forget what the noise was; with the laws, a tighter composition can be
  computed from the same ledger later.
- A :class:`Reservation` is an entry that may still be charged, until a time. It costs nothing.
- Sums of amounts are exact: amounts are added as decimals, not as floats.
- A release of a run (``for_run``) has a squared mu beside its epsilon. Squares of mu are added, and
  the sum becomes an epsilon once, at the delta of the budget.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from torchmetrics_fed.errors import (
    BudgetExceededError,
    InputError,
    LedgerConflictError,
    check_choice,
)
from torchmetrics_fed.privacy.gaussian import gaussian_delta, gaussian_epsilon
from torchmetrics_fed.privacy.law import Law


class Amounts(NamedTuple):
    """The price of a release.

    A release is (epsilon, delta)-private. With a squared mu it is also mu-GDP but for a probability
    of delta, which composes better (:mod:`torchmetrics_fed.privacy.gaussian`).
    """

    epsilon: float
    delta: float = 0.0
    mu_squared: float = 0.0


EntryKey = tuple[str, str, str]
"""Data, round and spec: entries that agree in them are one release."""

Composition = Literal["addition", "pld"]

FINEST_INTERVAL = 1e-4
"""Distance of two losses on the grid of a PLD, in units of epsilon. It is larger for a large sum of
epsilons, so that a PLD holds at most about MOST_LOSSES values."""

MOST_LOSSES = 1e5
"""The number of losses that a PLD holds, at most about."""

MOST_RELEASES_LEFT = 2**14
"""The number of releases beyond which no ledger counts how many are left."""

LARGEST_PLD_EPSILON = 50.0
"""The largest epsilon of one release that is composed by PLD. Beyond it, e^epsilon exceeds the
precision of float64, and addition is as good."""


@dataclass(frozen=True)
class AnsweredQuery:
    """One query of a charged release: its digest, its fraction of epsilon, the law of its noise."""

    digest: str
    fraction: float
    law: Law | None = None
    """None if the release was charged without a law."""

    @property
    def fields(self) -> dict[str, Any]:
        """The content in plain JSON values."""
        law = None
        if self.law is not None:
            law = self.law.fields
        return {"query": self.digest, "fraction": self.fraction, "law": law}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> AnsweredQuery:
        """Return the query whose :attr:`fields` these are."""
        law = None
        if fields["law"] is not None:
            law = Law.from_fields(fields["law"])
        return cls(digest=fields["query"], fraction=float(fields["fraction"]), law=law)


@dataclass(frozen=True)
class LedgerEntry:
    """One private release: its data, its round, its price, its mechanism and its time (UTC).

    ``spec`` is the digest of the spec, and ``client`` the random name of the client that counted
    the data. Both are empty for a release that is entered by hand. A round may be given as an
    integer and is kept as a string: rounds 1 and "1" are the same. ``queries`` are the answered
    queries, in their order; the ledger fills them in. ``mu_squared`` is the part of a run that the
    release spends; 0 for a release that is not of a run.

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
    mu_squared: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.round, Integral) and not isinstance(self.round, bool):
            object.__setattr__(self, "round", str(int(self.round)))
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _probability("delta", self.delta))
        if self.mu_squared != 0:
            object.__setattr__(self, "mu_squared", _positive("mu_squared", self.mu_squared))
        _check_name("data", self.data, "a name")
        _check_name("round", self.round, "an integer or a name")
        for name in ("mechanism", "time", "spec", "client"):
            _check_text(name, getattr(self, name), "a string")

    @property
    def key(self) -> EntryKey:
        """Data, round and spec: entries that agree in them are one release."""
        return self.data, self.round, self.spec

    @property
    def amounts(self) -> Amounts:
        """The price of the release."""
        return Amounts(self.epsilon, self.delta, self.mu_squared)

    @property
    def laws(self) -> tuple[Law, ...]:
        """The laws of the noise in the replies so far, in the order of the queries.

        A release that was entered by hand has none.
        """
        return tuple(query.law for query in self.queries if query.law is not None)

    @property
    def fields(self) -> dict[str, Any]:
        """The content that is recorded when the release is charged: all but the queries."""
        names = [part.name for part in fields(self) if part.name != "queries"]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Reservation:
    """A release that a client intends to take part in. Its price is kept free until a time.

    Args:
        entry: the price of the release.
        until: the end of the reservation, in seconds since 1970 (UTC).
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
    """The cost of all releases together."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Budget:
    """A limit: all releases together are (``epsilon``, ``delta``)-differentially private.

    Args:
        epsilon: the epsilon of all releases together; None for no limit.
        delta: the delta of all releases together.
        composition: how the costs of releases are put together.
        time: when the budget was recorded in a file (UTC).
    """

    epsilon: float | None = None
    delta: float = 1e-6
    composition: Composition = "addition"
    time: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", _positive("budget", self.epsilon))
        object.__setattr__(self, "delta", _probability("delta", self.delta))
        check_choice("composition", self.composition, get_args(Composition))

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.12g} at delta {self.delta:g}, composed by {self.composition}"
        )

    def changed(self, changes: dict[str, Any], *, allowed: bool) -> Budget:
        """Return this recorded budget with changes; raise if they differ and are not allowed."""
        budget = replace(self, **changes)
        if budget != self and not allowed:
            raise LedgerConflictError(
                f"Expected the budget that this ledger's file has recorded, {self}, but got "
                f"{budget}. Leave out `budget`, `delta` and `composition`, or pass "
                "`change_budget=True` if whoever answers for the data wants another budget."
            )
        return budget

    def spent(self, amounts: Sequence[Amounts]) -> Spent:
        """Return the cost of releases with these amounts, by this composition."""
        if self.composition == "pld":
            return Spent(compose_pld(amounts, self.delta), self.delta)
        total = add_up(amounts)
        if total.mu_squared == 0:
            return Spent(float(total.epsilon), float(total.delta))
        return Spent(total.epsilon_at(self.delta), self.delta)

    def left(self, amounts: Sequence[Amounts]) -> float:
        """Return the epsilon that is left after releases with these amounts."""
        if self.epsilon is None:
            return math.inf
        total = add_up(amounts)
        if self.composition == "addition" and total.mu_squared == 0:
            return max(0.0, float(exact(self.epsilon) - total.epsilon))
        return max(0.0, self.epsilon - self.spent(amounts).epsilon)

    def fits(self, amounts: Sequence[Amounts]) -> bool:
        """Return whether releases with these amounts are within the budget."""
        if self.epsilon is None:
            return True
        if self.composition == "pld":
            return compose_pld(amounts, self.delta) <= self.epsilon
        return add_up(amounts).is_within(self.epsilon, self.delta)

    def releases_left(self, amounts: Sequence[Amounts], price: Amounts) -> int | None:
        """Return how many more releases of one price fit; None without a limit.

        From MOST_RELEASES_LEFT on, more may fit.
        """
        if self.epsilon is None:
            return None
        fitting = 0
        beyond = 1
        while beyond <= MOST_RELEASES_LEFT and self.fits([*amounts, *[price] * beyond]):
            fitting = beyond
            beyond *= 2
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            if self.fits([*amounts, *[price] * middle]):
                fitting = middle
            else:
                beyond = middle
        return fitting

    def check(self, amounts: Sequence[Amounts], new: Amounts) -> None:
        """Raise unless a new release fits into the budget, after releases with these amounts."""
        if not self.fits([*amounts, new]):
            raise BudgetExceededError(
                f"Cannot charge the budget: this release needs {self._shortage(amounts, new)} is "
                "left. Release no more of this data, or build the ledger with a larger `budget` or "
                "`delta`, and `change_budget=True` if it is a file."
            )

    def _shortage(self, amounts: Sequence[Amounts], new: Amounts) -> str:
        """Return what a release needs, and what there is of it, in words."""
        total = add_up([*amounts, new])
        if self.composition == "pld" or total.mu_squared:
            together = self.spent([*amounts, new]).epsilon
            return (
                f"epsilon {new.epsilon} and makes it {together:.6g} of {self.epsilon} in all (at "
                f"delta {self.delta}), {self.left(amounts):.6g} of {self.epsilon}"
            )
        if self.epsilon is not None and total.epsilon > exact(self.epsilon):
            return f"epsilon {new.epsilon}, {self.left(amounts)} of {self.epsilon}"
        delta_left = max(0.0, float(exact(self.delta) - add_up(amounts).delta))
        return f"delta {new.delta}, {delta_left} of {self.delta}"


def exact(value: float) -> Fraction:
    """Return the decimal that ``value`` prints as.

    A hundred times 0.1 is then 10 and not 9.99999999999998. The decimal differs from the binary
    ``value`` by at most half a unit in the last place, 1.2e-16 of it.
    """
    return Fraction(repr(float(value)))


class Total(NamedTuple):
    """Sums of amounts, exactly. Releases of a run are in ``mu_squared``, not in ``epsilon``."""

    epsilon: Fraction
    delta: Fraction
    mu_squared: Fraction

    @property
    def mu(self) -> float:
        """The mu of all releases of runs together."""
        return math.sqrt(self.mu_squared)

    def is_within(self, epsilon: float, delta: float) -> bool:
        """Return whether all releases together are (epsilon, delta)-private."""
        epsilon_left = exact(epsilon) - self.epsilon
        delta_left = exact(delta) - self.delta
        if epsilon_left < 0 or delta_left < 0:
            return False
        return gaussian_delta(self.mu, float(epsilon_left)) <= delta_left

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of all releases together at a delta."""
        delta_left = float(exact(delta) - self.delta)
        if delta_left < 0:
            return math.inf
        return float(self.epsilon) + gaussian_epsilon(self.mu, delta_left)


def add_up(amounts: Iterable[Amounts]) -> Total:
    """Return the sums of epsilons, of deltas and of squared mus.

    The sums hold for any mechanisms, even if amounts are chosen after seeing earlier results.
    """
    epsilons = Fraction(0)
    deltas = Fraction(0)
    squares = Fraction(0)
    for price, times in Counter(amounts).items():
        if price.mu_squared:
            squares += times * exact(price.mu_squared)
        else:
            epsilons += times * exact(price.epsilon)
        deltas += times * exact(price.delta)
    return Total(epsilons, deltas, squares)


def compose_pld(amounts: Iterable[Amounts], delta: float) -> float:
    r"""Return an epsilon that all releases together satisfy at ``delta``.

    It is infinite if the deltas of the releases are above ``delta``, and never above the sum of the
    epsilons if that sum holds at ``delta``.

    Each release counts as the worst mechanism with its amounts: randomised response, whose privacy
    loss is :math:`\pm\varepsilon` with odds :math:`e^\varepsilon`, and infinite with probability
    :math:`\delta`. Every :math:`(\varepsilon, \delta)` mechanism is a post-processing of it
    (Kairouz, Oh, Viswanath 2015), so nothing is assumed about the noise. Losses are rounded up.
    Releases of runs count as one Gaussian mechanism with the sum of their squared mus.

    The releases may depend on earlier results, and so may the decision to stop. The amounts may
    not; addition allows even that.
    """
    prices = list(amounts)
    total = add_up(prices)
    by_addition = total.epsilon_at(delta)
    count = Counter(price for price in prices if not price.mu_squared)
    epsilons = [price.epsilon for price in count]
    if not prices or max(epsilons, default=0.0) > LARGEST_PLD_EPSILON:
        return by_addition
    library = pld_library()
    interval = max(FINEST_INTERVAL, float(total.epsilon) / MOST_LOSSES)
    losses = []
    for price, times in count.items():
        parameters = library.common.DifferentialPrivacyParameters(price.epsilon, price.delta)
        worst = library.privacy_loss_distribution.from_privacy_parameters(parameters, interval)
        losses.append(worst.self_compose(times))
    if total.mu_squared:
        gaussian = library.privacy_loss_distribution.from_gaussian_mechanism(
            1 / total.mu, value_discretization_interval=interval
        )
        losses.append(gaussian)
    composed = losses[0]
    for loss in losses[1:]:
        composed = composed.compose(loss)
    run_delta = sum((exact(price.delta) for price in prices if price.mu_squared), Fraction(0))
    delta_left = float(exact(delta) - run_delta)
    if delta_left < 0:
        return by_addition
    return min(by_addition, float(composed.get_epsilon_for_delta(delta_left)))


def pld_library() -> Any:
    """Return the ``dp_accounting.pld`` package, or raise an error that says how to install it."""
    try:
        return importlib.import_module("dp_accounting.pld")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Expected the package `dp-accounting` for composition by PLD but it is not installed. "
            "Run `pip install dp-accounting`, or compose by addition.",
            name=error.name,
        ) from error


def _float(value: Any) -> float:
    """Return a number as a float, or NaN if it is none. No -0.0, which not every store keeps."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value) + 0.0
    except OverflowError:
        return math.nan


def _positive(name: str, value: Any) -> float:
    number = _float(value)
    if not 0 < number < math.inf:
        raise InputError(f"Expected argument `{name}` to be a finite number > 0 but got {value!r}.")
    return number


def _probability(name: str, value: Any) -> float:
    number = _float(value)
    if not 0 <= number < 1:
        raise InputError(f"Expected argument `{name}` to be a number in [0, 1) but got {value!r}.")
    return number


def _check_text(name: str, value: Any, expected: str) -> None:
    """Raise unless an argument is a string that UTF-8 can encode."""
    is_text = isinstance(value, str) and value.encode(errors="replace").decode() == value
    if not is_text:
        raise InputError(f"Expected argument `{name}` to be {expected} but got {value!r}.")


def _check_name(name: str, value: Any, expected: str) -> None:
    """Raise unless an argument is a string that UTF-8 can encode, and not empty."""
    _check_text(name, value, expected)
    if not value:
        raise InputError(f"Expected argument `{name}` to be {expected} but got {value!r}.")
