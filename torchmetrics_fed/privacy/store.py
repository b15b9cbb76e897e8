"""Store: what must outlive a crash. A ledger's records, each bound to all before it, and a node's notes; in SQLite.

Why SQLite, and not files of our own: a charge and the query it was charged for are one transaction; a node's notes can
be erased, which an append-only journal cannot do; locks, torn writes and recovery are the work of a library that is
tested for them, in the standard library. ``synchronous=EXTRA`` makes a commit return once it is on disk, directory
included; ``secure_delete`` overwrites what is erased in the file (the journal of a transaction is unlinked, and its
blocks are the file system's).

What it cannot know: a file that was replaced by an older copy while nobody had it open. A restored backup has forgotten
what was charged since, so restore it together with a note of what was spent, or start a new budget.

The tables of a file, format version 2:

``records``
    A ledger's records in JSON, numbered from 1. Each has a digest of its text and of all records
    before it. Records are only ever added. A record is one of

    - ``budget``: the budget in force from here on,
    - ``entry``: a charged release,
    - ``answer``: a query of a charged release, with its fraction of epsilon and its noise's law,
    - ``reservation``: a release that may be charged until a time,
    - ``cancellation``: of a reservation. That a reservation was charged or has expired is not
      recorded: it follows from the entries and from the time.
``head``
    The number of records, and the digest of all.
``notes``
    What a node keeps for its next process, by the digest of the spec and the round, with the time
    of writing. An empty note says that the round was begun and is over.
``owner``
    The node of a federated trainer that uses the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torchmetrics_fed.errors import LedgerError, LedgerFileError
from torchmetrics_fed.privacy.budget import (
    Amounts,
    AnsweredQuery,
    Budget,
    EntryKey,
    LedgerEntry,
    Reservation,
)

_FORMAT = "torchmetrics-fed store"
_VERSION = 2
_LOCK_SECONDS = 60.0
NOTE_SECONDS = 24 * 60 * 60
"""How long a note is kept at most: a store that is opened later erases it."""
_SCHEMA = f"""
CREATE TABLE about (format TEXT NOT NULL, version INTEGER NOT NULL);
INSERT INTO about VALUES ('{_FORMAT}', {_VERSION});
CREATE TABLE records (number INTEGER PRIMARY KEY, body TEXT NOT NULL, chain TEXT NOT NULL);
CREATE TABLE head (count INTEGER NOT NULL, chain TEXT NOT NULL);
INSERT INTO head VALUES (0, '');
CREATE TABLE notes (
    spec TEXT NOT NULL,
    round TEXT NOT NULL,
    content BLOB NOT NULL,
    time REAL NOT NULL,
    PRIMARY KEY (spec, round)
);
CREATE TABLE owner (name TEXT NOT NULL, round TEXT NOT NULL, node TEXT NOT NULL);
"""

_OLD = "WHERE content != x'' AND abs(? - time) > ?"
"""A note whose time is more than a day away. A time to come is of a clock that was wrong."""


def _oldest() -> tuple[float, float]:
    return time.time(), NOTE_SECONDS


# One for the whole process: SQLite's own table of locks is copied by a fork as it is, so nobody forks in a transaction.
# A fork waits for it a moment only: an interrupt at the wrong instruction can leave it held.
_turn = threading.RLock()
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = _turn.acquire(timeout=1.0)


def _after_fork(in_child: bool) -> None:
    global _turn
    if in_child:
        _turn = threading.RLock()
    elif _forking.held:
        _turn.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, False),
        after_in_child=partial(_after_fork, True),
    )


class Store:
    """The tables in the file at ``path``, or in this process's memory if it is None.

    The file is made if missing (mode 0600). Its directory must exist, on a file system with working locks.
    Notes that are older than a day are erased when the file is opened.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._process = os.getpid()
        self._memory: sqlite3.Connection | None = None
        if path is not None:
            if not os.path.lexists(path):
                self._create(path)
            self._check_file()

    @contextmanager
    def transaction(self, write: bool = True) -> Iterator[sqlite3.Connection]:
        """Give the tables; what was written is on disk when the block ends, and gone if it raises."""
        with _turn, self._opened(write) as tables:
            try:
                tables.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield tables
                tables.execute("COMMIT")
            except (sqlite3.Error, UnicodeError) as error:
                raise self._failure(error) from error
            finally:
                if tables.in_transaction:
                    with suppress(sqlite3.Error):
                        tables.execute("ROLLBACK")

    def error(self, what: str, remedy: str) -> LedgerFileError:
        return LedgerFileError(f"Expected the ledger file {self.path!r} {what}. {remedy}")

    def damage(self, what: str) -> LedgerFileError:
        """The error that this file is not what was written to it."""
        remedy = "Put back a copy from before the damage and enter what was spent since."
        return self.error(f"to be as it was written but {what}", remedy)

    def _check_file(self) -> None:
        """Raise unless the file is whole and of this format. Erase notes that are too old."""
        with self.transaction(write=False) as tables:
            damage = tables.execute("PRAGMA quick_check").fetchone()
            about = tables.execute("SELECT format, version FROM about").fetchall()
            if damage != ("ok",) or about != [(_FORMAT, _VERSION)]:
                raise self._foreign(about)
            old = tables.execute(f"SELECT 1 FROM notes {_OLD}", _oldest()).fetchone()
        if old is not None:
            with self.transaction() as tables:
                tables.execute(f"UPDATE notes SET content = x'' {_OLD}", _oldest())

    def _foreign(self, about: list[tuple[Any, Any]]) -> LedgerFileError:
        """The error that a file is of another format, of another version, or damaged."""
        if [name for name, _ in about] == [_FORMAT] and about[0][1] != _VERSION:
            return LedgerFileError(
                f"Cannot open the ledger file {self.path!r}: its format is version {about[0][1]}, "
                f"and this package reads version {_VERSION}. Give the path of a new file, with the "
                "budget that the old one has left."
            )
        return self.error(
            f"to be a {_FORMAT} but it is another or damaged",
            "Give the path of a ledger that this package made, or of a new file.",
        )

    @contextmanager
    def _opened(self, write: bool) -> Iterator[sqlite3.Connection]:
        if self.path is None:
            if write and os.getpid() != self._process:
                raise LedgerError(
                    "Expected to spend in the process that made the ledger but this is a fork of it, which the others "
                    "would not hear of. Build it with PrivacyLedger(path=...)."
                )
            if self._memory is None:
                memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                weakref.finalize(self, memory.close)
                memory.executescript(_SCHEMA)
                self._memory = memory
            yield self._memory
            return
        if not os.path.isfile(self.path):
            remedy = "Put the file back: without it nobody knows what was spent."
            raise self.error("to exist and to be a regular file but it is not", remedy)
        if os.path.getsize(self.path) == 0:  # SQLite would take it for a new one
            raise self.damage("it is empty")
        # one connection for each transaction: none is carried over a fork
        with closing(self._connect(self.path)) as tables:
            try:
                tables.execute("PRAGMA synchronous=EXTRA")
                tables.execute("PRAGMA secure_delete=ON")
            except (sqlite3.Error, UnicodeError) as error:
                raise self._failure(error) from error
            yield tables

    def _connect(self, path: str) -> sqlite3.Connection:
        name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        uri = f"file:{name}?mode=rw"
        try:
            return sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
        except (sqlite3.Error, UnicodeError) as error:
            raise self._failure(error) from error

    def _create(self, path: str) -> None:
        """Make the whole file beside its place, then link it there: a file that is in place is complete."""
        if os.path.lexists(f"{path}-journal"):
            raise self.error(
                "to be there with its journal but it is gone",
                "Put the file back, with the journal.",
            )
        fresh = f"{path}.{secrets.token_hex(8)}"
        try:
            os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            what = f"in a directory that can be written but got: {error.strerror}"
            raise self.error(what, "Make it, or choose another.") from error
        try:
            with closing(sqlite3.connect(fresh, isolation_level=None)) as tables:
                tables.execute("PRAGMA synchronous=EXTRA")
                tables.executescript(_SCHEMA)
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, path)
        except (OSError, sqlite3.Error) as error:
            raise self.error(
                f"to be made but got: {error}", "Put the ledger on a local disk."
            ) from error
        finally:
            os.unlink(fresh)
        sync_directory(os.path.dirname(path) or os.curdir)

    def _failure(self, error: Exception) -> LedgerError:
        if "locked" in str(error):
            what = f"to be free within {_LOCK_SECONDS:g} s but another process holds its lock"
            return self.error(what, "End the process that hangs; its lock goes with it.")
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            return self.error(
                f"to be read and written but got: {error}", "Check disk and permissions."
            )
        return self.damage(f"it is damaged or another ({error})")


