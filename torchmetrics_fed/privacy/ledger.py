"""PrivacyLedger: what was spent so far, and of which budget."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any, get_args

from torchmetrics_fed.errors import (
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
    check_choice,
)
from torchmetrics_fed.privacy.budget import (
    AnsweredQuery,
    Budget,
    Composition,
    LedgerEntry,
    Reservation,
    Spent,
    overview,
    pld_library,
)
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.store import Records, Store

MOST_RESERVED_SECONDS = 365 * 24 * 60 * 60
"""The longest reservation. A round takes hours: a longer one would only block the budget."""


class PrivacyLedger:
    """The record of every private release of the same people's data, shared by all metrics that make one.

    A ledger is one thing however often it is copied: ``copy`` and ``deepcopy`` return the ledger itself. Without
    ``path`` it lives in one process: pickling it, or spending from it after a fork, raises. With ``path`` it is a file
    that processes share and that is continued when it is opened again.

    Args:
        budget: all entries together must be (``budget``, ``delta``)-differentially private, or `spend` raises; None
            only keeps the record. A file records its budget, with delta and composition, and refuses another one.
        path: the file; `torchmetrics_fed.privacy.store` says what it holds and why no crash makes it forget.
        delta: the delta of the budget; 1e-6 if neither given nor recorded.
        composition: "addition" (the default), exact and always valid, or "pld", which needs ``dp-accounting`` and
            amounts that were not chosen after seeing earlier results.
        change_budget: whether to record what is given in place of another budget; it binds all who have the file open.

    Example:
        >>> ledger = PrivacyLedger(budget=1.0)
        >>> entry = ledger.spend("validation", round=1, epsilon=0.8)
        >>> ledger.spend("validation", round="1", epsilon=0.8) == entry  # the same release: not spent again
        True
        >>> print(ledger.report())  # doctest: +ELLIPSIS
        Privacy ledger, in memory of one process
        Budget: epsilon 1 at delta 1e-06, composed by addition
        Spent: epsilon 0.8, delta 0, by 1 release. Left: epsilon 0.2.
        ...
        >>> ledger.spend("validation", round=2, epsilon=0.5)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchmetrics_fed.errors.BudgetExceededError: ... this release needs epsilon 0.5, 0.2 of 1.0 is left...
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
        named: dict[str, Any] = {"epsilon": budget, "delta": delta, "composition": composition}
        given = {name: value for name, value in named.items() if value is not None}
        self.path = None if path is None else os.path.abspath(os.fsdecode(path))
        self._limit = Budget(**given)
        if composition == "pld":
            pld_library()
        self._store = Store(self.path)
        self._known = Records()
        if (
            self.path is not None
        ):  # a damaged file is refused here; one in memory is made when it is first used
            self._agree(given, change_budget)

    def spend(
        self,
        data: str,
        round: str | int,
        epsilon: float,
        delta: float = 0.0,
        mechanism: str = "",
        *,
        exist_ok: bool = True,
    ) -> LedgerEntry:
        """Enter a release before its noise is drawn. Once this has returned, the entry outlives any crash.

        The ranks of one release all spend for one (``data``, ``round``) and get one entry. Two draws of noise need two
        rounds: where a draw might not be the first of its round, as in a resumed run, pass ``exist_ok=False``, and the
        same data, round and price once more raise. An integer round counts as its digits. ``mechanism`` is a remark for
        readers of the ledger; the first one stays.
        """
        entry = LedgerEntry(data, round, epsilon, delta, mechanism)  # type: ignore[arg-type]
        with self._books() as (tables, books):
            known = books.entries.get(entry.key)
            if known is not None and (known.amounts != entry.amounts or not exist_ok):
                raise LedgerConflictError(
                    f"Expected a new round but data {known.data!r}, round {known.round!r} was spent on {known.time} "
                    f"(epsilon {known.epsilon}, delta {known.delta}), now got epsilon {entry.epsilon}, delta "
                    f"{entry.delta}. Give each draw of noise a round of its own."
                )
            return self._entered(tables, books, entry)

    def reserve(self, entry: LedgerEntry, seconds: float) -> None:
        """Keep a release's part of the budget for this many seconds. Nothing is spent by it.

        While the reservation is open, other releases find as much less of the budget left. The
        first charge of the same data, round and spec takes its place, so the release can be paid
        for, whatever was spent meanwhile. It ends undrawn when the time is up, or with
        :meth:`cancel`. A second reservation of the same release replaces the first. A release that
        this client has charged needs none: then nothing happens.

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
        with self._books() as (tables, books):
            charged = books.entries.get(entry.key)
            if charged is not None:
                _check_continues(entry, charged)
                return
            now = time.time()
            committed = books.committed(now, besides=entry.key)
            books.limit(self._limit).check(committed, entry.amounts)
            books.append(tables, {"reservation": entry.fields, "until": now + seconds})

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
        with self._books() as (tables, books):
            if entry.key in books.reservations:
                books.append(tables, {"cancellation": list(entry.key)})

    def charge(
        self,
        entry: LedgerEntry,
        query: bytes,
        fraction: float,
        *,
        law: Law | None = None,
        again: bool = False,
    ) -> None:
        """Charge a release, once, before the answer to a query with this digest and fraction of epsilon is drawn.

        The first query of a round charges all of the release's epsilon. A later one is only noted: of the same client,
        not answered before (unless ``again``, as other ranks of it do), and within the fraction that is left. The
        ``law`` of the noise is recorded with each query.
        """
        if not 0 < fraction < math.inf:
            raise InputError(
                f"Expected argument `fraction` to be above 0, at most 1, but got {fraction!r}."
            )
        answered = AnsweredQuery(query.hex(), float(fraction), law)
        with self._books() as (tables, books):
            charged = self._entered(tables, books, entry)
            _check_continues(entry, charged)
            if any(before.digest == answered.digest for before in charged.queries):
                if again:
                    return
                raise LedgerConflictError(
                    f"Expected a query of {_named(charged)} that was not answered but this one "
                    "was: a second draw would average the noise away. Use the share that was sent."
                )
            spent = sum(Fraction(answer.fraction) for answer in (*charged.queries, answered))
            if spent > 1:
                raise LedgerConflictError(
                    f"Expected queries of {_named(charged)} that spend its epsilon once but with "
                    f"this one they spend {float(spent):g} times. Ask within the fraction that is "
                    "left."
                )
            books.append(tables, {"answer": list(entry.key), **answered.fields})

    def check_lasting(self) -> None:
        """Raise unless this ledger has a limit that lasts: a budget and a path."""
        if self.budget is None or self.path is None:
            raise InputError(
                "Expected a ledger with a budget and a path because here the server decides how often it asks, but got "
                f"{self}. Pass `ledger=PrivacyLedger(budget=3.0, path=...)`, one file for each node."
            )

    def spent(self, delta: float | None = None, method: Composition | None = None) -> Spent:
        """What all entries cost together, by the ledger's composition unless ``method`` names another.

        By addition, the epsilons and the deltas are summed. By PLD it is the epsilon at ``delta`` (the ledger's, if
        None), whatever mechanisms were used: 100 times epsilon 0.1 is 10 by addition, and 4.77 at delta 1e-6.
        """
        method = self.composition if method is None else method
        check_choice("method", method, get_args(Composition))
        if method == "addition" and delta is not None:
            raise InputError(
                f"Expected argument `delta` only with method 'pld' but got {delta!r} with 'addition'."
            )
        return Budget(None, self.delta if delta is None else delta, method).spent(
            self._read().amounts
        )

    @property
    def budget(self) -> float | None:
        """The epsilon that all entries together may cost; None is no limit."""
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

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations that are open now, in the order of their making."""
        return tuple(self._read().reserved(time.time()))

    def entries_of(self, spec: bytes, queries: Iterable[bytes]) -> list[LedgerEntry]:
        """Return the releases with this digest of their spec that answered all of these digests of queries."""
        asked = {query.hex() for query in queries}
        return [
            entry
            for entry in self
            if entry.spec == spec.hex() and asked <= {query.digest for query in entry.queries}
        ]

    def digest(self, entry: LedgerEntry | None = None) -> str:
        """Return the SHA-256, in hexadecimal, of all records up to this entry, or of all: what a document may name."""
        books = self._read()
        return books.chain if entry is None else books.chains[entry.key]

    def report(self) -> str:
        """Return the budget, all releases and the laws of their noise, as tables."""
        books = self._read()
        return overview(
            self.path,
            books.budgets or (self._limit,),
            tuple(books.entries.values()),
            books.chain,
            books.reserved(time.time()),
        )

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(tuple(self._read().entries.values()))

    def __len__(self) -> int:
        return len(self._read().entries)

    def __bool__(self) -> bool:
        return True  # an empty ledger is a ledger

    def __repr__(self) -> str:
        try:
            amounts = self._read().amounts
            epsilon, delta = self._limit.spent(amounts)
        except LedgerError as error:
            return f"{type(self).__name__}(unreadable: {error})"
        text = f"epsilon {epsilon:.12g}" + (f", delta {delta:g}" if delta else "")
        text += " spent" if self.budget is None else f" of {self.budget} spent"
        text += f", {len(amounts)} release{'' if len(amounts) == 1 else 's'}"
        return (
            f"{type(self).__name__}({text}{'' if self.path is None else f', path={self.path!r}'})"
        )

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None and self.budget is None and not self._read().size:
            return type(self), ()  # nothing is lost: the copy begins as this one did
        if self.path is None:
            raise LedgerError(
                "Expected a ledger with `path` to pickle but got one in memory: its copy would not know what is spent "
                "here. Build it with PrivacyLedger(path=...)."
            )
        return _reopen, (type(self), self.path, self._limit)

    def _read(self) -> Records:
        with self._books(write=False) as (_, books):
            return books

    @contextmanager
    def _books(self, write: bool = True) -> Iterator[tuple[sqlite3.Connection, Records]]:
        """Give the tables and what they say; what was added is known once it is on disk."""
        with self._store.transaction(write) as tables:
            books = self._known.read_on(tables, self._store)
            yield tables, books
        self._known, self._limit = books, books.limit(self._limit)

    def _agree(self, given: dict[str, Any], change: bool) -> None:
        """Take over the file's budget, or record one. Writes only where there is something to record."""
        for write in (False, True):
            with self._books(write) as (tables, books):
                wanted = books.limit(self._limit).agreed(given, change or not books.budgets)
                settled = wanted in books.budgets[-1:] or wanted.epsilon is None
                if write and not settled:
                    books.append(tables, {"budget": asdict(replace(wanted, time=_now()))})
            if settled:
                return

    def _entered(
        self, tables: sqlite3.Connection, books: Records, entry: LedgerEntry
    ) -> LedgerEntry:
        """Return the entry of the same data, round and spec: the one there is, or this one, entered and checked."""
        if entry.key not in books.entries:
            committed = books.committed(time.time(), besides=entry.key)
            books.limit(self._limit).check(committed, entry.amounts)
            books.append(tables, {"entry": replace(entry, time=entry.time or _now()).fields})
        return books.entries[entry.key]


