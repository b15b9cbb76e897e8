"""The tables of a reproduction, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
_BESIDE = {
    "paper-no-noise": "exact counts (SA)",
    "paper-independent-noise": "DDP",
    "range-query-l2": "range queries",
}


def summary(means: Mapping[Cell, Means], found: list[Match]) -> str:
    """Return all tables."""
    noted = sorted(
        {(cell.data, cell.setting, found.runs) for cell, found in means.items() if not cell.ratio}
    )
    counted = (
        f"{data} " + ", ".join(f"{setting} {runs}" for _, setting, runs in group)
        for data, group in groupby(noted, lambda note: note[0])
    )
    fits = sorted({(cell.data, found.runs) for cell, found in means.items() if cell.ratio})
    lines = ["Runs per cell:", *(f"- {each}" for each in counted), ""]
    if fits:
        lines.append(
            "Subsamples with a fit of their own: "
            + ", ".join(f"{data} {runs}" for data, runs in fits)
            + "."
        )
    if any(cell.data == STAND_IN for cell in means):
        lines.append(
            f"`{STAND_IN}` is synthetic, with the size and ratio of Cover, which was not available offline."
        )
    parts = ["\n".join(lines), _agreement(found)]
    parts += [_beside(found, method, row) for row in (0, 1) for method in _BESIDE]
    parts += [
        _claims(means),
        *(_measures(means, curve) for curve in ("roc", "pr")),
        _bound(means),
        _trend(means),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines + body) if body else ""


def _agreement(found: list[Match]) -> str:
    rows = []
    for method, (_, _, name) in METHODS.items():
        for data in ("all", *sorted({match.cell.data for match in found})):
            chosen = [
                match
                for match in found
                if match.method == method and data in ("all", match.cell.data)
            ]
            if chosen:
                roc, pr = geometric_mean(chosen)
                rows.append((name, data, f"{len(chosen)}", f"{roc:.3f} / {pr:.3f}"))
    title = "Our Area Error divided by that of the paper's code, geometric mean"
    return _table(title, ("method", "data", "cells", "ROC / PR"), rows)


def _beside(found: list[Match], method: str, row: int) -> str:
    """Our mean and its standard error, with the paper's figure in brackets, one column for each Q."""
    chosen = sorted((match for match in found if match.method == method), key=_line)
    quantiles = sorted({match.cell.quantiles for match in chosen})
    rows = []
    for (data, classifier, epsilon), group in groupby(chosen, _line):
        cells = {match.cell.quantiles: _figure(match, row) for match in group}
        level = "" if epsilon == NO_NOISE else f", epsilon {epsilon:g}"
        rows.append(
            [f"{data}, {_SHORT[classifier]}{level}", *(cells.get(count, "") for count in quantiles)]
        )
    title = f"{('ROC', 'PR')[row]} Area Error x 10^4, {_BESIDE[method]}"
    return _table(title, ("scores", *(f"Q = {count}" for count in quantiles)), rows)


def _line(match: Match) -> tuple[str, str, float]:
    return match.cell.data, match.cell.classifier, match.cell.epsilon


def _figure(match: Match, row: int) -> str:
    ours, se, paper = 1e4 * match.ours[row], 1e4 * match.se[row], 1e4 * match.paper[row]
    error = "" if se != se else f" ± {se:.2g}" if se < 10 else f" ± {se:.0f}"
    return f"{ours:.3g}{error} ({paper:.3g})"


def _claims(means: Mapping[Cell, Means]) -> str:
    rows = [(c.name, c.curve, f"{c.better} of {c.cells}", f"{c.ratio:.2f}") for c in claims(means)]
    head = ("comparison", "curve", "first is better in", "ratio, geometric mean")
    return _table("Area Error of one estimate divided by another's", head, rows)


def _measures(means: Mapping[Cell, Means], curve: str) -> str:
    """Every measure of one curve at the largest Q, both estimators at the same epsilon."""
    largest = max((cell.quantiles for cell in means), default=0)
    rows = []
    for cell, found in means.items():
        compared = (cell.setting, cell.reading) in (("DDP", "pchip"), ("range", "l2"))
        if compared and cell.quantiles == largest and cell.epsilon == noisy(cell.data):
            estimator = "quantile" if cell.setting == "DDP" else "range, l2"
            name = f"{cell.data}, {_SHORT[cell.classifier]}, epsilon {cell.epsilon:g}"
            rows.append(
                (name, estimator, *(f"{found.of(f'{kind}_{curve}')[0]:.2g}" for kind in KINDS))
            )
    area = {"roc": "AUROC", "pr": "AP"}[curve]
    head = ("scores", "estimator", "Area Error", f"{area} difference", "absolute", "squared")
    return _table(f"{curve.upper()}, other measures at Q = {largest}", head, sorted(rows))


def _bound(means: Mapping[Cell, Means]) -> str:
    """Whether the Area Error bounds the difference of the areas, as it must."""
    parts = []
    for curve, name in (("roc", "AUROC"), ("pr", "average precision")):
        pairs = [
            (found.of(f"summary_{curve}")[0], found.of(f"area_error_{curve}")[0])
            for found in means.values()
        ]
        known = [(difference, area) for difference, area in pairs if area == area]
        held = sum(
            difference <= area * (1 + 1e-6) for difference, area in known
        )  # equal where one curve is below
        parts.append(f"{name} in {held} of {len(known)} cells")
    parts[-1] += " (it reads the estimate as steps, Area Error as lines)"
    return (
        "The mean difference of the areas is at most the mean Area Error:\n"
        + ", ".join(parts)
        + "."
    )


def _trend(means: Mapping[Cell, Means]) -> str:
    rows = [
        (
            slope.name,
            *(
                f"{value:.2f} ± {error:.2f}"
                for value, error in (slope.joint, slope.quantiles, slope.ratio)
            ),
        )
        for slope in slopes(means)
    ]
    title = (
        "Class imbalance: PR Area Error as a power of 1 / (Q r); the paper's bound has exponent 1"
    )
    return _table(title, ("scores", "1 / (Q r)", "1 / Q alone", "1 / r alone"), rows)
