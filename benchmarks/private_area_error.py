"""Area Error with noise: the paper's plan and ours, beside the paper's figures with independent noise.

    python benchmarks/private_area_error.py --shared FOLDER [--runs 50] [--data adult bank]

Each row is the mean over runs; ratios are to the paper's figure at the same number of quantiles, and for our default
plan to the paper's best number of quantiles.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed import CentralDP, FederatedPrecisionRecallCurve, FederatedROC, Plan, Release, Tree
from torchmetrics_fed.functional import area_error_pr, area_error_roc

PAPER: dict[str, Any] = {"method": "quantile", "non_negative": False}
"""The paper's reconstruction: its post-processing is least squares alone."""


@dataclass(frozen=True)
class Cell:
    """One row of the published figures."""

    scores: str
    quantiles: int
    epsilon: float
    paper: NDArray[np.float64]


def cells(shared: Path, data: list[str]) -> Iterator[Cell]:
    """The published figures with independent noise."""
    with open(shared / "anchors" / "paper_area_error.csv") as file:
        for row in csv.DictReader(file):
            if row["method"] == "paper-independent-noise" and row["scores"].split("_")[0] in data:
                errors = np.array([float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"])])
                yield Cell(row["scores"], int(row["quantiles"]), float(row["epsilon"]), errors)


def area_errors(
    scores: Path, epsilon: float, runs: int, quantiles: int = 1024, plan: Any = None, **options: Any
) -> NDArray[np.float64]:
    """ROC and PR Area Error of each run, ``(runs, 2)``."""
    data = np.load(scores)
    target, score = data["y_true"], data["y_score"]
    exact = roc_curve(target, score), precision_recall_curve(target, score)
    metric = FederatedROC(quantiles=quantiles, privacy=CentralDP(epsilon), plan=plan)
    metric.update(torch.from_numpy(score), torch.from_numpy(target))
    errors = []
    for _ in range(runs):
        release = Release(metric.spec, metric.spec.noisy_cells(metric.counts))
        roc = FederatedROC.from_release(release, quantiles=quantiles, **options).compute()
        pr = FederatedPrecisionRecallCurve.from_release(release, quantiles=quantiles, **options).compute()
        errors.append((area_error_roc(roc, exact[0]), area_error_pr(pr, exact[1])))
    return np.array(errors)


def geometric_mean(ratios: list[NDArray[np.float64]]) -> str:
    """Of ROC and of PR."""
    return "{:.3f} / {:.3f}".format(*np.exp(np.log(ratios).mean(0)))


def main(shared: Path, runs: int, data: list[str]) -> None:
    rows = list(cells(shared, data))
    folder = shared / "data" / "scores"
    ratios = []
    print("| scores | epsilon | Q | paper ROC / PR | ours, paper's plan | ratio |\n|---|---|---|---|---|---|")
    for cell in rows:
        path = folder / f"{cell.scores}.npz"
        ours = area_errors(path, cell.epsilon, runs, cell.quantiles, "paper", **PAPER).mean(0)
        ratios.append(ours / cell.paper)
        figures = [" / ".join(f"{value:.{digits}f}" for value in pair) for pair, digits in ((cell.paper, 5), (ours, 5))]
        ratio = " / ".join(f"{value:.2f}" for value in ratios[-1])
        print(f"| {cell.scores} | {cell.epsilon} | {cell.quantiles} | {' | '.join(figures)} | {ratio} |", flush=True)
    print(f"\npaper's plan, geometric mean of the ratios: {geometric_mean(ratios)}")
    for name, plan in (("one message", "one_message"), ("(16, 16)", Plan(Tree((16, 16))))):
        best = []
        for scores, epsilon in sorted({(cell.scores, cell.epsilon) for cell in rows}):
            paper = np.min([c.paper for c in rows if (c.scores, c.epsilon) == (scores, epsilon)], axis=0)
            best.append(area_errors(folder / f"{scores}.npz", epsilon, runs, plan=plan).mean(0) / paper)
        worst = " / ".join(f"{value:.2f}" for value in np.max(best, axis=0))
        print(f"{name}, ratio to the paper's best Q, geometric mean: {geometric_mean(best)}, worst {worst}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--data", nargs="+", default=["adult", "bank"])
    arguments = parser.parse_args()
    if arguments.shared is None:
        parser.error("name the folder with --shared or TORCHMETRICS_FED_SHARED")
    main(arguments.shared, arguments.runs, arguments.data)
