"""Figure: one measured number; and tables of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Figure", "markdown", "rounded"]


class Figure(NamedTuple):
    """A number: in the table ``section``, in the row ``case``, in the column ``name``."""

    section: str
    case: str
    name: str
    value: float


def markdown(figures: Iterable[Figure]) -> str:
    """Return one table for each section, rows and columns in the order of their first appearance."""
    sections: dict[str, list[Figure]] = {}
    for figure in figures:
        sections.setdefault(figure.section, []).append(figure)
    return "\n\n".join(f"## {section}\n\n{_table(rows)}" for section, rows in sections.items())


def _table(figures: list[Figure]) -> str:
    names = list(dict.fromkeys(figure.name for figure in figures))
    values = {(figure.case, figure.name): rounded(figure.value) for figure in figures}
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    cases = dict.fromkeys(figure.case for figure in figures)
    lines += [f"| {case} | {' | '.join(values.get((case, name), '') for name in names)} |" for case in cases]
    return "\n".join(lines)


def rounded(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
