"""The tables of a reproduction, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from benchmarks.reproduce.anchors import METHODS, Match, geometric_mean
from benchmarks.reproduce.cells import NO_NOISE, Cell, noisy
from benchmarks.reproduce.claims import claims
from benchmarks.reproduce.errors import KINDS
from benchmarks.reproduce.features import STAND_IN
from benchmarks.reproduce.results import Means
from benchmarks.reproduce.trend import slopes

__all__ = ["summary"]

_SHORT = {"XGBClassifier": "XGBoost", "LogisticRegression": "logistic"}
"""Classifiers, as tables call them."""
_METHODS_BESIDE = {
    "paper-no-noise": "exact counts (SA)",
    "paper-independent-noise": "DDP",
    "range-query-l2": "range queries",
}
"""Methods that have a table with the published figures beside ours."""
_CURVES = ("ROC", "PR")
"""The curves of a match, in this order."""
_ROUNDING = 1e-6
"""Relative error within which a difference of areas counts as equal to the Area Error: the two are
equal where one curve is below the other."""


def summary(means: Mapping[Cell, Means], published: list[Match]) -> str:
    """Return all tables."""
    parts = [_runs(means), _agreement(published)]
    for curve in range(len(_CURVES)):
        parts += [_beside(published, method, curve) for method in _METHODS_BESIDE]
    parts.append(_claims(means))
    parts.append(_measures(means, "roc"))
    parts.append(_measures(means, "pr"))
    parts.append(_bound(means))
    parts.append(_trend(means))
    return "\n\n".join(part for part in parts if part) + "\n"


def _runs(means: Mapping[Cell, Means]) -> str:
    """Return the number of runs of each setting, and notes on the data."""
    runs_of_settings = set()
    runs_of_fits = set()
    for cell, cell_means in means.items():
        if cell.ratio:
            runs_of_fits.add((cell.data, cell_means.runs))
        else:
            runs_of_settings.add((cell.data, cell.setting, cell_means.runs))
    lines = ["Runs per cell:"]
    for data, group in groupby(sorted(runs_of_settings), lambda entry: entry[0]):
        settings = ", ".join(f"{setting} {runs}" for _, setting, runs in group)
        lines.append(f"- {data} {settings}")
    lines.append("")
    if runs_of_fits:
        fits = ", ".join(f"{data} {runs}" for data, runs in sorted(runs_of_fits))
        lines.append(f"Subsamples with a fit of their own: {fits}.")
    if any(cell.data == STAND_IN for cell in means):
        lines.append(
            f"`{STAND_IN}` is synthetic, with the size and ratio of Cover, which was not available "
            "offline."
        )
    return "\n".join(lines)


def _table(title: str, head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return ""
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + body)


def _agreement(published: list[Match]) -> str:
    data_sets = sorted({match.cell.data for match in published})
    rows = []
    for method, (_, _, name) in METHODS.items():
        of_method = [match for match in published if match.method == method]
        rows += _agreement_row(name, "all", of_method)
        for data in data_sets:
            of_data = [match for match in of_method if match.cell.data == data]
            rows += _agreement_row(name, data, of_data)
    title = "Our Area Error divided by that of the paper's code, geometric mean"
    return _table(title, ("method", "data", "cells", "ROC / PR"), rows)


def _agreement_row(method: str, data: str, matches: list[Match]) -> list[tuple[str, ...]]:
    """Return one row; none without matches."""
    if not matches:
        return []
    roc, pr = geometric_mean(matches)
    return [(method, data, f"{len(matches)}", f"{roc:.3f} / {pr:.3f}")]


def _beside(published: list[Match], method: str, curve: int) -> str:
    """Return our means, with the published figures in brackets and a column for each Q."""
    of_method = sorted((match for match in published if match.method == method), key=_line)
    quantiles = sorted({match.cell.quantiles for match in of_method})
    rows = []
    for (data, classifier, epsilon), group in groupby(of_method, _line):
        figures = {match.cell.quantiles: _figure(match, curve) for match in group}
        name = f"{data}, {_SHORT[classifier]}"
        if epsilon != NO_NOISE:
            name += f", epsilon {epsilon:g}"
        rows.append([name, *(figures.get(count, "") for count in quantiles)])
    title = f"{_CURVES[curve]} Area Error x 10^4, {_METHODS_BESIDE[method]}"
    head = ["scores", *(f"Q = {count}" for count in quantiles)]
    return _table(title, head, rows)


def _line(match: Match) -> tuple[str, str, float]:
    return match.cell.data, match.cell.classifier, match.cell.epsilon


def _figure(match: Match, curve: int) -> str:
    """Return our mean with its standard error, if there is one, and the published figure."""
    ours = 1e4 * match.ours[curve]
    se = 1e4 * match.se[curve]
    paper = 1e4 * match.paper[curve]
    if math.isnan(se):
        return f"{ours:.3g} ({paper:.3g})"
    if se < 10:
        return f"{ours:.3g} ± {se:.2g} ({paper:.3g})"
    return f"{ours:.3g} ± {se:.0f} ({paper:.3g})"


def _claims(means: Mapping[Cell, Means]) -> str:
    rows = []
    for claim in claims(means):
        better = f"{claim.better} of {claim.cells}"
        rows.append((claim.name, claim.curve, better, f"{claim.ratio:.2f}"))
    head = ("comparison", "curve", "first is better in", "ratio, geometric mean")
    return _table("Area Error of one estimate divided by another's", head, rows)


def _measures(means: Mapping[Cell, Means], curve: str) -> str:
    """Return every measure of one curve at the largest Q, for both estimators at one epsilon."""
    largest = max((cell.quantiles for cell in means), default=0)
    estimators = {("DDP", "pchip"): "quantile", ("range", "l2"): "range, l2"}
    rows = []
    for cell, cell_means in means.items():
        estimator = estimators.get((cell.setting, cell.reading))
        if estimator is None or cell.quantiles != largest or cell.epsilon != noisy(cell.data):
            continue
        name = f"{cell.data}, {_SHORT[cell.classifier]}, epsilon {cell.epsilon:g}"
        values = [cell_means.of(f"{kind}_{curve}")[0] for kind in KINDS]
        rows.append((name, estimator, *(f"{value:.2g}" for value in values)))
    area = {"roc": "AUROC", "pr": "AP"}[curve]
    head = ("scores", "estimator", "Area Error", f"{area} difference", "absolute", "squared")
    return _table(f"{curve.upper()}, other measures at Q = {largest}", head, sorted(rows))


def _bound(means: Mapping[Cell, Means]) -> str:
    """Return in how many cells the Area Error bounds the difference of the areas, as it must."""
    roc = _bounded_cells(means, "roc")
    pr = _bounded_cells(means, "pr")
    return (
        "The mean difference of the areas is at most the mean Area Error:\n"
        f"AUROC in {roc} cells, average precision in {pr} cells "
        "(it reads the estimate as steps, Area Error as lines)."
    )


def _bounded_cells(means: Mapping[Cell, Means], curve: str) -> str:
    cells = 0
    bounded = 0
    for cell_means in means.values():
        difference, _ = cell_means.of(f"summary_{curve}")
        area_error, _ = cell_means.of(f"area_error_{curve}")
        if not math.isnan(area_error):
            cells += 1
            bounded += difference <= area_error * (1 + _ROUNDING)
    return f"{bounded} of {cells}"


def _trend(means: Mapping[Cell, Means]) -> str:
    rows = []
    for slope in slopes(means):
        exponents = (slope.joint, slope.quantiles, slope.ratio)
        rows.append([slope.name, *(f"{value:.2f} ± {error:.2f}" for value, error in exponents)])
    title = (
        "Class imbalance: PR Area Error as a power of 1 / (Q r); the paper's bound has exponent 1"
    )
    return _table(title, ("scores", "1 / (Q r)", "1 / Q alone", "1 / r alone"), rows)
