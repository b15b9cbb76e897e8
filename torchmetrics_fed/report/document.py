"""The report as plain JSON values for programs, and as an HTML page of them, made with ``assets/``."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.reconstruct.histograms import are_probabilities
from torchmetrics_fed.version import VERSION

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport

_THRESHOLDS = 3072
"""Thresholds of all classes together."""

_FEWEST = 24
"""Thresholds of one class at least."""

_MOST = 256
"""Thresholds of one class at most."""

_BARS = 32
"""Bars of a histogram."""


def document(report: EvaluationReport) -> dict[str, Any]:
    """Return the report as it is written to JSON; docs/report.md describes every field."""
    gaps = None
    if report.gaps is not None:
        gaps = _plain(report.gaps) | {"withheld": _plain(report.gaps.withheld)}
    return {
        "format": "torchmetrics-fed evaluation report",
        "version": 1,
        "package": f"torchmetrics-fed {VERSION}",
        **{
            name: getattr(report, name)
            for name in ("task", "privacy", "shares", "confidence", "population")
        },
        "labels": report.labels and list(report.labels),
        "statement": report.statement and report.statement.fields,
        "classes": [_of_class(report, index) for index in range(len(report.names))],
        "groups": {name: document(part) for name, part in report.groups.items()},
        "gaps": gaps,
    }


def page(report: EvaluationReport) -> str:
    """Return the page. The browser lets nothing but its own script and style run, and nothing leave it."""
    folder = files(__package__) / "assets"
    frame, style, script = (
        (folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    shown = document(report)
    shown["meanings"] = {name: number.meaning for name, number in report.numbers.items()}
    several = bool(report.auroc.dim())
    for name, part in shown.pop("groups").items():
        shown["classes"] += [
            one | {"name": f"{name}, {one['name']}" if several else name} for one in part["classes"]
        ]
    if report.groups and not several:
        shown["classes"][0]["name"] = "everybody"
    for one in shown["classes"]:
        one |= {name: _drawn(one[name]) for name in one.keys() - {"name", "numbers", "points"}}
    # labels are others' words: none of them ends the element that they stand in
    data = json.dumps(shown, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"title": html.escape(report.head), "data": data, "style": style, "script": script}
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parts[name].encode()).digest()).decode()
        parts[f"{name}_digest"] = f"'sha256-{digest}'"
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def _drawn(value: Any) -> Any:
    """Lists and dictionaries with as many digits as a figure can show."""
    return json.loads(
        json.dumps(value, allow_nan=False), parse_float=lambda number: float(f"{float(number):.4g}")
    )


def _plain(value: Any) -> Any:
    """Dictionaries, lists, and numbers or what JSON has in their place; JavaScript and Python read it as one."""
    value = (
        value._asdict()
        if hasattr(value, "_asdict")
        else value.tolist()
        if isinstance(value, Tensor)
        else value
    )
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else "-Infinity" if value < 0 else "Infinity"


def _of_class(report: EvaluationReport, index: int) -> dict[str, Any]:
    """One class: its numbers, and its curves at as many points as a page can hold."""
    classes = len(report.names)
    most = min(max(_THRESHOLDS // classes, _FEWEST), _MOST)
    numbers: dict[str, dict[str, Any]] = {}
    for name, number in report.numbers.items():
        numbers[name] = {
            "title": number.title,
            "digits": number.digits,
            "value": _one(number.value, 0, index),
        }
        for end in ("low", "high") if number.interval else ():
            numbers[name][end] = _one(getattr(number.interval, end), 0, index)
    calibration, benefit = report.calibration, report.net_benefit
    reliability = ("predicted", "observed", "examples")
    return {
        "name": report.names[index],
        "numbers": numbers,
        "points": _points(report, index, most),
        "histogram": _histogram(report.source, index),
        "calibration": calibration
        and {name: _one(getattr(calibration, name), 1, index) for name in reliability},
        "net_benefit": benefit
        and {name: _one(value, 1, index) for name, value in benefit._asdict().items()},
        "cumulative_gains": {
            n: _one(value, 1, index) for n, value in report.cumulative_gains._asdict().items()
        },
        "bands": {name: _thinned(band, index, most) for name, band in report.bands.items()},
    }


def _points(report: EvaluationReport, index: int, most: int) -> dict[str, Any]:
    """True and false positives at thresholds, lowest first: even in score, even along the ROC curve, and the best."""
    fpr, tpr = (rate.reshape(-1, rate.shape[-1])[index].numpy() for rate in report.roc[:2])
    thresholds = report.roc.thresholds.numpy()
    way = np.r_[0, np.abs(np.diff(fpr)) + np.abs(np.diff(tpr))].cumsum()
    along = np.searchsorted(way, np.linspace(0, way[-1], most // 2))
    even = np.linspace(thresholds[-1], thresholds[0], most // 2)
    best = [_one(point.threshold, 0, index) for point in (report.best_f1, report.youden)]
    near = [int(np.abs(thresholds - value).argmin()) for value in (*even, *best)]
    at = np.unique(np.r_[0, along, near, len(thresholds) - 1])[::-1]
    sizes = (report.positives, tpr), (report.negatives, fpr)
    true, false = (max(_one(size, 0, index), 0.0) * rate[at] for size, rate in sizes)
    return {
        "threshold": thresholds[at].tolist(),
        "true_positives": true.tolist(),
        "false_positives": false.tolist(),
    }


def _histogram(source: F.Histograms, index: int) -> dict[str, Any]:
    edges, leaf = source.edges.numpy(), source.flat[index]
    if are_probabilities(source.edges):
        edges = np.minimum(edges, 1.0)
    cuts = np.unique(
        [np.abs(edges - edge).argmin() for edge in np.linspace(edges[0], edges[-1], _BARS + 1)]
    )
    negatives, positives = np.add.reduceat(leaf, cuts[:-1], axis=1).tolist()
    return {"edges": edges[cuts].tolist(), "negatives": negatives, "positives": positives}


def _thinned(band: F.Band, index: int, most: int) -> dict[str, Any]:
    """The band, or one of fewer points around it."""
    x, low, high = (values.reshape(-1, values.shape[-1])[index].numpy() for values in band)
    if len(x) > most:
        ends = np.linspace(0, len(x) - 1, most // 2 + 1).round().astype(int)
        runs = [slice(start, end + 1) for start, end in pairwise(ends)]
        low, high = (
            np.repeat([f(values[run]) for run in runs], 2)
            for f, values in ((np.min, low), (np.max, high))
        )
        x = np.repeat(x[ends], 2)[1:-1]
    return {"x": x.tolist(), "low": low.tolist(), "high": high.tolist()}


def _one(value: Tensor | None, axes: int, index: int) -> Any:
    """The value of one class, in lists; one that all classes share is that of each."""
    if value is None:
        return None
    own = value.double().reshape(-1, *value.shape[value.dim() - axes :])
    return _plain(own[index if len(own) > 1 else 0])
