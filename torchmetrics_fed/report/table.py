"""The numbers of a report as a table, in plain text and in Markdown."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from torchmetrics_fed.functional.band import Interval

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport


NUMBERS: dict[str, Any] = json.loads((files(__package__) / "assets" / "numbers.json").read_text(encoding="utf-8"))
"""Title, digits after the point (0 for counts) and meaning of each number, in the order of tables."""


class Number(NamedTuple):
    """A value for each class, and how a table shows it."""

    title: str
    digits: int
    meaning: str
    value: Tensor
    interval: Interval | None

    @property
    def texts(self) -> list[str]:
        """The value of each class, with its interval."""
        shown = [
            f"{v:,.{self.digits or int(v != round(v))}f}" if v == v else "nan" for v in self.value.flatten().tolist()
        ]
        if self.interval is None:
            return shown
        ends = zip(*(end.flatten().tolist() for end in self.interval), strict=True)
        return [
            f"{value} ({low:.{self.digits}f} to {high:.{self.digits}f})"
            for value, (low, high) in zip(shown, ends, strict=True)
        ]

    @property
    def mean(self) -> str:
        """The mean over classes that have the number; none of counts, and a mean of thresholds is no threshold."""
        return "" if not self.digits or self.title.endswith(" at") else f"{self.value.nanmean().item():.{self.digits}f}"


def rows(report: EvaluationReport) -> list[list[str]]:
    """Return a row for each number of a binary report; of others one for each class, below their titles."""
    numbers = report.numbers.values()
    if not report.auroc.dim():
        return [[number.title, *number.texts] for number in numbers]
    columns = [["class", *report.names, "mean"], *([number.title, *number.texts, number.mean] for number in numbers)]
    return [list(row) for row in zip(*columns, strict=True)]


def text(report: EvaluationReport) -> str:
    """Return the table with aligned columns."""
    table, left = rows(report), not report.auroc.dim()
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    cells = [
        [f"{cell:{'<' if left else '>'}{width}}" for cell, width in zip(row, widths, strict=True)] for row in table
    ]
    return "\n".join([report.head, *(f"  {'  '.join(row)}".rstrip() for row in cells)])


def markdown(report: EvaluationReport) -> str:
    """Return the numbers and the privacy statement."""
    table = rows(report) if report.auroc.dim() else [["number", "value"], *rows(report)]
    table.insert(1, ["---"] * len(table[0]))
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in table]
    whose = "the population that the examples were drawn from" if report.population else "all clients' own examples"
    note = f"Intervals: {report.confidence:.0%}, of {whose}." if report.intervals else "No intervals: counts are exact."
    said = [] if report.statement is None else report.statement.fields["words"]
    privacy = ["", "## Privacy statement", "", *(f"- **{name}**: {words}" for name, words in said)] if said else []
    return "\n".join(["# Evaluation", "", f"{report.head}.", "", *lines, "", note, *privacy, ""])
