"""PrivacyLedger: the record of what was spent, and of which budget.

Invariants:

- A release is charged once, whole, before its first draw of noise. The charge is on disk when the
  call returns. A release that is broken off can be settled: it then costs what was drawn, and no
  more is drawn for it.
- All charges and open reservations together never exceed the budget.
- Only the client that began a release may continue it. Each query is answered once, and the
  fractions of epsilon of all queries of a release never exceed 1.
- A call that raises has recorded nothing.
- A ledger is never copied: a copy would not know what the original spends.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast, get_args

from torchmetrics_fed.errors import (
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
    check_choice,
)
from torchmetrics_fed.markup import html_table
from torchmetrics_fed.privacy.budget import (
    Amounts,
    AnsweredQuery,
    Budget,
    Composition,
    LedgerEntry,
    Reservation,
    Spent,
    exact,
    pld_library,
)
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.overview import overview
from torchmetrics_fed.privacy.store import Records, Store

if TYPE_CHECKING:
    from torchmetrics_fed.privacy.settings import Privacy

SMALLEST_STEP = Fraction(1, 10**12)
"""The unit of a settled epsilon, which is rounded up to it: far below any epsilon that matters, and
short in print."""

MOST_RESERVED_SECONDS = 365 * 24 * 60 * 60
"""The longest reservation, in seconds. A round takes hours: a reservation of more than a year would
only block the budget."""


WARN_AT_EPSILON = 10.0
"""A ledger without a budget warns when it passes this epsilon, and at every doubling."""


class PrivacyLedger:
    """The record of every private release of the same people's data, for all metrics that share it.

    A ledger is one thing however often it is copied: ``copy`` and ``deepcopy`` return the ledger
    itself. Without ``path`` it lives in one process: pickling it, or spending from it after a fork,
    raises. With ``path`` it is a file that processes share and that is continued when it is opened
    again.

    Args:
        budget: the epsilon of all entries together: they must be (``budget``, ``delta``)-
            differentially private, or `spend` raises. None only keeps the record. A file records
            its budget, with delta and composition, and refuses another budget.
        path: the file. `torchmetrics_fed.privacy.store` describes its content, and why no crash
            makes it forget.
        delta: the delta of the budget; 1e-6 if neither given nor recorded.
        composition: "addition" (the default), exact and always valid, or "pld", which needs
            ``dp-accounting`` and amounts that were not chosen after seeing earlier results.
        change_budget: whether to record these arguments in place of the budget in the file. The new
            budget binds all processes that have the file open.

    Example:
        >>> ledger = PrivacyLedger(budget=1.0)
        >>> entry = ledger.spend("validation", round=1, epsilon=0.8)
        >>> ledger.spend("validation", round="1", epsilon=0.8) == entry  # not spent again
        True
        >>> print(ledger.report())  # doctest: +ELLIPSIS
        Privacy ledger, in memory of one process
        Budget: epsilon 1 at delta 1e-06, composed by addition
        Spent: epsilon 0.8, delta 0, by 1 release. Left: epsilon 0.2, or 0 releases like the last.
        ...
        >>> ledger.spend("validation", round=2, epsilon=0.5)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchmetrics_fed.errors.BudgetExceededError: ... needs epsilon 0.5, 0.2 of 1.0 is left...
    """

    def __init__(
        self,
        budget: float | None = None,
        path: str | os.PathLike[str] | None = None,
        delta: float | None = None,
        *,
        composition: Composition | None = None,
        change_budget: bool = False,
    ) -> None:
        arguments: dict[str, Any] = {
            "epsilon": budget,
            "delta": delta,
            "composition": composition,
        }
        changes = {name: value for name, value in arguments.items() if value is not None}
        self.path: str | None = None
        if path is not None:
            self.path = os.path.abspath(os.fsdecode(path))
        self._limit = Budget(**changes)
        if composition == "pld":
            pld_library()
        self._store = Store(self.path)
        self._records = Records()
        # A damaged file is refused here. A store in memory is created at its first use.
        if self.path is not None:
            self._record_budget(changes, change_budget)

    def spend(
        self,
        data: str,
        round: str | int,
        epsilon: float,
        delta: float = 0.0,
        mechanism: str = "",
        *,
        exist_ok: bool = True,
        mu_squared: float = 0.0,
    ) -> LedgerEntry:
        """Charge a release before its noise is drawn. The entry then outlives any crash.

        The ranks of one release all spend for one (``data``, ``round``) and get one entry. Two
        draws of noise need two rounds.

        Args:
            data: the name of the data.
            round: the name of the round. An integer counts as its digits.
            epsilon: the epsilon of the release.
            delta: the delta of the release.
            mechanism: a remark for readers of the ledger. The first remark of a release stays.
            exist_ok: whether the same data, round and price may be there already. Pass False if the
                draw might not be the first of its round, as in a resumed run.
            mu_squared: the part of a run that the release spends; 0 if it is not of a run.
        """
        name = cast(str, round)  # an integer becomes its digits
        entry = LedgerEntry(data, name, epsilon, delta, mechanism, mu_squared=mu_squared)
        with self._transaction() as (tables, records):
            charged = records.entries.get(entry.key)
            if charged is not None and (charged.amounts != entry.amounts or not exist_ok):
                raise LedgerConflictError(
                    f"Cannot spend: data {charged.data!r}, round {charged.round!r} was spent on "
                    f"{charged.time} (epsilon {charged.epsilon}, delta {charged.delta}), now got "
                    f"epsilon {entry.epsilon}, delta {entry.delta}. Give each draw of noise a "
                    "round of its own."
                )
            return self._charged_entry(tables, records, entry)

    def reserve(self, entry: LedgerEntry, seconds: float) -> None:
        """Keep the price of a release free for a number of seconds. Nothing is spent.

        While the reservation is open, other releases find as much less of the budget left. The
        first charge of the same data, round and spec takes its place, so the release can be paid
        for, whatever was spent meanwhile. It ends undrawn when the time is up, or with
        :meth:`cancel`. A second reservation of the same release replaces the first. If this client
        has charged the release already, nothing happens.

        Time is the wall clock of this machine, which all processes with the file share. A clock
        that is put back can open a reservation again. No clock makes the ledger charge more than
        its budget, because every charge is checked.

        Example:
            >>> ledger = PrivacyLedger(budget=1.0)
            >>> entry = LedgerEntry("validation", "1", epsilon=0.8)
            >>> ledger.reserve(entry, seconds=600)
            >>> ledger.remaining, ledger.spent().epsilon
            (0.2, 0.0)
        """
        if not (isinstance(seconds, int | float) and 0 < seconds <= MOST_RESERVED_SECONDS):
            raise InputError(
                "Expected argument `seconds` to be a number above 0, at most "
                f"{MOST_RESERVED_SECONDS} (a year), but got {seconds!r}."
            )
        with self._transaction() as (tables, records):
            charged = records.entries.get(entry.key)
            if charged is not None:
                _check_continues(entry, charged)
                return
            now = time.time()
            committed = records.committed(now, besides=entry.key)
            records.limit(self._limit).check(committed, entry.amounts)
            records.append(tables, {"reservation": entry.fields, "until": now + seconds})

    def cancel(self, entry: LedgerEntry) -> None:
        """Give back the reservation of a release. A release that was charged stays charged.

        Without a reservation nothing happens.

        Example:
            >>> ledger = PrivacyLedger(budget=1.0)
            >>> entry = LedgerEntry("validation", "1", epsilon=0.8)
            >>> ledger.reserve(entry, seconds=600)
            >>> ledger.cancel(entry)
            >>> ledger.remaining
            1.0
        """
        with self._transaction() as (tables, records):
            if entry.key in records.reservations:
                records.append(tables, {"cancellation": list(entry.key)})

    def charge(
        self,
        entry: LedgerEntry,
        query: bytes,
        fraction: float,
        *,
        law: Law | None = None,
        may_be_recorded: bool = False,
    ) -> None:
        """Charge a release before the reply to one of its queries is drawn.

        The first query of a round charges the whole epsilon of the release. A later query is only
        recorded. It must come from the same client, be new, and stay within the fraction that is
        left.

        Args:
            entry: the price of the release.
            query: the digest of the query.
            fraction: the fraction of epsilon that the query spends.
            law: the law of the noise, recorded with the query.
            may_be_recorded: whether the query may have been recorded, by another rank of the
                client.
        """
        if not 0 < fraction < math.inf:
            raise InputError(
                f"Expected argument `fraction` to be above 0, at most 1, but got {fraction!r}."
            )
        answered = AnsweredQuery(query.hex(), float(fraction), law)
        with self._transaction() as (tables, records):
            charged = self._charged_entry(tables, records, entry)
            _check_open(charged, records)
            _check_continues(entry, charged)
            if any(earlier.digest == answered.digest for earlier in charged.queries):
                if may_be_recorded:
                    return
                raise LedgerConflictError(
                    f"Cannot answer this query of {_release_name(charged)} again: noise is drawn "
                    "for a query that was not answered before, because a second draw would average "
                    "the noise away. Use the share that was sent."
                )
            _check_fractions(charged, answered)
            records.append(tables, {"answer": list(entry.key), **answered.fields})

    def settle(self, entry: LedgerEntry) -> None:
        """Charge a release that was broken off what its queries have drawn, instead of the whole.

        Afterwards it is over: no further query of it is charged. Its delta stays whole. This holds
        for composition by addition alone, where amounts may depend on earlier results. Other
        compositions need amounts that were fixed before, so there the whole stays charged, and
        nothing happens. The same holds for a release of a run, whose epsilon has no fractions.
        Without a charge nothing happens either.

        Example:
            >>> ledger = PrivacyLedger(budget=1.0)
            >>> entry = LedgerEntry("validation", "1", epsilon=0.8)
            >>> ledger.charge(entry, b"pilot", fraction=0.25)
            >>> ledger.settle(entry)
            >>> ledger.spent().epsilon
            0.2
        """
        with self._transaction() as (tables, records):
            charged = records.entries.get(entry.key)
            limit = records.limit(self._limit)
            if charged is None or not charged.queries or entry.key in records.settled:
                return
            if limit.composition != "addition" or charged.mu_squared:
                return
            epsilon = _drawn_epsilon(charged)
            if epsilon < charged.epsilon:
                records.append(tables, {"settlement": list(entry.key), "epsilon": epsilon})

    def check_lasting(self) -> None:
        """Raise unless this ledger has a limit that lasts: a budget and a path."""
        if self.budget is None or self.path is None:
            raise InputError(
                "Expected a ledger with a budget and a path because here the server decides how "
                f"often it asks, but got {self}. Pass `ledger=PrivacyLedger(budget=3.0, "
                "path=...)`, one file for each node."
            )

    def spent(self, delta: float | None = None, method: Composition | None = None) -> Spent:
        """Return the cost of all entries together.

        By addition, the epsilons and the deltas are summed. By PLD it is the epsilon at ``delta``,
        whatever mechanisms were used: 100 times epsilon 0.1 is 10 by addition, and 4.77 at delta
        1e-6.

        Args:
            delta: the delta of a PLD; that of the ledger if None.
            method: the composition; that of the ledger if None.
        """
        if method is None:
            method = self.composition
        check_choice("method", method, get_args(Composition))
        if method == "addition" and delta is not None:
            raise InputError(
                f"Expected argument `delta` only with method 'pld' but got {delta!r} with "
                "'addition'."
            )
        if delta is None:
            delta = self.delta
        return Budget(None, delta, method).spent(self._read().amounts)

    @property
    def budget(self) -> float | None:
        """The epsilon that all entries together may cost; None for no limit."""
        return self._limit.epsilon

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return self._limit.delta

    @property
    def composition(self) -> Composition:
        """How the costs of releases are put together."""
        return self._limit.composition

    @property
    def remaining(self) -> float:
        """Epsilon that is neither spent nor reserved; infinite without a budget.

        By PLD a release may take less of it than its epsilon.
        """
        committed = self._read().committed(time.time())
        return self._limit.left(committed)

    def evaluations_left(self, privacy: Privacy) -> int | None:
        """Return how many more evaluations with a setting the budget allows.

        None without a budget, or if a release costs nothing. The delta of a release includes its
        samplers' distance from their laws, which is left out here: it is below 1e-20.

        Args:
            privacy: the setting of the evaluations.

        Example:
            >>> from torchmetrics_fed import CentralDP
            >>> ledger = PrivacyLedger(budget=3.0)
            >>> ledger.evaluations_left(CentralDP(epsilon=0.5))
            6
        """
        if not privacy.charges:
            return None
        committed = self._read().committed(time.time())
        return self._limit.releases_left(committed, _price(privacy))

    def forecast(self, privacy: Privacy, evaluations: int) -> Spent:
        """Return the cost of all entries, and of a number of further evaluations with a setting.

        Nothing is charged.

        Example:
            >>> from torchmetrics_fed import CentralDP
            >>> PrivacyLedger(budget=3.0).forecast(CentralDP(epsilon=1.0), 40).epsilon
            40.0
        """
        if not privacy.charges:
            return self.spent()
        committed = self._read().committed(time.time())
        return self._limit.spent(committed + [_price(privacy)] * evaluations)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations that are open now, the oldest first."""
        return tuple(self._read().reserved(time.time()))

    def entries_of(self, spec: bytes, queries: Iterable[bytes]) -> list[LedgerEntry]:
        """Return the releases of a spec that answered all of these queries.

        Args:
            spec: the digest of the spec.
            queries: the digests of the queries.
        """
        digests = {query.hex() for query in queries}
        entries = []
        for entry in self:
            answered = {query.digest for query in entry.queries}
            if entry.spec == spec.hex() and digests <= answered:
                entries.append(entry)
        return entries

    def digest(self, entry: LedgerEntry | None = None) -> str:
        """Return the SHA-256, in hexadecimal, of all records, or of all up to an entry.

        A document may name it.
        """
        records = self._read()
        if entry is None:
            return records.chain
        return records.chains[entry.key]

    def report(self) -> str:
        """Return the budget, all releases and the laws of their noise, as tables."""
        records = self._read()
        return overview(
            self.path,
            budgets=records.budgets or (self._limit,),
            entries=tuple(records.entries.values()),
            digest=records.chain,
            reservations=records.reserved(time.time()),
        )

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(tuple(self._read().entries.values()))

    def __len__(self) -> int:
        return len(self._read().entries)

    def __bool__(self) -> bool:
        return True  # an empty ledger is a ledger

    def _repr_html_(self) -> str:
        """Return the releases, for a notebook."""
        try:
            entries = tuple(self)
        except LedgerError:
            return html_table([[repr(self)]])
        rows = [
            [entry.data, entry.round, f"{entry.epsilon:g}", f"{entry.delta:g}", entry.time]
            for entry in entries
        ]
        head = ["data", "round", "epsilon", "delta", "time (UTC)"]
        return html_table(rows, head=head, caption=repr(self))

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            amounts = self._read().amounts
            epsilon, delta = self._limit.spent(amounts)
        except LedgerError as error:
            return f"{name}(unreadable: {error})"
        text = f"epsilon {epsilon:.12g}"
        if delta:
            text += f", delta {delta:g}"
        if self.budget is not None:
            text += f" of {self.budget}"
        text += " spent, 1 release" if len(amounts) == 1 else f" spent, {len(amounts)} releases"
        if self.path is not None:
            text += f", path={self.path!r}"
        return f"{name}({text})"

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return _reopen, (type(self), self.path, self._limit)
        if self.budget is None and not self._read().size:
            return type(self), ()  # nothing is lost: the copy begins as this ledger did
        raise LedgerError(
            "Cannot pickle a ledger in memory: its copy would not know what is spent here. Build "
            "it with a `path`, as PrivacyLedger(path=...)."
        )

    def _read(self) -> Records:
        with self._transaction(write=False) as (_, records):
            return records

    @contextmanager
    def _transaction(self, write: bool = True) -> Iterator[tuple[sqlite3.Connection, Records]]:
        """Give the tables of the store and its records. Keep the records once they are on disk."""
        with self._store.transaction(write) as tables:
            records = self._records.updated(tables, self._store)
            yield tables, records
        self._records = records
        self._limit = records.limit(self._limit)

    def _record_budget(self, changes: dict[str, Any], change_budget: bool) -> None:
        """Take over the budget of the file, or record one. Write only if it has to be recorded."""
        with self._transaction(write=False) as (_, records):
            budget = self._changed_budget(records, changes, change_budget)
            is_recorded = _is_in_force(budget, records)
        if is_recorded:
            return
        # Another process may have recorded a budget since.
        with self._transaction() as (tables, records):
            budget = self._changed_budget(records, changes, change_budget)
            if not _is_in_force(budget, records):
                records.append(tables, {"budget": asdict(replace(budget, time=_now()))})

    def _changed_budget(
        self, records: Records, changes: dict[str, Any], change_budget: bool
    ) -> Budget:
        """Return the budget with the changes; raise if another one is recorded."""
        allowed = change_budget or not records.budgets
        return records.limit(self._limit).changed(changes, allowed=allowed)

    def _charged_entry(
        self, tables: sqlite3.Connection, records: Records, entry: LedgerEntry
    ) -> LedgerEntry:
        """Return the charged entry of the same data, round and spec; charge it if there is none."""
        if entry.key not in records.entries:
            committed = records.committed(time.time(), besides=entry.key)
            limit = records.limit(self._limit)
            limit.check(committed, entry.amounts)
            if limit.epsilon is None:
                _warn_unlimited(committed, entry.amounts)
            charged = replace(entry, time=entry.time or _now())
            records.append(tables, {"entry": charged.fields})
        return records.entries[entry.key]


