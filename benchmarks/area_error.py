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
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.reconstruct import Method, Reconstruction
from torchmetrics_fed.typing import GridName

CASES: list[tuple[str, Method, GridName]] = [
    ("quantile", "quantile", "even"),
    ("aligned", "aligned", "even"),
    ("two-sided", "aligned", "two_sided"),
]


def area_errors(scores: Path, quantiles: int) -> dict[str, tuple[float, float]]:
    """Area Error of ROC and PR for each method on even bins, and on two-sided ones."""
    data = np.load(scores)
    target, score = data["y_true"], data["y_score"]
    roc, pr = roc_curve(target, score), precision_recall_curve(target, score)
    errors = {}
    for name, method, grid in CASES:
        reading = Reconstruction(method, quantiles)
        source = count(
            torch.from_numpy(score), torch.from_numpy(target), quantiles=quantiles, grid=grid
        )
        errors[name] = (
            area_error_roc(roc_from_counts(source.leaf, source.edges, reading), roc),
            area_error_pr(precision_recall_from_counts(source.leaf, source.edges, reading), pr),
        )
    return errors


def main(shared: Path) -> None:
    with open(shared / "anchors" / "paper_area_error.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "paper-no-noise"]
    print(
        f"| scores | Q | paper ROC / PR | {' | '.join(name for name, *_ in CASES)} |\n|---|---|---|---|---|---|"
    )
    ratios, kept = [], []
    for row in rows:
        quantiles = int(row["quantiles"])
        paper = float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"])
        errors = area_errors(shared / "data" / "scores" / f"{row['scores']}.npz", quantiles)
        cells = [f"{roc:.6f} / {pr:.6f}" for roc, pr in (paper, *errors.values())]
        print(f"| {row['scores']} | {quantiles} | " + " | ".join(cells) + " |")
        if quantiles == 1024:
            ratios.append(np.array(errors["aligned"]) / paper)
            kept.append(np.array(errors["two-sided"]) / errors["aligned"])
    for name, found in (
        ("aligned over paper", ratios),
        ("two-sided over aligned on even bins", kept),
    ):
        print(
            "{} at Q = 1024, geometric mean: {:.3f} / {:.3f}".format(
                name, *np.exp(np.log(found).mean(0))
            )
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    arguments = parser.parse_args()
    if arguments.shared is None:
        parser.error("name the folder with --shared or TORCHMETRICS_FED_SHARED")
    main(arguments.shared)
