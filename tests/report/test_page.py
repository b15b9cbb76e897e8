"""The HTML page: one small file that names nothing outside itself and lets nothing in."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import torchmetrics_fed.report
from tests.grids import even
from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, evaluation_report
from torchmetrics_fed.report.document import document, page

ASSETS = Path(torchmetrics_fed.report.__file__).parent / "assets"
ACTIVE_ATTRIBUTES = {"src", "style", "onclick", "onload"}


class Elements(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, Any]:
    """The data in a page."""
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (data,) = re.findall(pattern, text, flags=re.DOTALL)
    return dict(json.loads(data))


def test_the_page_loads_nothing(report: EvaluationReport) -> None:
    text = page(report)
    assert "{{" not in text
    for tag, attributes in Elements(text).elements:
        assert not ACTIVE_ATTRIBUTES & attributes.keys(), tag
        link = attributes.get("href") or "#"
        assert not link.strip("#").startswith(("http", "/", ".")), tag
    before_data = text.split('id="data"')[0]
    script = text.split("</script>")[-2]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", before_data + script)


def test_the_browser_is_asked_to_run_nothing_else(report: EvaluationReport) -> None:
    policies = []
    for _, attributes in Elements(page(report)).elements:
        if attributes.get("http-equiv") == "Content-Security-Policy":
            policies.append(str(attributes["content"]))
    (policy,) = policies
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_data_are_those_of_the_document(report: EvaluationReport) -> None:
    data = data_of(page(report))
    fields = document(report)
    assert "counts" not in data
    assert data["statement"] == fields["statement"]
    for content, expected in zip(data["classes"], fields["classes"], strict=True):
        assert content["numbers"] == expected["numbers"]
        assert content["points"] == expected["points"]


def test_labels_cannot_break_out() -> None:
    labels = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "{{script}} & <!-- \u2028",
    ]
    counts = torch.randint(1, 9, (3, 2, 16))
    text = page(evaluation_report(even(counts), labels=labels))
    assert [content["name"] for content in data_of(text)["classes"]] == labels
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert sum(tag == "script" for tag, _ in Elements(text).elements) == 2


def test_a_binary_page_is_small() -> None:
    text = page(evaluation_report(release_of("private binary")))
    assert len(text.encode()) < 100_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No positive examples")  # noise can leave none of a class
@pytest.mark.parametrize("kind", ["exact multiclass", "private multiclass"])
def test_fifty_classes_stay_below_a_megabyte(kind: str) -> None:
    release = release_of(kind, classes=50, examples=6_000)
    labels = [f"a class with a long name, number {number}" for number in range(50)]
    text = page(evaluation_report(release, labels=labels))
    assert len(text.encode()) < 1_000_000


@pytest.mark.parametrize("name", ["report.css", "report.js"])
def test_style_and_script_cannot_end_their_element(name: str) -> None:
    content = (ASSETS / name).read_text()
    assert "</script" not in content
    assert "</style" not in content
    assert "\r" not in content
