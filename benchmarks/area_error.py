"""Area Error without noise, of both reconstructions, beside the figures of the paper's own code.

    python benchmarks/area_error.py --shared FOLDER    # or TORCHMETRICS_FED_SHARED=FOLDER

FOLDER holds data/scores/*.npz (y_true, y_score) and anchors/paper_area_error.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed.functional import area_error_pr, area_error_roc, precision_recall_from_counts, roc_from_counts
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.reconstruct import Method, Reconstruction


def area_errors(scores: Path, quantiles: int) -> dict[str, tuple[float, float]]:
    """Area Error of ROC and PR for each method."""
    data = np.load(scores)
    target, score = data["y_true"], data["y_score"]
    roc, pr = roc_curve(target, score), precision_recall_curve(target, score)
    source = count(torch.from_numpy(score), torch.from_numpy(target), quantiles=quantiles)
    errors = {}
    for method in get_args(Method):
        reading = Reconstruction(method, quantiles)
        errors[method] = (
            area_error_roc(roc_from_counts(source.leaf, source.edges, reading), roc),
            area_error_pr(precision_recall_from_counts(source.leaf, source.edges, reading), pr),
        )
    return errors


def main(shared: Path) -> None:
    with open(shared / "anchors" / "paper_area_error.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "paper-no-noise"]
    print("| scores | Q | paper ROC / PR | quantile | aligned |\n|---|---|---|---|---|")
    ratios = []
    for row in rows:
        quantiles = int(row["quantiles"])
        paper = float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"])
        errors = area_errors(shared / "data" / "scores" / f"{row['scores']}.npz", quantiles)
        cells = [f"{roc:.6f} / {pr:.6f}" for roc, pr in (paper, errors["quantile"], errors["aligned"])]
        print(f"| {row['scores']} | {quantiles} | " + " | ".join(cells) + " |")
        if quantiles == 1024:
            ratios.append(np.array(errors["aligned"]) / paper)
    print("aligned over paper at Q = 1024, geometric mean: {:.3f} / {:.3f}".format(*np.exp(np.log(ratios).mean(0))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    arguments = parser.parse_args()
    if arguments.shared is None:
        parser.error("name the folder with --shared or TORCHMETRICS_FED_SHARED")
    main(arguments.shared)