def _check_continues(entry: LedgerEntry, charged: LedgerEntry) -> None:
    """Raise unless this client began the charged release, at the same price."""
    if charged.client != entry.client:
        raise LedgerConflictError(
            f"Expected a new round but {_named(charged)} was begun by another client on "
            f"{charged.time}, and only that one may continue it. A retry is a new round, charged "
            "again. If the data is made up, keep the ledger in a temporary folder, or delete its "
            "file before the next run."
        )
    if charged.amounts != entry.amounts:
        raise LedgerConflictError(
            f"Expected one price for {_named(charged)} but it was charged epsilon "
            f"{charged.epsilon}, delta {charged.delta}, now got {entry.epsilon}, {entry.delta}. "
            "Give the release a round of its own."
        )


def _named(entry: LedgerEntry) -> str:
    return f"round {entry.round!r} of data {entry.data!r}"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _reopen(kind: type[PrivacyLedger], path: str, limit: Budget) -> PrivacyLedger:
    if not os.path.exists(path):
        raise LedgerFileError(
            f"Expected the ledger file {path!r} to exist, or what was spent would be forgotten. Copy it here."
        )
    ledger = kind(path=path)
    if ledger.budget is not None:  # which may have been changed since
        return ledger
    return kind(limit.epsilon, path, limit.delta, composition=limit.composition)
