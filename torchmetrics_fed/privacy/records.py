"""Records: the entries of a ledger and the queries that were answered, each bound to all before it; as a table."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torchmetrics_fed.privacy.budget import Budget, LedgerEntry, add_up
from torchmetrics_fed.privacy.store import Store

_Key: TypeAlias = tuple[str, str, str]


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

    def limit(self, otherwise: Budget) -> Budget:
        """Return the budget in force, or another where none is recorded."""
        return self.budgets[-1] if self.budgets else otherwise

    def read_on(self, tables: sqlite3.Connection, store: Store) -> Records:
        """Return what the records say now, once they are known to be what was written and to hold all that was seen."""
        known = replace(self, entries=dict(self.entries), answers=dict(self.answers), chains=dict(self.chains))
        seen = tables.execute("SELECT chain FROM records WHERE number = ?", (known.size,)).fetchone() or ("",)
        if seen != (known.chain,):
            remedy = "Put the newer file back, then open it again."
            raise store.error("to only ever grow but what was read before is gone", remedy)
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
        self.size, self.chain = self.size + 1, hashlib.sha256((self.chain + body).encode()).hexdigest()
        if "entry" in record:
            entry = entry or LedgerEntry(**record["entry"])
            self.entries[entry.key], self.chains[entry.key] = entry, self.chain
        elif "budget" in record:
            self.budgets += (Budget(**record["budget"]),)
        else:
            data, round_, spec = record["answer"]
            before = self.answers.get((data, round_, spec), {})
            self.answers[data, round_, spec] = {**before, record["query"]: float(record["fraction"])}

    def append(self, tables: sqlite3.Connection, record: dict[str, Any], entry: LedgerEntry | None = None) -> None:
        body = json.dumps(record, allow_nan=False)
        self.add(record, body, entry)
        tables.execute("INSERT INTO records VALUES (?, ?, ?)", (self.size, body, self.chain))
        tables.execute("UPDATE head SET count = ?, chain = ?", (self.size, self.chain))


def overview(path: str | None, budgets: Sequence[Budget], entries: Sequence[LedgerEntry], digest: str) -> str:
    """Return a ledger as text, for whoever answers for the data: budgets, oldest first, and a row for each entry."""
    limit, amounts = budgets[-1], [entry.amounts for entry in entries]
    epsilon, delta = limit.spent(amounts)
    lines = ["Privacy ledger, in memory of one process" if path is None else f"Privacy ledger {_shown(path, 200)}"]
    for number, budget in enumerate(budgets):
        if budget.epsilon is None:
            lines.append("Budget: none. Nothing limits what is spent; this is a record only.")
        else:
            since = f", recorded {_clock(budget.time)} UTC" if budget.time else ""
            lines.append(f"{'Budget' if number == 0 else 'Changed to'}: {budget}{since}")
    left = "" if limit.epsilon is None else f" Left: epsilon {limit.left(amounts):.6g}."
    several = "" if len(entries) == 1 else "s"
    lines += [f"Spent: epsilon {epsilon:.6g}, delta {delta:.3g}, by {len(entries)} release{several}.{left}", ""]
    rows = [["", "charged (UTC)", "data", "round", "epsilon", "delta", "mechanism", "epsilon so far"]]
    for number, entry in enumerate(entries, 1):
        names = [_shown(text) for text in (entry.data, entry.round)]
        price = f"{entry.epsilon:.6g}", f"{entry.delta:.3g}", _shown(entry.mechanism)
        rows.append([f"{number}", _clock(entry.time), *names, *price, f"{float(add_up(amounts[:number])[0]):.6g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines) + (
        "\n\nEach row is one private release. What it tells anybody of one person, beyond what all others' data tell,\n"
        "is limited by epsilon: the smaller, the less. Releases of the same people's data add up.\n"
        f"SHA-256 of all records: {digest or 'there are none'}"
    )


def _shown(name: str, longest: int = 40) -> str:
    """Return a name as it may stand in a table: on one line, no longer than a column."""
    name = name if name.isprintable() else repr(name)[1:-1]
    return name if len(name) <= longest else name[: longest - 3] + "..."


def _clock(time: str) -> str:
    return _shown(time[:19].replace("T", " "))
