"""Store: the state that must outlive a crash: the records of a ledger and the notes of a node.

Invariants:

- A transaction is whole or nothing. It is on disk when its block ends.
- Transactions come one after the other, across threads and processes.
- Records are only ever added. Each record is bound to all records before it by a digest, the
  chain. The chain finds accidents; it does not stop a forger.
- A note that is erased is overwritten in the file.

Why SQLite, and not files of our own: a charge and the query it was charged for are one transaction.
The notes of a node can be erased, which an append-only journal cannot do. Locks, torn writes and
recovery are the work of a library that is tested for them, in the standard library.
``synchronous=EXTRA`` makes a commit return once it is on disk, directory included.
``secure_delete`` overwrites erased content in the file (the journal of a transaction is unlinked,
and its blocks belong to the file system).

What the store cannot know: a file that was replaced by an older copy while no process had it open.
A restored backup has forgotten what was charged since, so restore it together with a note of what
was spent, or start a new budget.

The tables of a file, format version 2:

``records``
    The records of a ledger in JSON, numbered from 1. Each has a digest of its text and of all
    records before it. A record is one of

    - ``budget``: the budget in force from here on,
    - ``entry``: a charged release,
    - ``answer``: a query of a charged release, with its fraction of epsilon and the law of its
      noise,
    - ``reservation``: a release that may be charged until a time,
    - ``cancellation``: of a reservation. That a reservation was charged or has expired is not
      recorded: it follows from the entries and from the time,
    - ``settlement``: of a release that was broken off, with the epsilon that was drawn for it.
``head``
    The number of records, and the digest of all.
``notes``
    The notes of a node for its next process, by the digest of the spec and the round, with the time
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

NOTE_SECONDS = 24 * 60 * 60
"""The longest time that a note is kept, in seconds: a store that is opened later erases it."""

_FORMAT = "torchmetrics-fed store"

_VERSION = 2

_LOCK_SECONDS = 60.0
"""How long a transaction waits for the lock of another process, in seconds."""

_FORK_SECONDS = 1.0
"""How long a fork waits for a transaction of this process, in seconds."""

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

_FIND_OLD_NOTE = "SELECT 1 FROM notes WHERE content != x'' AND abs(? - time) > ?"
_ERASE_OLD_NOTES = "UPDATE notes SET content = x'' WHERE content != x'' AND abs(? - time) > ?"
"""A note is old if its time is more than a day away. A time to come was set by a wrong clock."""

# One lock for the whole process. A fork copies SQLite's own table of locks as it is, so no fork may
# happen inside a transaction. A fork waits for the lock for a moment only: an interrupt at the
# wrong instruction can leave it held.
_turn = threading.RLock()
_forking = threading.local()


def _before_fork() -> None:
    _forking.held = _turn.acquire(timeout=_FORK_SECONDS)


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
    """The tables in the file at ``path``, or in the memory of this process if it is None.

    The file is created if missing (mode 0600). Its directory must exist, on a file system with
    working locks. Notes that are older than a day are erased when the file is opened.
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
        """Give the tables. Changes are on disk when the block ends, and undone if it raises."""
        with _turn, self._connection(write) as tables:
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

    def error(self, problem: str, remedy: str) -> LedgerFileError:
        """Return the error that this file cannot be used."""
        return LedgerFileError(f"Cannot use the ledger file {self.path!r}: {problem}. {remedy}")

    def damage(self, problem: str) -> LedgerFileError:
        """Return the error that this file was changed from outside."""
        return self.error(
            f"it is not as it was written: {problem}",
            "Put back a copy from before the damage and enter what was spent since.",
        )

    def _check_file(self) -> None:
        """Raise unless the file is whole and of this format. Erase notes that are too old."""
        with self.transaction(write=False) as tables:
            damage = tables.execute("PRAGMA quick_check").fetchone()
            formats = tables.execute("SELECT format, version FROM about").fetchall()
            if damage != ("ok",) or formats != [(_FORMAT, _VERSION)]:
                raise self._foreign(formats)
            old_note = tables.execute(_FIND_OLD_NOTE, (time.time(), NOTE_SECONDS)).fetchone()
        if old_note is not None:
            with self.transaction() as tables:
                tables.execute(_ERASE_OLD_NOTES, (time.time(), NOTE_SECONDS))

    def _foreign(self, formats: list[tuple[Any, Any]]) -> LedgerFileError:
        """Return the error that a file is of another format or version, or damaged."""
        if len(formats) == 1:
            name, version = formats[0]
            if name == _FORMAT and version != _VERSION:
                return LedgerFileError(
                    f"Cannot open the ledger file {self.path!r}: its format is version {version}, "
                    f"and this package reads version {_VERSION}. Give the path of a new file, with "
                    "the budget that the old one has left."
                )
        return self.error(
            f"it is no {_FORMAT}, or it is damaged",
            "Give the path of a ledger that this package made, or of a new file.",
        )

    @contextmanager
    def _connection(self, write: bool) -> Iterator[sqlite3.Connection]:
        """Give an open connection to the tables."""
        if self.path is None:
            yield self._memory_tables(write)
            return
        self._check_present(self.path)
        # One connection for each transaction: none is carried over a fork.
        with closing(self._connect(self.path)) as tables:
            try:
                tables.execute("PRAGMA synchronous=EXTRA")
                tables.execute("PRAGMA secure_delete=ON")
            except (sqlite3.Error, UnicodeError) as error:
                raise self._failure(error) from error
            yield tables

    def _memory_tables(self, write: bool) -> sqlite3.Connection:
        """Return the tables in memory; create them at their first use."""
        if write and os.getpid() != self._process:
            raise LedgerError(
                "Cannot spend from a ledger in memory after a fork: the process that made it would "
                "not learn of it. Build it with PrivacyLedger(path=...)."
            )
        if self._memory is None:
            memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            weakref.finalize(self, memory.close)
            memory.executescript(_SCHEMA)
            self._memory = memory
        return self._memory

    def _check_present(self, path: str) -> None:
        if not os.path.isfile(path):
            raise self.error(
                "it does not exist, or it is no regular file",
                "Put the file back: without it, all that was spent is forgotten.",
            )
        if os.path.getsize(path) == 0:  # SQLite would take it for a new file
            raise self.damage("it is empty")

    def _connect(self, path: str) -> sqlite3.Connection:
        name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        uri = f"file:{name}?mode=rw"
        try:
            return sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
        except (sqlite3.Error, UnicodeError) as error:
            raise self._failure(error) from error

    def _create(self, path: str) -> None:
        """Make the whole file beside its place, then link it there.

        A file that is in its place is therefore complete.
        """
        if os.path.lexists(f"{path}-journal"):
            raise self.error(
                "it is gone, but its journal is there",
                "Put the file back, with the journal.",
            )
        temporary = f"{path}.{secrets.token_hex(8)}"
        try:
            os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise self.error(
                f"its directory cannot be written: {error.strerror}",
                "Make the directory, or choose another.",
            ) from error
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as tables:
                tables.execute("PRAGMA synchronous=EXTRA")
                tables.executescript(_SCHEMA)
            with suppress(FileExistsError):  # another process was first
                os.link(temporary, path)
        except (OSError, sqlite3.Error) as error:
            raise self.error(
                f"it cannot be made: {error}",
                "Put the ledger on a local disk.",
            ) from error
        finally:
            os.unlink(temporary)
        sync_directory(os.path.dirname(path) or os.curdir)

    def _failure(self, error: Exception) -> LedgerError:
        """Return the error of this package for an error of SQLite."""
        if "locked" in str(error):
            return self.error(
                f"another process did not release its lock within {_LOCK_SECONDS:g} s",
                "End the process that hangs; its lock goes with it.",
            )
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            return self.error(
                f"it cannot be read or written: {error}",
                "Check disk and permissions.",
            )
        return self.damage(f"it is damaged, or another file ({error})")