def _price(privacy: Privacy) -> Amounts:
    """Return the price of a release, but for its samplers' distance from their laws."""
    delta = privacy.charged_delta(cells=0, queries=0)
    return Amounts(privacy.release_epsilon, delta, privacy.mu_squared)


def _warn_unlimited(before: list[Amounts], new: Amounts) -> None:
    """Warn if a release without a budget passes WARN_AT_EPSILON, or a doubling of it."""
    spent = Budget().spent(before).epsilon
    total = Budget().spent([*before, new]).epsilon
    threshold = WARN_AT_EPSILON
    while threshold <= spent:
        threshold *= 2
    if total >= threshold:
        warnings.warn(
            f"The releases of this ledger come to epsilon {total:.4g} by now, and no budget limits "
            "them. Pass `ledger=PrivacyLedger(budget=..., path=...)`, or for many evaluations a "
            "setting made by `for_run`.",
            stacklevel=2,
        )


def _is_in_force(budget: Budget, records: Records) -> bool:
    """Whether nothing has to be recorded: the file has this budget, or there is no limit."""
    return budget.epsilon is None or budget in records.budgets[-1:]


def _check_continues(entry: LedgerEntry, charged: LedgerEntry) -> None:
    """Raise unless this client began the charged release, at the same price."""
    if charged.client != entry.client:
        raise LedgerConflictError(
            f"Cannot continue {_release_name(charged)}: it was begun by another client on "
            f"{charged.time}, and only that client may continue it. A retry is a new round, "
            "charged again. If the data is made up, keep the ledger in a temporary folder, or "
            "delete its file before the next run."
        )
    if charged.amounts != entry.amounts:
        raise LedgerConflictError(
            f"Cannot charge {_release_name(charged)} at another price: it was charged epsilon "
            f"{charged.epsilon}, delta {charged.delta}, now got {entry.epsilon}, {entry.delta}. "
            "Give the release a round of its own."
        )


