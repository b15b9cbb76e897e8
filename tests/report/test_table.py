"""Tables: every number of a report is in the text and in the Markdown, one row or column each."""

from __future__ import annotations

import torch

from torchmetrics_fed import EvaluationReport
from torchmetrics_fed.functional.band import Interval
from torchmetrics_fed.report.table import Number, markdown, text


def test_text_and_markdown_have_every_number(report: EvaluationReport) -> None:
    plain = text(report)
    marked_up = markdown(report)
    for number in report.numbers.values():
        assert number.title in plain
        assert number.title in marked_up
        for cell in number.texts:
            assert cell in plain
            assert cell in marked_up


def test_rows_of_a_markdown_table_have_as_many_cells(report: EvaluationReport) -> None:
    tables = [section for section in markdown(report).split("\n\n") if section.startswith("|")]
    assert tables
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1


def number(*values: float, digits: int = 4, title: str = "AUROC") -> Number:
    return Number(title, digits, "", torch.tensor(values, dtype=torch.float64), None)


def test_counts_are_whole_unless_they_are_noisy() -> None:
    assert number(1234.0, 1234.5, digits=0).texts == ["1,234", "1,234.5"]
    assert number(float("nan"), 0.25).texts == ["nan", "0.2500"]


def test_a_mean_is_over_the_classes_that_have_the_number() -> None:
    assert number(0.5, float("nan"), 1.0).mean == "0.7500"
    assert number(1.0, 2.0, digits=0).mean == ""
    assert number(0.5, 1.0, title="best F1 at").mean == ""


def test_an_interval_stands_behind_its_value() -> None:
    interval = Interval(torch.tensor([0.25]), torch.tensor([0.75]))
    with_interval = number(0.5, digits=2)._replace(interval=interval)
    assert with_interval.texts == ["0.50 (0.25 to 0.75)"]
