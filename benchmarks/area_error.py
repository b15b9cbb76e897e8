"""Area Error without noise, of both reconstructions, beside the figures of the paper's own code.

    python benchmarks/area_error.py --shared FOLDER    # or TORCHMETRICS_FED_SHARED=FOLDER

FOLDER holds data/scores/*.npz (y_true, y_score) and anchors/paper_area_error.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed import Reconstruction, paper
from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.reconstruct import Aligned
from torchmetrics_fed.typing import GridName

CASES = ("quantile", "aligned", "two-sided")
"""The paper's reading on even bins, and both classes at the edges of even and of two-sided bins."""


def area_errors(scores: Path, quantiles: int) -> dict[str, tuple[float, float]]:
    """Return the Area Error of ROC and PR in each case."""
    data = np.load(scores)
    target = data["y_true"]
    score = data["y_score"]
    roc = roc_curve(target, score)
    pr = precision_recall_curve(target, score)
    readings: dict[str, tuple[GridName, Reconstruction]] = {
        "quantile": ("even", paper.Quantiles(quantiles)),
        "aligned": ("even", Aligned()),
        "two-sided": ("two_sided", Aligned()),
    }
    errors = {}
    for name, (grid, reading) in readings.items():
        histograms = count(
            torch.from_numpy(score), torch.from_numpy(target), quantiles=quantiles, grid=grid
        )
        estimated_roc = roc_from_counts(histograms.leaf, histograms.edges, reading)
        estimated_pr = precision_recall_from_counts(histograms.leaf, histograms.edges, reading)
        errors[name] = (area_error_roc(estimated_roc, roc), area_error_pr(estimated_pr, pr))
    return errors


def main(shared: Path) -> None:
    with open(shared / "anchors" / "paper_area_error.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "paper-no-noise"]
    print(f"| scores | Q | paper ROC / PR | {' | '.join(CASES)} |")
    print("|---|---|---|---|---|---|")
    over_paper = []
    over_even = []
    for row in rows:
        quantiles = int(row["quantiles"])
        published = (float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"]))
        errors = area_errors(shared / "data" / "scores" / f"{row['scores']}.npz", quantiles)
        cells = [f"{roc:.6f} / {pr:.6f}" for roc, pr in (published, *errors.values())]
        print(f"| {row['scores']} | {quantiles} | {' | '.join(cells)} |")
        if quantiles == 1024:
            over_paper.append(np.divide(errors["aligned"], published))
            over_even.append(np.divide(errors["two-sided"], errors["aligned"]))
    print_ratios("aligned over paper", over_paper)
    print_ratios("two-sided over aligned on even bins", over_even)


def print_ratios(name: str, ratios: list[NDArray[np.float64]]) -> None:
    roc, pr = np.exp(np.log(ratios).mean(0))
    print(f"{name} at Q = 1024, geometric mean: {roc:.3f} / {pr:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    arguments = parser.parse_args()
    if arguments.shared is None:
        parser.error("name the folder with --shared or TORCHMETRICS_FED_SHARED")
    main(Path(arguments.shared))
