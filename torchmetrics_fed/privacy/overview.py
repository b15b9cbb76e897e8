"""The overview of a ledger: a table of every release, for whoever answers for the data."""

from __future__ import annotations

from collections.abc import Sequence

from torchmetrics_fed.privacy.budget import Budget
from torchmetrics_fed.privacy.composition import add_up
from torchmetrics_fed.privacy.entry import LedgerEntry

_LONGEST = 40


def overview(path: str | None, budgets: Sequence[Budget], entries: Sequence[LedgerEntry], digest: str) -> str:
    """Return the text of a ledger: its budgets, oldest first, what was spent, and a row for each entry."""
    limit, amounts = budgets[-1], [entry.amounts for entry in entries]
    epsilon, delta = limit.spent(amounts)
    lines = ["Privacy ledger, in memory of one process" if path is None else f"Privacy ledger {shown(path, 200)}"]
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
        names = [shown(text) for text in (entry.data, entry.round)]
        price = f"{entry.epsilon:.6g}", f"{entry.delta:.3g}", shown(entry.mechanism)
        rows.append([f"{number}", _clock(entry.time), *names, *price, f"{float(add_up(amounts[:number])[0]):.6g}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(
        [
            *lines,
            "",
            "Each row is one private release. What it tells anybody of one person, beyond what all others' data tell,",
            "is limited by epsilon: the smaller, the less. Releases of the same people's data add up.",
            f"SHA-256 of all records: {digest or 'there are none'}",
        ]
    )


def shown(name: str, longest: int = _LONGEST) -> str:
    """Return a name as it may stand in a table: on one line, no longer than a column."""
    name = name if name.isprintable() else repr(name)[1:-1]
    return name if len(name) <= longest else name[: longest - 3] + "..."


def _clock(time: str) -> str:
    return shown(time[:19].replace("T", " "))