def _check_open(charged: LedgerEntry, records: Records) -> None:
    """Raise if the charged release was broken off and settled."""
    if charged.key in records.settled:
        raise LedgerConflictError(
            f"Cannot continue {_release_name(charged)}: it was broken off, and only what was drawn "
            "is charged. A retry is a new round, charged again."
        )


def _check_fractions(charged: LedgerEntry, answered: AnsweredQuery) -> None:
    """Raise if the queries of a release would spend more than its epsilon."""
    spent = sum(Fraction(query.fraction) for query in (*charged.queries, answered))
    if spent > 1:
        raise LedgerConflictError(
            f"Cannot answer this query of {_release_name(charged)}: its queries spend its epsilon "
            f"once, and with this query they would spend it {float(spent):g} times. Ask within the "
            "fraction that is left."
        )


def _drawn_epsilon(entry: LedgerEntry) -> float:
    """Return the epsilon that the queries of a release have drawn, rounded up."""
    fraction = sum(Fraction(query.fraction) for query in entry.queries)
    steps = math.ceil(fraction * exact(entry.epsilon) / SMALLEST_STEP)
    return float(steps * SMALLEST_STEP)


def _release_name(entry: LedgerEntry) -> str:
    return f"round {entry.round!r} of data {entry.data!r}"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _reopen(kind: type[PrivacyLedger], path: str, limit: Budget) -> PrivacyLedger:
    """Return the ledger of a pickle, with the budget that its file has now."""
    if not os.path.exists(path):
        raise LedgerFileError(
            f"Cannot open the ledger file {path!r}: it does not exist, and without it all that was "
            "spent would be forgotten. Copy the file here."
        )
    ledger = kind(path=path)
    if ledger.budget is not None:
        return ledger
    return kind(limit.epsilon, path, limit.delta, composition=limit.composition)
