"""Area Errors of the paper's own code on the same scores, beside ours."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.cells import Cell, Reading, Setting
from benchmarks.reproduce.results import Means

__all__ = ["METHODS", "Match", "geometric_mean", "matches", "write_matches"]

METHODS: dict[str, tuple[Setting, Reading, str]] = {
    "paper-no-noise": ("SA", "pchip", "SA, no noise"),
    "paper-independent-noise": ("DDP", "pchip", "DDP, independent noise"),
    "paper-as-published": ("DDP", "pchip", "DDP, noise as published"),
    "range-query-l2": ("range", "l2", "range queries, l2"),
}
"""The name of a method in the file, our cells for it, and its name in tables."""


class Match(NamedTuple):
    """One published figure beside ours, ROC then PR."""

    method: str
    cell: Cell
    paper: tuple[float, float]
    ours: tuple[float, float]
    se: tuple[float, float]

    @property
    def ratio(self) -> NDArray[np.float64]:
        """Ours over the paper's, ROC and PR."""
        return np.divide(self.ours, self.paper)


def matches(path: Path, means: Mapping[Cell, Means]) -> list[Match]:
    """Return every published figure in the file that has a cell of ours."""
    published = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            setting, reading, _ = METHODS[row["method"]]
            data, _, classifier = row["scores"].partition("_")
            cell = Cell(
                data=data,
                classifier=classifier,
                ratio="",
                setting=setting,
                epsilon=float(row["epsilon"]),
                quantiles=int(row["quantiles"]),
                reading=reading,
            )
            if cell not in means:
                continue
            roc, roc_se = means[cell].of("area_error_roc")
            pr, pr_se = means[cell].of("area_error_pr")
            match = Match(
                method=row["method"],
                cell=cell,
                paper=(float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"])),
                ours=(roc, pr),
                se=(roc_se, pr_se),
            )
            published.append(match)
    return published


def geometric_mean(published: Iterable[Match]) -> tuple[float, float]:
    """Return the geometric mean of the ratios, for ROC and for PR."""
    roc, pr = np.exp(np.log([match.ratio for match in published]).mean(0))
    return float(roc), float(pr)


def write_matches(path: Path, published: Iterable[Match]) -> None:
    """Write one row per published figure."""
    columns = (
        "paper_roc",
        "paper_pr",
        "ours_roc",
        "ours_pr",
        "se_roc",
        "se_pr",
        "ratio_roc",
        "ratio_pr",
    )
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", *Cell._fields, *columns])
        for match in published:
            figures = (*match.paper, *match.ours, *match.se, *match.ratio)
            writer.writerow([match.method, *match.cell, *(f"{value:.6g}" for value in figures)])
