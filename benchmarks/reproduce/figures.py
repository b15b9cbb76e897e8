"""The paper's figures, drawn from the means of the cells and, for the two that show the method, from scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullFormatter

from benchmarks.reproduce.cells import Cell
from benchmarks.reproduce.errors import Truth
from benchmarks.reproduce.estimate import estimates
from benchmarks.reproduce.features import STAND_IN
from benchmarks.reproduce.panels import FIGURES, Figure
from benchmarks.reproduce.results import Means
from torchmetrics_fed.functional import exact_quantiles
from torchmetrics_fed.reconstruct import tails_from_quantiles

__all__ = ["draw_method", "draw_results"]

_DOTS = 80
_TITLES = {
    "adult": "Adult",
    "bank": "Bank",
    "cover": "Cover",
    STAND_IN: "synthetic, in place of Cover",
}


def draw_results(
    means: Mapping[Cell, Means], data: Sequence[str], quantiles: Sequence[int], folder: Path
) -> list[Path]:
    """Draw every figure that the cells have lines for, one panel for each data set, and return the files."""
    drawn = []
    for figure in FIGURES:
        canvas = Canvas(figsize=(4 * len(data), 4), dpi=_DOTS, layout="constrained")
        panels = np.atleast_1d(canvas.subplots(1, len(data)))
        if not sum(
            _panel(ax, figure, name, means, quantiles)
            for ax, name in zip(panels, data, strict=True)
        ):
            continue
        canvas.suptitle(figure.title)
        drawn.append(_save(canvas, folder / f"{figure.name}.png"))
    return drawn


def _panel(
    ax: Any, figure: Figure, data: str, means: Mapping[Cell, Means], quantiles: Sequence[int]
) -> int:
    """Draw Area Error over Q, both logarithmic, with standard errors; return the number of lines."""
    lines = 0
    if figure.experiment != "imbalance":
        ax.plot(quantiles, 1 / np.array(quantiles), "k:", label="1/Q")
    for line in figure.lines(data):
        cells = {count: line.cell(data, figure.classifier, count) for count in quantiles}
        points = {
            count: means[cell].of(f"area_error_{figure.curve}")
            for count, cell in cells.items()
            if cell in means
        }
        if not points:
            continue
        mean, se = zip(*points.values(), strict=True)
        style = (
            "x:"
            if line.reading == "l2"
            else "o--"
            if line.epsilon == float("inf") and not line.ratio
            else "o-"
        )
        ax.errorbar(
            list(points),
            mean,
            yerr=np.nan_to_num(se),
            fmt=style,
            label=line.label,
            markersize=4,
            capsize=2,
        )
        lines += 1
    ax.set(xscale="log", yscale="log", title=_TITLES.get(data, data), ylabel="Area Error")
    ax.set_xlabel("Q(N)" if figure.experiment == "range" else "Q")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid()
    if lines:
        ax.legend(fontsize=8)
    return lines


def draw_method(truth: Truth, folder: Path, quantiles: int = 6) -> list[Path]:
    """Draw how six quantiles of each class, five intervals, give its distribution and both curves."""
    score, target = truth.tensors
    found = exact_quantiles(score, target, quantiles)
    canvas = Canvas(figsize=(8, 4), dpi=_DOTS, layout="constrained")
    for label, (ax, name, at) in enumerate(
        zip(canvas.subplots(1, 2), ("negative", "positive"), found, strict=True)
    ):
        own = np.sort(truth.score[truth.target == label])
        tails = tails_from_quantiles(at[None], score.new_ones(1), (0.0, 1.0))
        ax.plot(own, np.linspace(0, 1, len(own)), label="exact")
        ax.plot(tails.thresholds, 1 - tails.tail[0], "--", label="PCHIP")
        ax.plot(at, np.linspace(0, 1, quantiles), "ko", markersize=4, label="quantiles")
        ax.set(title=f"{name} class", xlabel="Score", ylabel="ECDF")
        ax.legend()
    first = _save(canvas, folder / "method_ecdf.png")
    curves = estimates(truth, "EQ", quantiles, float("inf"), ["pchip"])["pchip"]
    canvas = Canvas(figsize=(8, 4), dpi=_DOTS, layout="constrained")
    left, right = canvas.subplots(1, 2)
    if curves.roc is not None:
        left.plot(*truth.roc, label="exact")
        left.plot(curves.roc.fpr, curves.roc.tpr, "--", label="estimate")
    right.plot(truth.pr[1], truth.pr[0], drawstyle="steps-post", label="exact")
    right.plot(curves.pr.recall, curves.pr.precision, "--", label="estimate")
    left.set(title="ROC", xlabel="FPR", ylabel="TPR")
    right.set(title="PR", xlabel="Recall", ylabel="Precision")
    left.legend()
    right.legend()
    return [first, _save(canvas, folder / "method_curves.png")]


def _save(canvas: Canvas, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)
    return path
