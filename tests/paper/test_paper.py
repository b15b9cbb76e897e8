"""The Area Errors that the paper's own code gives without noise, cell by cell."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed import functional
from torchmetrics_fed.functional.curve import CurveOptions
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction

FILES = [
    f"{data}_{model}"
    for data in ("adult", "bank", "synthcover")
    for model in ("LogisticRegression", "XGBClassifier")
]


@cache
def published(folder: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the paper's Area Errors without noise, ROC and PR, by score file and Q."""
    errors = {}
    with open(folder / "anchors" / "paper_area_error.csv") as file:
        for row in csv.DictReader(file):
            if row["method"] == "paper-no-noise":
                roc = float(row["mean_area_error_roc"])
                pr = float(row["mean_area_error_pr"])
                errors[row["scores"], int(row["quantiles"])] = roc, pr
    return errors


def ratios(
    folder: Path, scores: str, quantiles: int, reconstruction: Reconstruction
) -> tuple[float, float]:
    """Return our Area Errors on even bins over the published ones: ROC, PR."""
    data = np.load(folder / "data" / "scores" / f"{scores}.npz")
    target = torch.from_numpy(data["y_true"])
    preds = torch.from_numpy(data["y_score"])
    options: CurveOptions = {
        "quantiles": quantiles,
        "grid": "even",
        "reconstruction": reconstruction,
    }
    roc = functional.roc(preds, target, **options)
    pr = functional.precision_recall_curve(preds, target, **options)
    paper_roc, paper_pr = published(folder)[scores, quantiles]
    roc_error = functional.area_error_roc(roc, roc_curve(target, preds))
    pr_error = functional.area_error_pr(pr, precision_recall_curve(target, preds))
    return roc_error / paper_roc, pr_error / paper_pr


@pytest.mark.slow
@pytest.mark.parametrize("quantiles", [16, 64, 256, 1024])
@pytest.mark.parametrize("scores", FILES)
def test_quantiles_reproduce_the_paper(shared_folder: Path, scores: str, quantiles: int) -> None:
    roc, pr = ratios(shared_folder, scores, quantiles, Quantiles(quantiles))
    assert roc == pytest.approx(1, abs=0.05)
    assert pr == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_aligned_has_at_most_a_quarter_of_the_papers_error(shared_folder: Path) -> None:
    cells = np.array([ratios(shared_folder, scores, 1024, Aligned()) for scores in FILES])
    geometric_means = np.exp(np.log(cells).mean(0))
    assert (geometric_means <= 0.25).all()
