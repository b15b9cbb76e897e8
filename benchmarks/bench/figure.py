"""Figure: one measured number; and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Figure", "markdown", "rounded"]

_WIDEST = 6
"""Columns that do not fit on a page any more: rows and columns of such a section are swapped."""


class Figure(NamedTuple):
    """A number: in the table ``section``, in the row ``case``, in the column ``name``."""

    section: str
    case: str
    name: str
    value: float


def markdown(figures: Iterable[Figure], notes: Mapping[str, str] | None = None) -> str:
    """Return one table for each section, with rows and columns in the order of the figures.

    Args:
        figures: the measured figures.
        notes: a text above the table, by the name of the section.
    """
    sections: dict[str, list[Figure]] = {}
    for figure in figures:
        sections.setdefault(figure.section, []).append(figure)
    texts = []
    for section, rows in sections.items():
        parts = [f"## {section}", _table(rows)]
        if notes is not None and section in notes:
            parts.insert(1, notes[section])
        texts.append("\n\n".join(parts))
    return "\n\n".join(texts)


def _table(figures: list[Figure]) -> str:
    values = {(figure.case, figure.name): rounded(figure.value) for figure in figures}
    rows = list(dict.fromkeys(figure.case for figure in figures))
    columns = list(dict.fromkeys(figure.name for figure in figures))
    if len(columns) >= _WIDEST:
        rows, columns = columns, rows
        values = {(name, case): value for (case, name), value in values.items()}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [values.get((row, column), "") for column in columns]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rounded(value: float) -> str:
    """Return a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
