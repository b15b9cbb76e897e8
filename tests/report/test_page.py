"""The HTML page: one small file that names nothing outside itself and lets nothing in."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, evaluation_report
from torchmetrics_fed.report.document import document, page


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, object]:
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL
    )
    return dict(json.loads(data))


def test_the_page_holds_all_it_needs(report: EvaluationReport) -> None:
    text = page(report)
    assert "{{" not in text
    elements = Elements(text).found
    for tag, attributes in elements:
        assert not {"src", "style", "onclick", "onload"} & attributes.keys(), tag
        assert not (attributes.get("href") or "#").strip("#").startswith(("http", "/", ".")), tag
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)",
        text.split('id="data"')[0] + text.split("</script>")[-2],
    )
    (policy,) = [
        a["content"] for t, a in elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_data_are_the_documents(report: EvaluationReport) -> None:
    shown, full = data_of(page(report)), document(report)
    assert "counts" not in shown
    assert shown["statement"] == full["statement"]
    for one, whole in zip(shown["classes"], full["classes"], strict=True):  # type: ignore[call-overload]
        assert one["numbers"] == whole["numbers"]
        for name, values in whole["points"].items():
            assert one["points"][name] == values


def test_labels_cannot_break_out() -> None:
    labels = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "{{script}} & <!-- \u2028",
    ]
    text = page(evaluation_report(torch.randint(1, 9, (3, 2, 16)), labels=labels))
    assert [one["name"] for one in data_of(text)["classes"]] == labels  # type: ignore[attr-defined]
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert sum(tag == "script" for tag, _ in Elements(text).found) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:No positive examples"
)  # noise over fifty classes can leave none
@pytest.mark.parametrize("kind", ["exact multiclass", "private multiclass"])
def test_fifty_classes_stay_below_a_megabyte(kind: str) -> None:
    release = release_of(kind, classes=50, examples=6_000)
    text = page(
        evaluation_report(
            release, labels=[f"a class with a long name, number {k}" for k in range(50)]
        )
    )
    assert len(text.encode()) < 1_000_000
    assert len(page(evaluation_report(release_of("private binary"))).encode()) < 100_000


def test_scripts_and_styles_are_files(tmp_path: Path) -> None:
    assets = Path(page.__code__.co_filename).parent / "assets"
    for kind in ("html", "css", "js"):
        content = (assets / f"report.{kind}").read_text()
        assert "</script" not in content or kind == "html"
        assert "\r" not in content
