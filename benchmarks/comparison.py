"""Coverage, width and power of the interval of two models' difference in AUROC.

    python -m benchmarks.comparison --runs 400                    # Gaussian scores
    python -m benchmarks.comparison --runs 400 --shared FOLDER    # and the two models of adult

Each run draws examples, scores them with two models, and compares these by one private release.
Gaussian scores have AUROCs of 0.82 and 0.84, or both 0.82 (``--same``), and the correlation that
the row names. Adult's rows are drawn again with replacement, so that their own difference is the
truth. "held" is how often the interval holds the truth, "width" its width over that of DeLong's
interval of the same scores, and "seen" how often it excludes 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from torchmetrics_fed import CentralDP, FederatedModelComparison

Pair = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""Targets, and both models' scores."""

SIZES = (2_000, 20_000)
EPSILONS = (0.3, 1.0, 3.0)
CORRELATIONS = (0.5, 0.9, 0.97)
AREAS = (0.82, 0.84)
SAME_AREAS = (0.82, 0.82)
MODELS = ("LogisticRegression", "XGBClassifier")


class Gaussian(NamedTuple):
    """Scores that are normal in each class before a sigmoid, with two AUROCs and a correlation."""

    size: int
    positives: float
    """The fraction of positives."""
    correlation: float
    areas: tuple[float, float]

    @property
    def difference(self) -> float:
        """The true difference of the AUROCs."""
        first, second = self.areas
        return second - first

    def draw(self, generator: np.random.Generator) -> Pair:
        """Draw examples."""
        target = (np.arange(self.size) < self.positives * self.size).astype(np.int64)
        noise = generator.normal(size=(2, self.size))
        independent = np.sqrt(1 - self.correlation**2) * noise[1]
        noise[1] = self.correlation * noise[0] + independent
        separation = np.sqrt(2) * np.asarray(norm.ppf(self.areas))[:, None]
        prior = np.log(self.positives / (1 - self.positives))
        logits = 1.5 * (noise + separation * (target - 0.5)) + prior
        first, second = 1 / (1 + np.exp(-logits))
        return target, first, second


class Resampled(NamedTuple):
    """Rows that are drawn again, with replacement."""

    rows: Pair

    @property
    def difference(self) -> float:
        """The difference of the AUROCs of all rows."""
        return delong(*self.rows)[0]

    def draw(self, generator: np.random.Generator) -> Pair:
        """Draw as many rows as there are."""
        target, first, second = self.rows
        indices = generator.integers(len(target), size=len(target))
        return target[indices], first[indices], second[indices]


class Cell(NamedTuple):
    """One line of the output."""

    name: str
    population: Gaussian | Resampled
    epsilon: float


def delong(
    target: NDArray[np.int64], first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the difference of the AUROCs and its standard error, by midranks (Sun and Xu 2014)."""
    is_positive = target == 1
    m = int(is_positive.sum())
    n = int((~is_positive).sum())
    of_positives = []
    of_negatives = []
    for scores in (first, second):
        rank = rankdata(scores)
        of_positives.append((rank[is_positive] - rankdata(scores[is_positive])) / n)
        of_negatives.append(1 - (rank[~is_positive] - rankdata(scores[~is_positive])) / m)
    positive_moves = of_positives[1] - of_positives[0]
    negative_moves = of_negatives[1] - of_negatives[0]
    variance = np.var(positive_moves, ddof=1) / m + np.var(negative_moves, ddof=1) / n
    return float(positive_moves.mean()), float(np.sqrt(variance))


def measured(cell: Cell, runs: int) -> str:
    """Return coverage, width, power and error of this many releases."""
    generator = np.random.default_rng([len(cell.name), *cell.name.encode()])
    truth = cell.population.difference
    holds = []
    excludes_zero = []
    widths = []
    errors = []
    for _ in range(runs):
        target, first, second = cell.population.draw(generator)
        metric = FederatedModelComparison(privacy=CentralDP(epsilon=cell.epsilon))
        metric.update(torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(target))
        result = metric.compute()
        low, high = (float(end) for end in result.interval)
        holds.append(low <= truth <= high)
        excludes_zero.append(not low <= 0 <= high)
        if not np.isnan(float(result.difference)):
            _, standard_error = delong(target, first, second)
            widths.append((high - low) / (2 * norm.ppf(0.975) * standard_error))
            errors.append(float(result.difference) - truth)
    withheld = 1 - len(errors) / runs
    if not errors:
        widths = [np.nan]
        errors = [np.nan]
    return (
        f"held {np.mean(holds):.3f}  width {np.mean(widths):.2f}  "
        f"seen {np.mean(excludes_zero):.3f}  bias {np.mean(errors):+.5f}  "
        f"error {np.std(errors):.5f}  withheld {withheld:.2f}"
    )


def gaussian_cells(positives: float, areas: tuple[float, float]) -> Iterator[Cell]:
    for size in SIZES:
        for epsilon in EPSILONS:
            for correlation in CORRELATIONS:
                name = f"n {size:>6,}  epsilon {epsilon:<3}  correlation {correlation:<4}"
                yield Cell(name, Gaussian(size, positives, correlation, areas), epsilon)


def adult_cells(folder: Path) -> Iterator[Cell]:
    files = [np.load(folder / "data" / "scores" / f"adult_{model}.npz") for model in MODELS]
    target = files[0]["y_true"].astype(np.int64)
    first, second = (file["y_score"].astype(np.float64) for file in files)
    for epsilon in EPSILONS:
        name = f"adult {len(target):,}  epsilon {epsilon}"
        yield Cell(name, Resampled((target, first, second)), epsilon)


def main(arguments: list[str]) -> None:
    """Print one line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--positives", type=float, default=0.25)
    parser.add_argument(
        "--same", action="store_true", help="two models of the same AUROC: how often one is seen"
    )
    parser.add_argument("--only", default="", help="print only cells whose name contains this")
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UserWarning)
    if options.same:
        cells = list(gaussian_cells(options.positives, SAME_AREAS))
    else:
        cells = list(gaussian_cells(options.positives, AREAS))
        if options.shared:
            cells += adult_cells(Path(options.shared))
    for cell in cells:
        if options.only in cell.name:
            print(f"{cell.name}  {measured(cell, options.runs)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
