"""Files of a report: JSON holds plain numbers as the schema says, and every file is written whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, InputError, evaluation_report
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.report.document import document


def test_an_absent_class_is_in_json_as_well() -> None:
    counts = torch.zeros(2, 2, 8, dtype=torch.long)
    counts[0, 0, :4] = 3
    counts[0, 1, 4:] = 5
    counts[1, 0] = 4
    with pytest.warns(UserWarning, match="No positive"):
        report = evaluation_report(counts, labels=["a", "b|c"])
    present, absent = json.loads(json.dumps(document(report), allow_nan=False))["classes"]
    assert (present["name"], present["numbers"]["auroc"]["value"]) == ("a", 1.0)
    assert (absent["name"], absent["numbers"]["positives"]["value"]) == ("b|c", 0.0)


def test_scores_that_are_no_probabilities_have_no_calibration() -> None:
    counts = torch.tensor([[3, 1, 0, 0], [1, 3, 2, 0]])
    edges = torch.tensor([-4.0, -1.0, 0.0, 2.0, 4.0], dtype=torch.float64)
    fields = document(evaluation_report(counts, edges, Quantiles(8)))
    assert fields["classes"][0]["calibration"] is None
    assert fields["classes"][0]["net_benefit"] is None


def test_json_holds_no_counts_of_single_leaves() -> None:
    """Those are in the release, which gives the whole report again."""
    assert "counts" not in document(evaluation_report(release_of("private binary")))


def test_every_field_is_documented(release_page: str) -> None:
    fields = document(evaluation_report(release_of("private multiclass")))
    names = {*fields, *fields["classes"][0], *fields["statement"]}
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
