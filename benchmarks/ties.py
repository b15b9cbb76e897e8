"""Error of the private average precision of tied scores: its bias and its root mean square.

python -m benchmarks.ties --runs 100
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.hard_scores import HARD, Scores
from torchmetrics_fed import CentralDP, FederatedAveragePrecision
from torchmetrics_fed.typing import Floats

TIED = ("kNN, 6 values", "20 values", "forest, 50 values")
"""The hard scores that have ties."""

EPSILONS = (0.1, 0.3, 1.0, 3.0)
"""Epsilons of the table."""


def errors(scores: Scores, epsilon: float, runs: int) -> Floats:
    """Return the error of the average precision in each run of the default plan."""
    target, score = scores
    exact = float(average_precision_score(target, score))
    metric = FederatedAveragePrecision(privacy=CentralDP(epsilon))
    estimates = []
    for _ in range(runs):
        metric.reset()
        metric.update(torch.from_numpy(score), torch.from_numpy(target))
        estimates.append(metric.compute().item())
    return np.asarray(estimates, dtype=np.float64) - exact


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    warnings.simplefilter("ignore", UserWarning)  # of ties
    print("| scores | epsilon | bias | root mean square | largest |")
    print("|---|---|---|---|---|")
    for name in TIED:
        scores = HARD[name](np.random.default_rng(7))
        for epsilon in EPSILONS:
            error = errors(scores, epsilon, runs)
            standard_error = error.std(ddof=1) / np.sqrt(runs)
            root_mean_square = np.sqrt(np.square(error).mean())
            print(
                f"| {name} | {epsilon:g} | {error.mean():+.4f} ± {standard_error:.4f} "
                f"| {root_mean_square:.4f} | {abs(error).max():.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
