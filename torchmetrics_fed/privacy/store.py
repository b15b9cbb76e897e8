"""Store: what must outlive a crash. A ledger's records, each bound to all before it, and a node's notes; in SQLite.

Why SQLite, and not files of our own: a charge and the query it was charged for are one transaction; a node's notes can
be erased, which an append-only journal cannot do; locks, torn writes and recovery are the work of a library that is
tested for them, in the standard library. ``synchronous=EXTRA`` makes a commit return once it is on disk, directory
included; ``secure_delete`` overwrites what is erased in the file (the journal of a transaction is unlinked, and its
blocks are the file system's).

What it cannot know: a file that was replaced by an older copy while nobody had it open. A restored backup has forgotten
what was charged since, so restore it together with a note of what was spent, or start a new budget.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from torchmetrics_fed.errors import LedgerError, LedgerFileError
from torchmetrics_fed.privacy.budget import Amounts, Budget, LedgerEntry

_Key: TypeAlias = tuple[str, str, str]

_FORMAT, _VERSION = "torchmetrics-fed store", 1
_LOCK_SECONDS = 60.0
_SCHEMA = f"""
CREATE TABLE about (format TEXT NOT NULL, version INTEGER NOT NULL);
INSERT INTO about VALUES ('{_FORMAT}', {_VERSION});
CREATE TABLE records (number INTEGER PRIMARY KEY, body TEXT NOT NULL, chain TEXT NOT NULL);
CREATE TABLE head (count INTEGER NOT NULL, chain TEXT NOT NULL);
INSERT INTO head VALUES (0, '');
CREATE TABLE notes (name TEXT PRIMARY KEY, content BLOB NOT NULL);
"""

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
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._process = os.getpid()
        self._memory: sqlite3.Connection | None = None
        if path is not None:
            if not os.path.lexists(path):
                self._create(path)
            with self.transaction(write=False) as tables:
                damage = tables.execute("PRAGMA quick_check").fetchone()
                about = tables.execute("SELECT format, version FROM about").fetchall()
            if damage != ("ok",) or about != [(_FORMAT, _VERSION)]:
                what = f"to be a {_FORMAT}, version {_VERSION}, but it is another or damaged"
                raise self.error(
                    what, "Give the path of a ledger that this package made, or of a new file."
                )

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

    @contextmanager
    def _opened(self, write: bool) -> Iterator[sqlite3.Connection]:
        if self.path is None:
            if write and os.getpid() != self._process:
                raise LedgerError(
                    "Expected to spend in the process that made the ledger but this is a fork of it, which the others "
                    "would not hear of. Build it with PrivacyLedger(path=...)."
                )
            if self._memory is None:
                self._memory = sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False
                )
                self._memory.executescript(_SCHEMA)
            yield self._memory
            return
        if not os.path.isfile(self.path):
            remedy = "Put the file back: without it nobody knows what was spent."
            raise self.error("to exist and to be a regular file but it is not", remedy)
        if os.path.getsize(self.path) == 0:  # SQLite would take it for a new one
            raise self.damage("it is empty")
        # one connection for each transaction: none is carried over a fork
        name = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        try:
            tables = sqlite3.connect(
                f"file:{name}?mode=rw", uri=True, timeout=_LOCK_SECONDS, isolation_level=None
            )
            tables.execute("PRAGMA synchronous=EXTRA")
            tables.execute("PRAGMA secure_delete=ON")
        except (sqlite3.Error, UnicodeError) as error:
            raise self._failure(error) from error
        with closing(tables):
            yield tables

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


@dataclass
class Records:
    """What was read. The chain is a digest of each record and all before: it finds accidents, but can be forged."""

    size: int = 0
    chain: str = ""
    entries: dict[_Key, LedgerEntry] = field(default_factory=dict)
    answers: dict[_Key, dict[str, float]] = field(default_factory=dict)
    chains: dict[_Key, str] = field(default_factory=dict)
    """The chain up to each entry."""
    budgets: tuple[Budget, ...] = ()
    """Every budget that was recorded; the last one is in force."""

    @property
    def amounts(self) -> list[Amounts]:
        return [entry.amounts for entry in self.entries.values()]

    def limit(self, otherwise: Budget) -> Budget:
        """Return the budget in force, or another where none is recorded."""
        return self.budgets[-1] if self.budgets else otherwise

    def read_on(self, tables: sqlite3.Connection, store: Store) -> Records:
        """Return what the records say now, once they are known to be what was written and to hold all that was seen."""
        known = replace(
            self, entries=dict(self.entries), answers=dict(self.answers), chains=dict(self.chains)
        )
        seen = tables.execute(
            "SELECT chain FROM records WHERE number = ?", (known.size,)
        ).fetchone() or ("",)
        if seen != (known.chain,):
            remedy = "Put the newer file back, then open it again."
            raise store.error("to only ever grow but what was read before is gone", remedy)
        new = tables.execute(
            "SELECT number, body, chain FROM records WHERE number > ? ORDER BY number",
            (known.size,),
        )
        try:
            for number, body, chain in new:
                known.add(json.loads(body), body)
                if (number, chain) != (known.size, known.chain):
                    raise ValueError("the chain is broken")
            if tables.execute("SELECT count, chain FROM head").fetchall() != [
                (known.size, known.chain)
            ]:
                raise ValueError("the end is missing")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise store.damage(f"record {known.size} or the next is not ({error})") from None
        return known

    def add(self, record: dict[str, Any], body: str) -> None:
        self.size, self.chain = (
            self.size + 1,
            hashlib.sha256((self.chain + body).encode()).hexdigest(),
        )
        if "entry" in record:
            entry = LedgerEntry(**record["entry"])
            self.entries[entry.key], self.chains[entry.key] = entry, self.chain
        elif "budget" in record:
            self.budgets += (Budget(**record["budget"]),)
        else:
            data, round_, spec = record["answer"]
            before = self.answers.get((data, round_, spec), {})
            self.answers[data, round_, spec] = {
                **before,
                record["query"]: float(record["fraction"]),
            }

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
