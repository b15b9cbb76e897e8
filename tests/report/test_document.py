"""JSON: a report that was read back is the same report, and what is written is what the schema says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, InputError, Reconstruction, evaluation_report
from torchmetrics_fed.report.document import document


def test_json_gives_the_report_back(report: EvaluationReport, tmp_path: Path) -> None:
    report.save(tmp_path / "report.json")
    back = EvaluationReport.from_json((tmp_path / "report.json").read_bytes())
    for name, number in report.numbers.items():
        again = back.numbers[name]
        assert (again.title, again.digits) == (number.title, number.digits)
        torch.testing.assert_close(again.value, number.value, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(again.interval, number.interval, rtol=0, atol=0)
    for name in (
        "roc",
        "precision_recall",
        "det",
        "gain",
        "calibration",
        "calibration_line",
        "net_benefit",
        "cumulative_gains",
    ):
        torch.testing.assert_close(
            getattr(back, name), getattr(report, name), rtol=0, atol=0, equal_nan=True
        )
    assert (back.task, back.labels, back.privacy, back.shares) == (
        report.task, report.labels, report.privacy, report.shares
    )  # fmt: skip
    assert str(back) == str(report)
    assert str(back.statement) == str(report.statement)
    assert document(back) == document(report)
    back.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "report.json").read_bytes()


def test_other_ways_to_read_come_back_too(tmp_path: Path) -> None:
    counts = torch.tensor([[[3, 1, 0, 0], [1, 3, 2, 0]], [[3, 0, 1, 0], [0, 1, 2, 5]]])
    edges = torch.tensor([-4.0, -1.0, 0.0, 2.0, 4.0], dtype=torch.float64)
    report = evaluation_report(counts, edges, Reconstruction("quantile", quantiles=8), ["a", "b|c"])
    assert report.calibration is None
    assert report.net_benefit is None
    report.save(tmp_path / "report.JSON")
    back = EvaluationReport.from_json((tmp_path / "report.JSON").read_text())
    assert back.labels == ("a", "b|c")
    assert back.source.leaf.dtype == torch.int64
    assert document(back) == document(report)


def test_an_absent_class_comes_back_without_a_number() -> None:
    counts = torch.zeros(2, 2, 8, dtype=torch.long)
    counts[0, 0, :4], counts[0, 1, 4:], counts[1, 0] = 3, 5, 4
    with pytest.warns(UserWarning, match="No positive"):
        report = evaluation_report(counts)
    text = json.dumps(document(report), allow_nan=False)
    with pytest.warns(UserWarning, match="No positive"):
        assert document(EvaluationReport.from_json(text)) == document(report)


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "other"}])
def test_another_schema_is_refused(change: dict[str, object]) -> None:
    fields = document(evaluation_report(torch.tensor([[3, 1], [1, 3]])))
    with pytest.raises(InputError, match="version 1, but got another"):
        EvaluationReport.from_json(json.dumps({**fields, **change}))
    with pytest.raises(InputError, match="version 1, but got another"):
        EvaluationReport.from_json("[]")


def test_every_field_is_documented(release_page: str) -> None:
    fields = document(evaluation_report(release_of("private multiclass")))
    names = {*fields, *fields["counts"], *fields["classes"][0], *fields["statement"]}
    for part in (
        "points",
        "histogram",
        "calibration",
        "net_benefit",
        "cumulative_gains",
        "numbers",
    ):
        names |= fields["classes"][0][part].keys()
    names |= (
        fields["classes"][0]["numbers"]["auroc"].keys()
        | fields["classes"][0]["bands"]["roc"].keys()
    )
    assert {name for name in names if f"`{name}`" not in release_page} == set()


@pytest.fixture
def release_page() -> str:
    return (Path(__file__).parents[2] / "docs" / "report.md").read_text()


@pytest.mark.parametrize("suffix", ["png", "pdf", "md", "html", "json"])
def test_files_are_written_whole(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    report = evaluation_report(release_of("private binary"))
    report.save(tmp_path / f"report.{suffix}")
    data = (tmp_path / f"report.{suffix}").read_bytes()
    begin = {
        "png": b"\x89PNG",
        "pdf": b"%PDF",
        "md": b"# Evaluation",
        "html": b"<!doctype html>",
        "json": b"{",
    }
    assert data.startswith(begin[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [f"report.{suffix}"]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    report = evaluation_report(torch.tensor([[3, 1], [1, 3]]))
    with pytest.raises(InputError, match=r"to end in \.html, \.json"):
        report.save(tmp_path / "report.docx")
    assert not list(tmp_path.iterdir())


def test_markdown_has_every_number_and_the_statement(
    report: EvaluationReport, tmp_path: Path
) -> None:
    report.save(tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    for number in report.numbers.values():
        assert number.title in text
        assert all(shown in text for shown in number.texts)
    assert report.statement is not None
    assert all(words in text for _, words in report.statement.fields["words"])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
