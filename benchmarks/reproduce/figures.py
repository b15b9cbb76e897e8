"""The paper's figures: results from the means of the cells, and the method from scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import NullFormatter
from torch import Tensor

from benchmarks.reproduce.cells import NO_NOISE, Cell
from benchmarks.reproduce.errors import Truth
from benchmarks.reproduce.estimate import estimates
from benchmarks.reproduce.features import STAND_IN
from benchmarks.reproduce.panels import FIGURES, Figure, Line
from benchmarks.reproduce.results import Means
from torchmetrics_fed import paper

__all__ = ["draw_method", "draw_results"]

_DPI = 80
"""The resolution of figures, in dots per inch."""
_TITLES = {
    "adult": "Adult",
    "bank": "Bank",
    "cover": "Cover",
    STAND_IN: "synthetic, in place of Cover",
}


def draw_results(
    means: Mapping[Cell, Means], data: Sequence[str], quantiles: Sequence[int], folder: Path
) -> list[Path]:
    """Draw every figure that has cells, with a panel for each data set, and return the files."""
    paths = []
    for figure in FIGURES:
        canvas = Canvas(figsize=(4 * len(data), 4), dpi=_DPI, layout="constrained")
        panels = np.atleast_1d(canvas.subplots(1, len(data)))
        lines = 0
        for ax, name in zip(panels, data, strict=True):
            lines += _draw_panel(ax, figure, name, means, quantiles)
        if lines:
            canvas.suptitle(figure.title)
            paths.append(_save(canvas, folder / f"{figure.name}.png"))
    return paths


def _draw_panel(
    ax: Any, figure: Figure, data: str, means: Mapping[Cell, Means], quantiles: Sequence[int]
) -> int:
    """Draw Area Error with its standard error over Q, and return the number of lines."""
    lines = 0
    if figure.experiment != "imbalance":
        ax.plot(quantiles, 1 / np.array(quantiles), "k:", label="1/Q")
    for line in figure.lines(data):
        points = {}
        for count in quantiles:
            cell = line.cell(data, figure.classifier, count)
            if cell in means:
                points[count] = means[cell].of(f"area_error_{figure.curve}")
        if not points:
            continue
        mean, se = zip(*points.values(), strict=True)
        ax.errorbar(
            list(points),
            mean,
            yerr=np.nan_to_num(se),
            fmt=_line_format(line),
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


def _line_format(line: Line) -> str:
    """Return matplotlib's marker and line style."""
    if line.reading == "l2":
        return "x:"
    if line.epsilon == NO_NOISE and not line.ratio:
        return "o--"
    return "o-"


def draw_method(truth: Truth, folder: Path, quantiles: int = 6) -> list[Path]:
    """Draw how quantiles of each class give its distribution and both curves."""
    return [
        _draw_distributions(truth, folder / "method_ecdf.png", quantiles),
        _draw_curves(truth, folder / "method_curves.png", quantiles),
    ]


def _draw_distributions(truth: Truth, path: Path, quantiles: int) -> Path:
    score, target = truth.tensors
    of_classes = paper.exact_quantiles(score, target, quantiles)
    canvas = Canvas(figsize=(8, 4), dpi=_DPI, layout="constrained")
    negative_ax, positive_ax = canvas.subplots(1, 2)
    negative_scores = np.sort(truth.score[truth.target == 0])
    positive_scores = np.sort(truth.score[truth.target == 1])
    _draw_distribution(negative_ax, negative_scores, of_classes.negative)
    _draw_distribution(positive_ax, positive_scores, of_classes.positive)
    negative_ax.set_title("negative class")
    positive_ax.set_title("positive class")
    return _save(canvas, path)


def _draw_distribution(ax: Any, scores: Any, quantiles: Tensor) -> None:
    """Draw the distribution of sorted scores, and its interpolation through quantiles."""
    tails = paper.tails_from_quantiles(quantiles[None], quantiles.new_ones(1), (0.0, 1.0))
    ax.plot(scores, np.linspace(0, 1, len(scores)), label="exact")
    ax.plot(tails.thresholds, 1 - tails.tail[0], "--", label="PCHIP")
    ax.plot(quantiles, np.linspace(0, 1, len(quantiles)), "ko", markersize=4, label="quantiles")
    ax.set(xlabel="Score", ylabel="ECDF")
    ax.legend()


def _draw_curves(truth: Truth, path: Path, quantiles: int) -> Path:
    curves = estimates(truth, "EQ", quantiles, NO_NOISE, ["pchip"])["pchip"]
    assert curves.roc is not None
    canvas = Canvas(figsize=(8, 4), dpi=_DPI, layout="constrained")
    roc_ax, pr_ax = canvas.subplots(1, 2)
    fpr, tpr = truth.roc
    roc_ax.plot(fpr, tpr, label="exact")
    roc_ax.plot(curves.roc.fpr, curves.roc.tpr, "--", label="estimate")
    precision, recall = truth.pr
    pr_ax.plot(recall, precision, drawstyle="steps-post", label="exact")
    pr_ax.plot(curves.pr.recall, curves.pr.precision, "--", label="estimate")
    roc_ax.set(title="ROC", xlabel="FPR", ylabel="TPR")
    pr_ax.set(title="PR", xlabel="Recall", ylabel="Precision")
    roc_ax.legend()
    pr_ax.legend()
    return _save(canvas, path)


def _save(canvas: Canvas, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)
    return path
