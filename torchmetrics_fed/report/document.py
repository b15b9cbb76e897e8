"""The report as plain JSON values for programs, and as an HTML page of them, made with ``assets/``.

Neither holds the counts of single leaves: the release has them, and gives the whole report again.
"""

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
from torchmetrics_fed.typing import Floats
from torchmetrics_fed.version import VERSION

if TYPE_CHECKING:
    from torchmetrics_fed.report.evaluation import EvaluationReport

_MAX_THRESHOLDS = 3072
"""Thresholds of all classes together, so that a page of fifty classes stays below a megabyte."""

_MIN_CLASS_THRESHOLDS = 24
"""Thresholds of one class at least."""

_MAX_CLASS_THRESHOLDS = 256
"""Thresholds of one class at most."""

_BARS = 32
"""Bars of a histogram at most."""

_FULL_PRECISION = {"name", "numbers", "points"}
"""Parts of a class that a page shows in digits. Its other parts are drawn, with fewer digits."""


def document(report: EvaluationReport) -> dict[str, Any]:
    """Return the report as it is written to JSON; docs/report.md describes every field."""
    gaps = None
    if report.gaps is not None:
        gaps = _plain(report.gaps)
        gaps["withheld"] = _plain(report.gaps.withheld)
    return {
        "format": "torchmetrics-fed evaluation report",
        "version": 1,
        "package": f"torchmetrics-fed {VERSION}",
        "task": report.task,
        "privacy": report.privacy,
        "shares": report.shares,
        "confidence": report.confidence,
        "of": report.of,
        "labels": report.labels and list(report.labels),
        "statement": report.statement and report.statement.fields,
        "classes": [_class_document(report, index) for index in range(len(report.names))],
        "groups": {name: document(part) for name, part in report.groups.items()},
        "gaps": gaps,
    }


