"""Ledgers, entries and racing processes for tests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tests.light import LightProcess
from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.ledger import PrivacyLedger

OpenLedger = Callable[..., PrivacyLedger]

ENTRY = LedgerEntry("val", "1", 0.5, 1e-7, "polya", spec="5bec", client="5e55")
"""The price of a release of a client."""


def entry_of_round(round: int, epsilon: float = 1.0) -> LedgerEntry:
    return LedgerEntry("val", str(round), epsilon, spec="5bec", client="5e55")


def recorded_answers(ledger: PrivacyLedger) -> list[tuple[int, str, float]]:
    """Return the number of the entry, the query and the fraction of every answer in the file."""
    assert ledger.path is not None
    with closing(sqlite3.connect(ledger.path)) as tables:
        bodies = tables.execute("SELECT body FROM records ORDER BY number").fetchall()
    keys = []
    answers = []
    for (body,) in bodies:
        record = json.loads(body)
        if "entry" in record:
            entry = record["entry"]
            keys.append([entry["data"], entry["round"], entry["spec"]])
        if "answer" in record:
            number = 1 + keys.index(record["answer"])
            answers.append((number, record["query"], record["fraction"]))
    return sorted(answers)


def race(program: str, path: Path, kind: str = "") -> list[str]:
    """Run a program in eight processes at once, and return the words that they print."""
    ranks = [LightProcess(program, path, rank, kind) for rank in range(8)]
    for process in ranks:
        process.wait_for("ready")
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda process: process.result("go\n"), ranks))
    return [word for words in outputs for word in words]
