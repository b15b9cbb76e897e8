"""A ledger as text: its budgets, its releases, and the laws of their noise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import accumulate

from torchmetrics_fed.privacy.budget import (
    MOST_RELEASES_LEFT,
    Amounts,
    Budget,
    LedgerEntry,
    Reservation,
    exact,
)
from torchmetrics_fed.privacy.law import Law

LONGEST_PATH = 200
"""The largest number of characters of a path that are shown."""

LONGEST_CELL = 40
"""The largest number of characters of a table's cell."""

_MEANING = (
    "Each row is one private release. What it tells anybody of one person, beyond what all others' "
    "data tell,",
    "is limited by epsilon: the smaller, the less. Releases of the same people's data add up.",
)


def overview(
    path: str | None,
    budgets: Sequence[Budget],
    entries: Sequence[LedgerEntry],
    digest: str,
    reservations: Sequence[Reservation] = (),
) -> str:
    """Return a ledger as text.

    Args:
        path: the file of the ledger; None if it is in memory.
        budgets: all budgets that were recorded, the oldest first.
        entries: the charged releases, the oldest first.
        digest: the digest of all records; empty if there are none.
        reservations: the open reservations.
    """
    title = "Privacy ledger, in memory of one process"
    if path is not None:
        title = f"Privacy ledger {_shown(path, LONGEST_PATH)}"
    lines = [
        title,
        *_budget_lines(budgets),
        _spent_line(budgets[-1], entries, reservations),
        *_reservation_lines(reservations),
        "",
        *_release_table(entries),
        "",
        *_MEANING,
    ]
    if any(entry.laws for entry in entries):
        lines += ["", "Noise in the answers of each release:", *_law_table(entries), ""]
    lines.append(f"SHA-256 of all records: {digest or 'there are none'}")
    return "\n".join(lines)


def _budget_lines(budgets: Sequence[Budget]) -> list[str]:
    lines = []
    title = "Budget"
    for budget in budgets:
        if budget.epsilon is None:
            lines.append("Budget: none. Nothing limits what is spent; this is a record only.")
        elif budget.time:
            lines.append(f"{title}: {budget}, recorded {_clock(budget.time)} UTC")
        else:
            lines.append(f"{title}: {budget}")
        title = "Changed to"
    return lines


def _spent_line(
    budget: Budget, entries: Sequence[LedgerEntry], reservations: Sequence[Reservation]
) -> str:
    spent = [entry.amounts for entry in entries]
    reserved = [reservation.entry.amounts for reservation in reservations]
    epsilon, delta = budget.spent(spent)
    releases = _counted(len(entries))
    line = f"Spent: epsilon {epsilon:.6g}, delta {delta:.3g}, by {releases}."
    if budget.epsilon is not None:
        line += f" Left: epsilon {budget.left(spent + reserved):.6g}"
        if entries:
            price = entries[-1].amounts
            line += f", or {_releases_left(budget, spent + reserved, price)} like the last"
        line += "."
    return line


def _releases_left(budget: Budget, amounts: Sequence[Amounts], price: Amounts) -> str:
    """Return in words how many more releases of one price fit into a budget."""
    releases = budget.releases_left(amounts, price) or 0
    words = _counted(releases)
    if releases >= MOST_RELEASES_LEFT:
        words = f"at least {words}"
    return words


def _counted(releases: int) -> str:
    return "1 release" if releases == 1 else f"{releases} releases"


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
    """Return the lines of a table with a row for each release."""
    rows = [
        [
            "",
            "charged (UTC)",
            "data",
            "round",
            "epsilon",
            "delta",
            "mechanism",
            "epsilon so far",
        ]
    ]
    totals = accumulate(exact(entry.epsilon) for entry in entries)
    for number, (entry, total) in enumerate(zip(entries, totals, strict=True), 1):
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
    """Return the lines of a table with a row for each answered query that has a law."""
    rows = [["", "of epsilon", "mechanism", "parameter", "shift x cells", "honest shares"]]
    for number, entry in enumerate(entries, 1):
        rows += [
            _law_row(number, query.fraction, query.law)
            for query in entry.queries
            if query.law is not None
        ]
    return _aligned(rows)


def _law_row(number: int, fraction: float, law: Law) -> list[str]:
    shifts = " ".join(f"{shift}x{cells}" for shift, cells in law.shifts)
    return [
        f"{number}",
        f"{fraction:.6g}",
        law.mechanism,
        f"{float(law.parameter):.6g}",
        _shown(shifts),
        f"{law.shares}",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, every column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _shown(name: str, longest: int = LONGEST_CELL) -> str:
    """Return a name on one line, no longer than a column."""
    if not name.isprintable():
        name = repr(name)[1:-1]
    if len(name) > longest:
        name = name[: longest - 3] + "..."
    return name


def _clock(time: str) -> str:
    """Return a time in ISO format without its fraction and zone."""
    return _shown(time[:19].replace("T", " "))