class Notes:
    """The notes about rounds of one spec, in the tables of an open transaction."""

    def __init__(self, tables: sqlite3.Connection, spec: bytes) -> None:
        self._tables = tables
        self._spec = spec.hex()

    def read(self, round: str) -> bytes | None:
        """Return the note about a round: None if the round was never begun, empty if it is over."""
        row = self._tables.execute(
            "SELECT content FROM notes WHERE spec = ? AND round = ?", (self._spec, round)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def write(self, round: str, content: bytes) -> None:
        """Put a note about a round in place of the one there is."""
        self._tables.execute(
            "INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)",
            (self._spec, round, content, time.time()),
        )

    def erase(self, round: str) -> None:
        """Erase the note about a round. That the round was begun stays."""
        self._tables.execute(
            "UPDATE notes SET content = x'' WHERE spec = ? AND round = ?", (self._spec, round)
        )

    def rounds(self) -> list[str]:
        """Return every round that was begun."""
        rows = self._tables.execute("SELECT round FROM notes WHERE spec = ?", (self._spec,))
        return [round for (round,) in rows]


@dataclass
class Records:
    """What was read. The chain is a digest of each record and all before: it finds accidents, but can be forged."""

    size: int = 0
    chain: str = ""
    entries: dict[EntryKey, LedgerEntry] = field(default_factory=dict)
    """The charged releases, each with the queries that were answered."""
    chains: dict[EntryKey, str] = field(default_factory=dict)
    """The chain up to each entry."""
    reservations: dict[EntryKey, Reservation] = field(default_factory=dict)
    """Those that were neither charged nor cancelled; time decides whether they are open."""
    budgets: tuple[Budget, ...] = ()
    """Every budget that was recorded; the last one is in force."""

    @property
    def amounts(self) -> list[Amounts]:
        """What was charged."""
        return [entry.amounts for entry in self.entries.values()]

    def reserved(self, now: float) -> list[Reservation]:
        """Return the reservations that are open at a time, in seconds since 1970 (UTC)."""
        return [
            reservation for reservation in self.reservations.values() if now < reservation.until
        ]

    def committed(self, now: float, besides: EntryKey | None = None) -> list[Amounts]:
        """Return what was charged or is reserved at a time, without the reservation of one key."""
        reserved = [
            reservation.entry.amounts
            for reservation in self.reserved(now)
            if reservation.entry.key != besides
        ]
        return self.amounts + reserved

    def limit(self, otherwise: Budget) -> Budget:
        """Return the budget in force, or another where none is recorded."""
        return self.budgets[-1] if self.budgets else otherwise

    def read_on(self, tables: sqlite3.Connection, store: Store) -> Records:
        """Return what the records say now, once they are known to be what was written and to hold all that was seen."""
        records = replace(
            self,
            entries=dict(self.entries),
            chains=dict(self.chains),
            reservations=dict(self.reservations),
        )
        seen = tables.execute(
            "SELECT chain FROM records WHERE number = ?", (records.size,)
        ).fetchone() or ("",)
        if seen != (records.chain,):
            remedy = "Put the newer file back, then open it again."
            raise store.error("to only ever grow but what was read before is gone", remedy)
        new = tables.execute(
            "SELECT number, body, chain FROM records WHERE number > ? ORDER BY number",
            (records.size,),
        )
        try:
            for number, body, chain in new:
                records.add(json.loads(body), body)
                if (number, chain) != (records.size, records.chain):
                    raise ValueError("the chain is broken")
            head = tables.execute("SELECT count, chain FROM head").fetchall()
            if head != [(records.size, records.chain)]:
                raise ValueError("the end is missing")
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            ZeroDivisionError,
        ) as error:
            raise store.damage(f"record {records.size} or the next is not ({error})") from None
        return records

    def add(self, record: dict[str, Any], body: str) -> None:
        self.size += 1
        self.chain = hashlib.sha256((self.chain + body).encode()).hexdigest()
        if "entry" in record:
            entry = LedgerEntry(**record["entry"])
            self.entries[entry.key] = entry
            self.chains[entry.key] = self.chain
            self.reservations.pop(entry.key, None)
        elif "budget" in record:
            self.budgets += (Budget(**record["budget"]),)
        elif "reservation" in record:
            reservation = Reservation(LedgerEntry(**record["reservation"]), record["until"])
            self.reservations[reservation.entry.key] = reservation
        elif "cancellation" in record:
            data, round, spec = record["cancellation"]
            del self.reservations[data, round, spec]
        else:
            data, round, spec = record["answer"]
            entry = self.entries[data, round, spec]
            answered = AnsweredQuery.from_fields(record)
            self.entries[entry.key] = replace(entry, queries=(*entry.queries, answered))

    def append(self, tables: sqlite3.Connection, record: dict[str, Any]) -> None:
        body = json.dumps(record, allow_nan=False)
        self.add(record, body)
        tables.execute("INSERT INTO records VALUES (?, ?, ?)", (self.size, body, self.chain))
        tables.execute("UPDATE head SET count = ?, chain = ?", (self.size, self.chain))


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Return once the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
