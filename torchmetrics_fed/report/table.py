"""The numbers of a report as tables, in plain text and in Markdown."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from torch import Tensor

from torchmetrics_fed.functional.band import Interval
from torchmetrics_fed.functional.groups import GroupGaps
from torchmetrics_fed.markup import html_table

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport

_Table: TypeAlias = list[list[str]]
"""Rows of cells."""

NUMBERS: dict[str, Any] = json.loads(
    (files(__package__) / "assets" / "numbers.json").read_text(encoding="utf-8")
)
"""By name, in the order of tables, a number's title, digits (0 for counts) and meaning."""

_GROUP_NUMBERS = ("negatives", "positives", "auroc", "average_precision")
"""The numbers in the table of groups."""

_GAP_RATES = {
    "equal_opportunity": ("tpr",),
    "equalized_odds": ("tpr", "fpr"),
    "demographic_parity": ("positive_rate",),
    "precision_gap": ("precision",),
    "auroc_gap": ("auroc",),
}
"""By summary of the gaps between groups, the rates that it is made of."""


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
        texts = [self._text(value) for value in self.value.flatten().tolist()]
        if self.interval is None:
            return texts
        lows = self.interval.low.flatten().tolist()
        highs = self.interval.high.flatten().tolist()
        digits = self.digits
        return [
            f"{text} ({low:.{digits}f} to {high:.{digits}f})"
            for text, low, high in zip(texts, lows, highs, strict=True)
        ]

    @property
    def mean(self) -> str:
        """The mean over classes that have the number, or an empty text.

        Counts have no mean here, and a mean of thresholds is no threshold.
        """
        is_threshold = self.title.endswith(" at")
        if not self.digits or is_threshold:
            return ""
        return f"{self.value.nanmean().item():.{self.digits}f}"

    def _text(self, value: float) -> str:
        if math.isnan(value):
            return "nan"
        digits = self.digits
        if not digits and value != round(value):  # a noisy count
            digits = 1
        return f"{value:,.{digits}f}"


def text(report: EvaluationReport) -> str:
    """Return the tables with aligned columns."""
    side = ">" if report.auroc.dim() else "<"
    parts = [report.head, _aligned(_number_table(report), side)]
    parts += [_aligned(table, "<") for table in _group_tables(report)]
    return "\n".join(parts)


def markdown(report: EvaluationReport) -> str:
    """Return the numbers and the privacy statement."""
    numbers = _number_table(report)
    if not report.auroc.dim():
        numbers = [["number", "value"], *numbers]
    tables = [_markdown_table(table) for table in [numbers, *_group_tables(report)]]
    sections = ["# Evaluation", f"{report.head}.", *tables, _interval_note(report)]
    if report.statement is not None and report.statement.fields["words"]:
        items = [f"- **{name}**: {words}" for name, words in report.statement.fields["words"]]
        sections += ["## Privacy statement", "\n".join(items)]
    return "\n\n".join(sections) + "\n"


def notebook(report: EvaluationReport) -> str:
    """Return the tables in HTML; every name in them is escaped."""
    numbers = _number_table(report)
    if report.auroc.dim():
        tables = [html_table(numbers[1:], head=numbers[0], caption=report.head)]
    else:
        tables = [html_table(numbers, caption=report.head)]
    tables += [html_table(table[1:], head=table[0]) for table in _group_tables(report)]
    return "".join(tables)


def _number_table(report: EvaluationReport) -> _Table:
    """Return the numbers: one row each, or with several classes one row for each class."""
    numbers = report.numbers.values()
    if not report.auroc.dim():
        return [[number.title, *number.texts] for number in numbers]
    columns = [["class", *report.names, "mean"]]
    columns += [[number.title, *number.texts, number.mean] for number in numbers]
    return [list(row) for row in zip(*columns, strict=True)]


def _group_tables(report: EvaluationReport) -> list[_Table]:
    """Return the table of groups, and the table of the gaps between them, where there are any."""
    tables = []
    if report.groups:
        tables.append(_group_table(report.groups))
    if report.gaps is not None:
        tables.append(_gap_table(report.gaps))
    return tables


def _group_table(groups: dict[str, EvaluationReport]) -> _Table:
    """Return one row for each group, with means over classes if there are several."""
    table = [["group", *(NUMBERS[name]["title"] for name in _GROUP_NUMBERS)]]
    for group, report in groups.items():
        row = [group]
        for name in _GROUP_NUMBERS:
            number = report.numbers[name]
            cell = number.texts[0]
            if report.auroc.dim() and number.mean:
                cell = number.mean
            row.append(cell)
        table.append(row)
    return table


def _gap_table(gaps: GroupGaps) -> _Table:
    """Return the largest differences of groups; for several classes those of the worst class.

    A class without a value may be the worst.
    """
    table = [[f"largest difference of groups, at {gaps.threshold:g}", "value"]]
    for name, value in gaps.scalars.items():
        gap = getattr(gaps, name, None) or gaps.largest[name.removesuffix("_gap")]
        worst = int(value.nan_to_num(math.inf).argmax())
        largest = gap.value.flatten()[worst].item()
        low = gap.low.flatten()[worst].item()
        high = gap.high.flatten()[worst].item()
        cell = f"{largest:.4f} ({low:.4f} to {high:.4f})"
        if math.isnan(largest):
            withheld = ", ".join(_withheld_groups(gaps, name))
            cell = f"unknown, at least {low:.4f} (withheld: {withheld})"
        table.append([name.replace("_", " "), cell])
    return table


def _withheld_groups(gaps: GroupGaps, name: str) -> list[str]:
    """Return the groups without a value for a summary of the gaps, each once."""
    groups: dict[str, None] = {}
    for rate in _GAP_RATES[name]:
        groups |= dict.fromkeys(gaps.withheld.get(rate, ()))
    return list(groups)


def _aligned(table: _Table, side: str) -> str:
    """Return a table with columns of one width, aligned to the side ``<`` or ``>``."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [f"{cell:{side}{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def _markdown_table(table: _Table) -> str:
    rows = [table[0], ["---"] * len(table[0]), *table[1:]]
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval_note(report: EvaluationReport) -> str:
    """Return what the intervals hold, in one sentence."""
    if not report.intervals:
        return "No intervals: counts are exact."
    subject = "all clients' own examples"
    if report.of == "population":
        subject = "the population that the examples were drawn from"
    return f"Intervals: {report.confidence:.0%}, of {subject}."
