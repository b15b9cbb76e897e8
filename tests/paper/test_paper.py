"""The Area Errors that the paper's own code gives without noise, cell by cell."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.area_error import area_errors
from torchmetrics_fed.reconstruct import Method

FILES = [
    f"{data}_{model}"
    for data in ("adult", "bank", "synthcover")
    for model in ("LogisticRegression", "XGBClassifier")
]


def published(folder: Path, method: str, quantiles: int) -> dict[str, tuple[float, float]]:
    with open(folder / "anchors" / "paper_area_error.csv") as file:
        return {
            row["scores"]: (float(row["mean_area_error_roc"]), float(row["mean_area_error_pr"]))
            for row in csv.DictReader(file)
            if row["method"] == method and int(row["quantiles"]) == quantiles
        }


def ratios(folder: Path, scores: str, quantiles: int, method: Method) -> tuple[float, float]:
    """Our Area Errors over the published ones: ROC, PR."""
    roc, pr = area_errors(folder / "data" / "scores" / f"{scores}.npz", quantiles)[method]
    paper_roc, paper_pr = published(folder, "paper-no-noise", quantiles)[scores]
    return roc / paper_roc, pr / paper_pr


@pytest.mark.slow
@pytest.mark.parametrize("quantiles", [16, 64, 256, 1024])
@pytest.mark.parametrize("scores", FILES)
def test_quantile_reproduces_the_paper(shared_folder: Path, scores: str, quantiles: int) -> None:
    roc, pr = ratios(shared_folder, scores, quantiles, "quantile")
    assert roc == pytest.approx(1, abs=0.05)
    assert pr == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_aligned_has_at_most_a_quarter_of_the_papers_error(shared_folder: Path) -> None:
    cells = np.array([ratios(shared_folder, scores, 1024, "aligned") for scores in FILES])
    assert (np.exp(np.log(cells).mean(0)) <= 0.25).all()
