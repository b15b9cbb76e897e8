"""Records: the entries of a ledger and the queries that were answered, each bound to all before it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torchmetrics_fed.privacy.budget import Budget
from torchmetrics_fed.privacy.entry import LedgerEntry
from torchmetrics_fed.privacy.store import Store

_Key: TypeAlias = tuple[str, str, str]


@dataclass
class Records:
    """What was read: the number of records, the chain up to the last of them, and what they say.

    The chain is a digest of each record and of all before it. It finds accidents; who may write the file can also forge
    it.
    """

    size: int = 0
    chain: str = ""
    entries: dict[_Key, LedgerEntry] = field(default_factory=dict)
    answers: dict[_Key, dict[str, float]] = field(default_factory=dict)
    chains: dict[_Key, str] = field(default_factory=dict)
    """The chain up to each entry."""
    budgets: tuple[Budget, ...] = ()
    """Every budget that was recorded; the last one is in force."""

    def limit(self, otherwise: Budget) -> Budget:
        """Return the budget in force, or another where none is recorded."""
        return self.budgets[-1] if self.budgets else otherwise

    def copy(self) -> Records:
        """Return another one that can go on by itself."""
        known = dict(self.entries), dict(self.answers), dict(self.chains)
        return Records(self.size, self.chain, *known, self.budgets)

    def read_on(self, tables: sqlite3.Connection, store: Store) -> Records:
        """Return what the records say now, once they are known to be what was written and to hold all that was seen."""
        known = self.copy()
        seen = tables.execute("SELECT chain FROM records WHERE number = ?", (known.size,)).fetchone() or ("",)
        if seen != (known.chain,):
            raise store.error(
                "to only ever grow but what was read before is gone", "Put the newer file back, then open it again."
            )
        new = tables.execute("SELECT number, body, chain FROM records WHERE number > ? ORDER BY number", (known.size,))
        try:
            for number, body, chain in new:
                known.add(json.loads(body), body)
                if (number, chain) != (known.size, known.chain):
                    raise ValueError("the chain is broken")
            if tables.execute("SELECT count, chain FROM head").fetchall() != [(known.size, known.chain)]:
                raise ValueError("the end is missing")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise store.damage(f"record {known.size} or the next is not ({error})") from None
        return known

    def add(self, record: dict[str, Any], body: str, entry: LedgerEntry | None = None) -> None:
        """Go on by one record."""
        self.size, self.chain = self.size + 1, hashlib.sha256((self.chain + body).encode()).hexdigest()
        if "entry" in record:
            entry = entry or LedgerEntry(**record["entry"])
            self.entries[entry.key], self.chains[entry.key] = entry, self.chain
            return
        if "budget" in record:
            self.budgets += (Budget(**record["budget"]),)
            return
        data, round_, spec = record["answer"]
        before = self.answers.get((data, round_, spec), {})
        self.answers[data, round_, spec] = {**before, record["query"]: float(record["fraction"])}

    def append(self, tables: sqlite3.Connection, record: dict[str, Any], entry: LedgerEntry | None = None) -> None:
        """Go on by one record, and write it."""
        body = json.dumps(record, allow_nan=False)
        self.add(record, body, entry)
        tables.execute("INSERT INTO records VALUES (?, ?, ?)", (self.size, body, self.chain))
        tables.execute("UPDATE head SET count = ?, chain = ?", (self.size, self.chain))
