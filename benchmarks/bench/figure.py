"""Figure: one measured number; and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Figure", "markdown", "rounded"]

_WIDEST = 6
"""Columns that fit on a page; of a section with more, the rows become the columns."""


class Figure(NamedTuple):
    """A number: in the table ``section``, in the row ``case``, in the column ``name``."""

    section: str
    case: str
    name: str
    value: float


def markdown(figures: Iterable[Figure], notes: Mapping[str, str] | None = None) -> str:
    """Return one table for each section, rows and columns in the order of their first appearance.

    Args:
        figures: what was measured.
        notes: a text above the table, by the name of the section.
    """
    sections: dict[str, list[Figure]] = {}
    for figure in figures:
        sections.setdefault(figure.section, []).append(figure)
    above = {
        section: f"{(notes or {})[section]}\n\n" if section in (notes or {}) else ""
        for section in sections
    }
    return "\n\n".join(
        f"## {section}\n\n{above[section]}{_table(rows)}" for section, rows in sections.items()
    )


def _table(figures: list[Figure]) -> str:
    values = {(figure.case, figure.name): rounded(figure.value) for figure in figures}
    rows, columns = (list(dict.fromkeys(place)) for place in zip(*values, strict=True))
    if len(columns) >= _WIDEST:
        rows, columns = columns, rows
        values = {(name, case): value for (case, name), value in values.items()}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {row} | {' | '.join(values.get((row, column), '') for column in columns)} |"
        for row in rows
    ]
    return "\n".join(lines)


def rounded(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