class Notes:
    """The notes about rounds of one spec, in the tables of an open transaction."""

    def __init__(self, tables: sqlite3.Connection, spec: bytes) -> None:
        self._tables = tables
        self._spec = spec.hex()

    def read(self, round: str) -> bytes | None:
        """Return the note about a round: None if the round was never begun, empty if it is over."""
        row = self._tables.execute(
            "SELECT content FROM notes WHERE spec = ? AND round = ?",
            (self._spec, round),
        ).fetchone()
        if row is None:
            return None
        return bytes(row[0])

    def write(self, round: str, content: bytes) -> None:
        """Write a note about a round, in place of an earlier note."""
        self._tables.execute(
            "INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)",
            (self._spec, round, content, time.time()),
        )

    def erase(self, round: str) -> None:
        """Erase the note about a round. The store still knows that the round was begun."""
        self._tables.execute(
            "UPDATE notes SET content = x'' WHERE spec = ? AND round = ?",
            (self._spec, round),
        )

    def rounds(self) -> list[str]:
        """Return every round that was begun."""
        rows = self._tables.execute("SELECT round FROM notes WHERE spec = ?", (self._spec,))
        return [round for (round,) in rows]


@dataclass
class Records:
    """The content of the records that were read so far."""

    size: int = 0
    """The number of records."""
    chain: str = ""
    """The digest of all records."""
    entries: dict[EntryKey, LedgerEntry] = field(default_factory=dict)
    """The charged releases, each with the queries that were answered."""
    chains: dict[EntryKey, str] = field(default_factory=dict)
    """The digest of all records up to each entry."""
    reservations: dict[EntryKey, Reservation] = field(default_factory=dict)
    """The reservations that were neither charged nor cancelled. Time decides which are open."""
    settled: frozenset[EntryKey] = frozenset()
    """The releases that were broken off and are charged what was drawn. They are over."""
    budgets: tuple[Budget, ...] = ()
    """Every budget that was recorded. The last one is in force."""

    @property
    def amounts(self) -> list[Amounts]:
        """The amounts of the charged releases."""
        return [entry.amounts for entry in self.entries.values()]

    def reserved(self, now: float) -> list[Reservation]:
        """Return the reservations that are open at a time, in seconds since 1970 (UTC)."""
        return [
            reservation for reservation in self.reservations.values() if now < reservation.until
        ]

    def committed(self, now: float, besides: EntryKey | None = None) -> list[Amounts]:
        """Return the amounts that are charged or reserved at a time.

        Args:
            now: the time, in seconds since 1970 (UTC).
            besides: the release whose reservation does not count.
        """
        reserved = [
            reservation.entry.amounts
            for reservation in self.reserved(now)
            if reservation.entry.key != besides
        ]
        return self.amounts + reserved

    def limit(self, default: Budget) -> Budget:
        """Return the budget in force, or a default if none is recorded."""
        if self.budgets:
            return self.budgets[-1]
        return default

    def updated(self, tables: sqlite3.Connection, store: Store) -> Records:
        """Return these records and all that were added since.

        Raise unless the file still holds what was read before, and the chain is whole.
        """
        records = replace(
            self,
            entries=dict(self.entries),
            chains=dict(self.chains),
            reservations=dict(self.reservations),
        )
        last_read = tables.execute(
            "SELECT chain FROM records WHERE number = ?", (records.size,)
        ).fetchone()
        if last_read is None:
            last_read = ("",)
        if last_read != (records.chain,):
            raise store.error(
                "it may only ever grow, but records that were read before are gone",
                "Put the newer file back, then open it again.",
            )
        try:
            records._add_new(tables)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            ZeroDivisionError,
        ) as error:
            raise store.damage(f"record {records.size} or the next ({error})") from None
        return records

    def _add_new(self, tables: sqlite3.Connection) -> None:
        """Add the records of the tables that were not read so far."""
        rows = tables.execute(
            "SELECT number, body, chain FROM records WHERE number > ? ORDER BY number",
            (self.size,),
        )
        for number, body, chain in rows:
            self.add(json.loads(body), body)
            if (number, chain) != (self.size, self.chain):
                raise ValueError("the chain is broken")
        head = tables.execute("SELECT count, chain FROM head").fetchall()
        if head != [(self.size, self.chain)]:
            raise ValueError("the end is missing")

    def add(self, record: dict[str, Any], body: str) -> None:
        """Add a record. ``body`` is its text in JSON."""
        self.size += 1
        self.chain = hashlib.sha256((self.chain + body).encode()).hexdigest()
        if "entry" in record:
            self._add_entry(LedgerEntry(**record["entry"]))
        elif "budget" in record:
            self.budgets += (Budget(**record["budget"]),)
        elif "reservation" in record:
            entry = LedgerEntry(**record["reservation"])
            self.reservations[entry.key] = Reservation(entry, record["until"])
        elif "cancellation" in record:
            data, round, spec = record["cancellation"]
            del self.reservations[data, round, spec]
        elif "settlement" in record:
            data, round, spec = record["settlement"]
            self._settle((data, round, spec), record["epsilon"])
        else:
            data, round, spec = record["answer"]
            self._add_answer((data, round, spec), AnsweredQuery.from_fields(record))

    def _add_entry(self, entry: LedgerEntry) -> None:
        self.entries[entry.key] = entry
        self.chains[entry.key] = self.chain
        self.reservations.pop(entry.key, None)

    def _settle(self, key: EntryKey, epsilon: float) -> None:
        entry = self.entries[key]
        if key in self.settled or not epsilon < entry.epsilon:
            raise ValueError("a settlement is below the charge, and made once")
        self.settled |= {key}
        self.entries[key] = replace(entry, epsilon=epsilon)

    def _add_answer(self, key: EntryKey, answered: AnsweredQuery) -> None:
        entry = self.entries[key]
        self.entries[key] = replace(entry, queries=(*entry.queries, answered))

    def append(self, tables: sqlite3.Connection, record: dict[str, Any]) -> None:
        """Add a record, and write it to the tables."""
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
