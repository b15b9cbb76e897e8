"""The report as one HTML page that needs no network, made of the files in ``assets/``."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from torchmetrics_fed.report.document import document

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport


def page(report: EvaluationReport) -> str:
    """Return the page. The browser lets nothing but its own script and style run, and nothing leave it."""
    folder = files(__package__) / "assets"
    frame, style, script = ((folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    shown = {name: value for name, value in document(report).items() if name != "counts"}
    shown["meanings"] = {name: number.meaning for name, number in report.numbers.items()}
    several = bool(report.auroc.dim())
    for name, part in shown.pop("groups").items():
        shown["classes"] += [one | {"name": f"{name}, {one['name']}" if several else name} for one in part["classes"]]
    if report.groups and not several:
        shown["classes"][0]["name"] = "everybody"
    for one in shown["classes"]:
        one |= {name: _drawn(one[name]) for name in one.keys() - {"name", "numbers", "points"}}
    parts = {
        "title": html.escape(report.head),
        "style": style,
        "style_digest": _digest(style),
        "script": script,
        "script_digest": _digest(script),
        # labels are others' words: none of them ends the element that they stand in
        "data": json.dumps(shown, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _drawn(value: Any) -> Any:
    """Lists and dictionaries with as many digits as a figure can show."""
    return json.loads(json.dumps(value, allow_nan=False), parse_float=lambda number: float(f"{float(number):.4g}"))
