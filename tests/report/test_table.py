"""The numbers of a report as text and in Markdown: every number, every class, and the statement."""

from __future__ import annotations

import html

import pytest
from torch import Tensor

from tests.grids import even
from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, evaluation_report
from torchmetrics_fed.report.table import markdown, notebook
from torchmetrics_fed.typing import IntervalOf

plt = pytest.importorskip("matplotlib.pyplot")


def test_text_of_a_binary_release_has_a_line_for_each_number() -> None:
    report = evaluation_report(release_of("exact binary"), of="examples")
    head, *lines = str(report).splitlines()
    assert head == "Evaluation (binary) of 1 share, exact counts"
    table = {}
    for line in lines:
        title, value = line.rsplit(maxsplit=1)
        table[title.strip()] = value
    assert table["positives"] == f"{int(report.positives):,}"
    assert table["AUROC"] == f"{report.auroc:.4f}"
    assert table["AP"] == f"{report.average_precision:.4f}"
    assert table["best F1"] == f"{report.best_f1.value:.4f}"
    assert table["F1 at"] == f"{report.best_f1.threshold:.4f}"
    assert float(table["U"].replace(",", "")) == report.mann_whitney_u
    assert report.calibration is not None
    assert table["Brier"] == f"{report.calibration.brier_score:.4f}"


def test_text_has_a_row_for_each_class_and_their_mean(class_counts: Tensor) -> None:
    report = evaluation_report(even(class_counts), labels=["cat", "dog", "sea lion"])
    head, names, *rows, mean = str(report).splitlines()
    assert head == "Evaluation (classes) of leaf counts, exact counts"
    assert [row.strip().split("  ")[0] for row in rows] == ["cat", "dog", "sea lion"]
    for line in (names, *rows):
        assert len(line) == len(mean)
    end = names.index("AUROC") + len("AUROC")
    assert [row[:end].split()[-1] for row in rows] == [f"{value:.4f}" for value in report.auroc]
    prevalence = f"{report.prevalence.mean():.4f}"
    auroc = f"{report.auroc.mean():.4f}"
    assert mean[:end].split() == ["mean", prevalence, auroc]


def test_classes_without_labels_have_numbers(class_counts: Tensor) -> None:
    lines = str(evaluation_report(even(class_counts))).splitlines()
    assert lines[2].split()[0] == "0"


def test_markdown_has_every_number_and_the_statement(report: EvaluationReport) -> None:
    text = markdown(report)
    for number in report.numbers.values():
        assert number.title in text
        for value in number.texts:
            assert value in text
    assert report.statement is not None
    for _, words in report.statement.fields["words"]:
        assert words in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize(
    ("kind", "of", "note"),
    [
        ("exact binary", "examples", "No intervals: counts are exact."),
        ("exact binary", "population", "Intervals: 95%, of the population that the examples"),
        ("private binary", "examples", "Intervals: 95%, of all clients' own examples."),
        ("private binary", "population", "Intervals: 95%, of the population that the examples"),
    ],
)
def test_markdown_says_what_the_intervals_hold(kind: str, of: IntervalOf, note: str) -> None:
    report = evaluation_report(release_of(kind, examples=500), of=of)
    assert note in markdown(report)


def test_labels_cannot_break_a_table_in_markdown(class_counts: Tensor) -> None:
    text = markdown(evaluation_report(even(class_counts), labels=["a|b", "c\nd", "e"]))
    assert "| a\\|b |" in text
    assert "| c d |" in text


def test_a_notebook_shows_the_numbers_and_the_figure(report: EvaluationReport) -> None:
    shown = report._repr_html_()
    plt.close("all")
    for number in report.numbers.values():
        assert html.escape(number.title) in shown
        assert all(text in shown for text in number.texts)
    assert shown.count("data:image/png;base64,") == 1


def test_labels_cannot_break_out_of_a_notebook(class_counts: Tensor) -> None:
    labels = ["</table><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "a&b"]
    shown = notebook(evaluation_report(even(class_counts), labels=labels))
    assert "<script" not in shown
    assert "<img" not in shown
    assert "a&amp;b" in shown
    assert html.escape(labels[0]) in shown
