"""How often the interval of two models' difference in AUROC holds it, how wide it is, and what it sees.

    python -m benchmarks.comparison --runs 400                       # Gaussian scores
    python -m benchmarks.comparison --runs 400 --shared FOLDER       # and adult's two models, which share their rows

Each run draws examples, scores them with two models, and compares these by one private release. Gaussian scores have
AUROCs of 0.82 and 0.84, or both 0.82 (``--same``), and the correlation that the row names; of adult's rows as many are
drawn with replacement as there are, so that their own difference is the truth. Width is that over the width of DeLong's
interval of the very same scores, which nobody could publish; "seen" is how often the interval excludes 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from torchmetrics_fed import CentralDP, FederatedModelComparison

Pair = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""Targets, and both models' scores."""

SIZES, EPSILONS, CORRELATIONS = (2_000, 20_000), (0.3, 1.0, 3.0), (0.5, 0.9, 0.97)
AREAS, SAME = (0.82, 0.84), (0.82, 0.82)


def gaussian(
    generator: np.random.Generator,
    size: int,
    positives: float,
    correlation: float,
    areas: tuple[float, float],
) -> Pair:
    """Return scores that are normal in each class before a sigmoid, with these AUROCs and this correlation."""
    target = (np.arange(size) < positives * size).astype(np.int64)
    noise = generator.normal(size=(2, size))
    noise[1] = correlation * noise[0] + np.sqrt(1 - correlation**2) * noise[1]
    logits = 1.5 * (
        noise + np.sqrt(2) * np.asarray(norm.ppf(areas))[:, None] * (target - 0.5)
    ) + np.log(positives / (1 - positives))
    first, second = 1 / (1 + np.exp(-logits))
    return target, first, second


def delong(
    target: NDArray[np.int64], first: NDArray[np.float64], second: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the difference of the AUROCs and its standard error, by midranks (Sun and Xu 2014)."""
    positive, moves = target == 1, []
    m, n = int(positive.sum()), int((~positive).sum())
    for scores in (first, second):
        everybody = rankdata(scores)
        of_positives = (everybody[positive] - rankdata(scores[positive])) / n
        of_negatives = 1 - (everybody[~positive] - rankdata(scores[~positive])) / m
        moves.append((of_positives, of_negatives))
    (first1, first0), (second1, second0) = moves
    variance = np.var(second1 - first1, ddof=1) / m + np.var(second0 - first0, ddof=1) / n
    return float((second1 - first1).mean()), float(np.sqrt(variance))


def measured(runs: int, draw: Callable[[], Pair], truth: float, epsilon: float) -> str:
    """Return coverage, width, power and error of this many releases."""
    held, width, seen, errors, withheld = [], [], [], [], 0
    for _ in range(runs):
        target, first, second = draw()
        metric = FederatedModelComparison(privacy=CentralDP(epsilon=epsilon))
        metric.update(*(torch.from_numpy(each) for each in (first, second, target)))
        found = metric.compute()
        low, high = (float(end) for end in found.interval)
        held.append(low <= truth <= high)
        seen.append(not low <= 0 <= high)
        if np.isnan(float(found.difference)):
            withheld += 1
            continue
        width.append((high - low) / 2 / norm.ppf(0.975) / delong(target, first, second)[1])
        errors.append(float(found.difference) - truth)
    wide, bias, error = (
        (np.mean(width), np.mean(errors), np.std(errors)) if width else (np.nan, np.nan, np.nan)
    )
    return (
        f"held {np.mean(held):.3f}  width {wide:.2f}  seen {np.mean(seen):.3f}  bias {bias:+.5f}  error {error:.5f}  "
        f"withheld {withheld / runs:.2f}"
    )


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
    areas = SAME if options.same else AREAS
    cells: list[tuple[str, Callable[[np.random.Generator], Pair], float, float]] = []
    for size in SIZES:
        for epsilon in EPSILONS:
            for correlation in CORRELATIONS:
                settings = size, options.positives, correlation, areas
                name = f"n {size:>6,}  epsilon {epsilon:<3}  correlation {correlation:<4}"
                cells.append(
                    (name, partial(_drawn, settings=settings), areas[1] - areas[0], epsilon)
                )
    if options.shared and not options.same:
        files = [
            np.load(Path(options.shared) / "data" / "scores" / f"adult_{model}.npz")
            for model in MODELS
        ]
        rows = (
            files[0]["y_true"].astype(np.int64),
            *(file["y_score"].astype(np.float64) for file in files),
        )
        for epsilon in EPSILONS:
            name = f"adult {len(rows[0]):,}  epsilon {epsilon}"
            cells.append((name, partial(_again, rows=rows), delong(*rows)[0], epsilon))
    for name, draw, truth, epsilon in cells:
        if options.only in name:
            generator = np.random.default_rng([len(name), *name.encode()])
            print(
                f"{name}  {measured(options.runs, partial(draw, generator), truth, epsilon)}",
                flush=True,
            )


MODELS = ("LogisticRegression", "XGBClassifier")


def _drawn(
    generator: np.random.Generator, settings: tuple[int, float, float, tuple[float, float]]
) -> Pair:
    return gaussian(generator, *settings)


def _again(generator: np.random.Generator, rows: Pair) -> Pair:
    """Return as many rows, drawn with replacement."""
    chosen = generator.integers(len(rows[0]), size=len(rows[0]))
    return rows[0][chosen], rows[1][chosen], rows[2][chosen]


if __name__ == "__main__":
    main(sys.argv[1:])