def page(report: EvaluationReport) -> str:
    """Return the HTML page.

    The browser runs nothing but the page's own script and style, and lets nothing leave the page.
    """
    # labels are texts of users: none of them ends the element that they stand in
    data = json.dumps(_page_data(report), allow_nan=False, separators=(",", ":"))
    style = _asset("report.css")
    script = _asset("report.js")
    parts = {
        "title": html.escape(report.head),
        "data": data.replace("<", "\\u003c"),
        "style": style,
        "script": script,
        "style_digest": _source_digest(style),
        "script_digest": _source_digest(script),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report.html"))


def _page_data(report: EvaluationReport) -> dict[str, Any]:
    """Return the document for a page: groups are classes, too, and curves have few digits."""
    data = document(report)
    data["meanings"] = {name: number.meaning for name, number in report.numbers.items()}
    has_classes = report.auroc.dim() > 0
    for group, part in data.pop("groups").items():
        for content in part["classes"]:
            name = group
            if has_classes:
                name = f"{group}, {content['name']}"
            data["classes"].append(content | {"name": name})
    if report.groups and not has_classes:
        data["classes"][0]["name"] = "everybody"
    for content in data["classes"]:
        for name in content.keys() - _FULL_PRECISION:
            content[name] = _rounded(content[name])
    return data


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _source_digest(text: str) -> str:
    """Return a script or style as a source of the page's Content Security Policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _rounded(value: Any) -> Any:
    """Return lists and dictionaries with as many digits as a figure can show."""
    encoded = json.dumps(value, allow_nan=False)
    return json.loads(encoded, parse_float=lambda number: float(f"{float(number):.4g}"))


def _plain(value: Any) -> Any:
    """Return dictionaries, lists and numbers that JavaScript and Python read alike.

    JSON has no NaN and no infinity: they become None, ``"Infinity"`` and ``"-Infinity"``.
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None
    return "-Infinity" if value < 0 else "Infinity"


def _class_document(report: EvaluationReport, index: int) -> dict[str, Any]:
    """Return one class: its numbers, and its curves at as many points as a page can hold."""
    max_points = _MAX_THRESHOLDS // len(report.names)
    max_points = min(max(max_points, _MIN_CLASS_THRESHOLDS), _MAX_CLASS_THRESHOLDS)
    calibration = None
    if report.calibration is not None:
        calibration = {
            "predicted": _class_curve(report.calibration.predicted, index),
            "observed": _class_curve(report.calibration.observed, index),
            "examples": _class_curve(report.calibration.examples, index),
        }
    net_benefit = None
    if report.net_benefit is not None:
        net_benefit = _class_curves(report.net_benefit._asdict(), index)
    return {
        "name": report.names[index],
        "numbers": _class_numbers(report, index),
        "points": _points(report, index, max_points),
        "histogram": _histogram(report.source, index),
        "calibration": calibration,
        "net_benefit": net_benefit,
        "cumulative_gains": _class_curves(report.cumulative_gains._asdict(), index),
        "bands": {
            name: _thinned_band(band, index, max_points) for name, band in report.bands.items()
        },
    }


def _class_numbers(report: EvaluationReport, index: int) -> dict[str, dict[str, Any]]:
    """Return the numbers of one class, with their intervals."""
    numbers: dict[str, dict[str, Any]] = {}
    for name, number in report.numbers.items():
        numbers[name] = {
            "title": number.title,
            "digits": number.digits,
            "value": _class_value(number.value, index),
        }
        if number.interval is not None:
            numbers[name]["low"] = _class_value(number.interval.low, index)
            numbers[name]["high"] = _class_value(number.interval.high, index)
    return numbers


def _points(report: EvaluationReport, index: int, max_points: int) -> dict[str, Any]:
    """Return true and false positives at thresholds, lowest threshold first.

    Half of the thresholds are even in score, half even along the ROC curve; the first, the last,
    the best F1 and Youden's J are among them.
    """
    fpr = _class_row(report.roc.fpr, index)
    tpr = _class_row(report.roc.tpr, index)
    thresholds = report.roc.thresholds.numpy()
    length = np.concatenate([[0], np.abs(np.diff(fpr)) + np.abs(np.diff(tpr))]).cumsum()
    even_on_curve = np.searchsorted(length, np.linspace(0, length[-1], max_points // 2))
    even_scores = np.linspace(thresholds[-1], thresholds[0], max_points // 2)
    best_f1 = _class_value(report.best_f1.threshold, index)
    youden = _class_value(report.youden.threshold, index)
    nearest = [
        int(np.abs(thresholds - score).argmin()) for score in (*even_scores, best_f1, youden)
    ]
    last = len(thresholds) - 1
    places = np.unique(np.concatenate([[0], even_on_curve, nearest, [last]]))[::-1]
    positives = max(_class_value(report.positives, index), 0.0)  # noise may make it negative
    negatives = max(_class_value(report.negatives, index), 0.0)
    tp = positives * tpr[places]
    fp = negatives * fpr[places]
    return {
        "threshold": thresholds[places].tolist(),
        "true_positives": tp.tolist(),
        "false_positives": fp.tolist(),
    }


def _histogram(histograms: F.Histograms, index: int) -> dict[str, Any]:
    """Return the counts of one class in bars of about the same width."""
    edges = histograms.edges.numpy()
    if are_probabilities(histograms.edges):
        edges = np.minimum(edges, 1.0)
    targets = np.linspace(edges[0], edges[-1], _BARS + 1)
    cuts = np.unique([np.abs(edges - target).argmin() for target in targets])
    bars = np.add.reduceat(histograms.flat[index], cuts[:-1], axis=1)
    negatives, positives = bars.tolist()
    return {"edges": edges[cuts].tolist(), "negatives": negatives, "positives": positives}


def _thinned_band(band: F.Band, index: int, max_points: int) -> dict[str, Any]:
    """Return the band, or a band of fewer points around it."""
    x = _class_row(band.x, index)
    low = _class_row(band.low, index)
    high = _class_row(band.high, index)
    if len(x) > max_points:
        ends = np.linspace(0, len(x) - 1, max_points // 2 + 1).round().astype(int)
        runs = [slice(start, end + 1) for start, end in pairwise(ends)]
        # each run is a step: constant from its first x to its last
        low = np.repeat([low[run].min() for run in runs], 2)
        high = np.repeat([high[run].max() for run in runs], 2)
        x = np.repeat(x[ends], 2)[1:-1]
    return {"x": x.tolist(), "low": low.tolist(), "high": high.tolist()}


def _class_row(values: Tensor, index: int) -> Floats:
    """Return the points of one class, from ``(..., points)``."""
    row: Floats = values.reshape(-1, values.shape[-1])[index].numpy()
    return row


def _class_value(values: Tensor, index: int) -> Any:
    """Return the number of one class. A number without a class axis is that of each class."""
    numbers = values.double().reshape(-1)
    if len(numbers) == 1:
        return _plain(numbers[0])
    return _plain(numbers[index])


def _class_curve(values: Tensor, index: int) -> Any:
    """Return the points of one class. Points without a class axis are those of each class."""
    rows = values.double().reshape(-1, values.shape[-1])
    if len(rows) == 1:
        return _plain(rows[0])
    return _plain(rows[index])


def _class_curves(curves: dict[str, Tensor | None], index: int) -> dict[str, Any]:
    """Return named curves of one class; None where the report has no such curve."""
    content: dict[str, Any] = {}
    for name, values in curves.items():
        content[name] = None
        if values is not None:
            content[name] = _class_curve(values, index)
    return content
