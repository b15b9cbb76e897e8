"""The numbers of a report as a table, in plain text and in Markdown."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from torchmetrics_fed.functional.band import Interval
from torchmetrics_fed.functional.groups import GroupGaps

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport


NUMBERS: dict[str, Any] = json.loads(
    (files(__package__) / "assets" / "numbers.json").read_text(encoding="utf-8")
)
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
        values, digits = self.value.flatten().tolist(), self.digits
        shown = [f"{v:,.{digits or int(v != round(v))}f}" if v == v else "nan" for v in values]
        if self.interval is None:
            return shown
        each = zip(shown, *(end.flatten().tolist() for end in self.interval), strict=True)
        return [f"{value} ({low:.{digits}f} to {high:.{digits}f})" for value, low, high in each]

    @property
    def mean(self) -> str:
        """The mean over classes that have the number; none of counts, and a mean of thresholds is no threshold."""
        return (
            ""
            if not self.digits or self.title.endswith(" at")
            else f"{self.value.nanmean().item():.{self.digits}f}"
        )


def _tables(report: EvaluationReport) -> list[list[list[str]]]:
    """The numbers: of a binary report a row each, of others one for each class. Groups, and how far they are apart."""
    numbers = report.numbers.values()
    if not report.auroc.dim():
        tables = [[[number.title, *number.texts] for number in numbers]]
    else:
        columns = [
            ["class", *report.names, "mean"],
            *([each.title, *each.texts, each.mean] for each in numbers),
        ]
        tables = [[list(row) for row in zip(*columns, strict=True)]]
    if report.groups:  # with means over classes if there are several
        shown = ("negatives", "positives", "auroc", "average_precision")
        tables.append([["group", *(NUMBERS[name]["title"] for name in shown)]])
        for name, part in report.groups.items():
            each = [part.numbers[number] for number in shown]
            tables[-1].append(
                [name, *((part.auroc.dim() and one.mean) or one.texts[0] for one in each)]
            )
    if report.gaps is not None:
        tables.append(_gaps(report.gaps))
    return tables


_RATES_OF = {
    "equal_opportunity": ("tpr",),
    "equalized_odds": ("tpr", "fpr"),
    "demographic_parity": ("positive_rate",),
    "precision_gap": ("precision",),
    "auroc_gap": ("auroc",),
}
"""The rates that each summary of gaps is made of."""


def _gaps(gaps: GroupGaps) -> list[list[str]]:
    """How far groups are apart: for several classes the worst, which one without a value may be."""
    table = [[f"largest difference of groups, at {gaps.threshold:g}", "value"]]
    for name, value in gaps.scalars.items():
        gap = getattr(gaps, name, None) or gaps.largest[name.removesuffix("_gap")]
        worst = int(value.nan_to_num(math.inf).argmax())
        largest, low, high = (end.flatten()[worst].item() for end in gap)
        shown = f"{largest:.4f} ({low:.4f} to {high:.4f})"
        if math.isnan(largest):
            missing = [group for rate in _RATES_OF[name] for group in gaps.withheld.get(rate, ())]
            shown = f"unknown, at least {low:.4f} (withheld: {', '.join(dict.fromkeys(missing))})"
        table.append([name.replace("_", " "), shown])
    return table


def text(report: EvaluationReport) -> str:
    """Return the tables with aligned columns."""
    numbers, *others = _tables(report)
    aligned = [
        _aligned(numbers, left=not report.auroc.dim()),
        *(_aligned(table, left=True) for table in others),
    ]
    return "\n".join([report.head, *aligned])


def _aligned(table: list[list[str]], left: bool) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    side = "<" if left else ">"
    cells = (
        [f"{cell:{side}{width}}" for cell, width in zip(row, widths, strict=True)] for row in table
    )
    return "\n".join(f"  {'  '.join(row)}".rstrip() for row in cells)


def markdown(report: EvaluationReport) -> str:
    """Return the numbers and the privacy statement."""
    tables, lines = _tables(report), list[str]()
    tables[0][:0] = [] if report.auroc.dim() else [["number", "value"]]
    for table in tables:
        table.insert(1, ["---"] * len(table[0]))
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in table]
        lines += ["", *(f"| {' | '.join(row)} |" for row in cells)][not lines :]
    whose = (
        "the population that the examples were drawn from"
        if report.population
        else "all clients' own examples"
    )
    note = (
        f"Intervals: {report.confidence:.0%}, of {whose}."
        if report.intervals
        else "No intervals: counts are exact."
    )
    said = [] if report.statement is None else report.statement.fields["words"]
    privacy = (
        ["", "## Privacy statement", "", *(f"- **{name}**: {words}" for name, words in said)]
        if said
        else []
    )
    return "\n".join(["# Evaluation", "", f"{report.head}.", "", *lines, "", note, *privacy, ""])
