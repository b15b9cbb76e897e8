"""The error that privacy adds to numbers: scores at a threshold, operating points and losses.

All numbers of a run are read from one release. Run it as ``python -m benchmarks.scalars --shared
FOLDER``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.plans import files
from torchmetrics_fed import (
    CentralDP,
    FederatedBrierScore,
    FederatedCalibrationError,
    FederatedEER,
    FederatedLogAUC,
    FederatedLogLoss,
    FederatedPrecisionAtFixedRecall,
    FederatedScoreAtThreshold,
    FederatedSensitivityAtSpecificity,
    federated_collection,
)

METRICS: Mapping[str, Any] = {
    "accuracy": partial(FederatedScoreAtThreshold, "accuracy"),
    "F1": partial(FederatedScoreAtThreshold, "f1"),
    "MCC": partial(FederatedScoreAtThreshold, "matthews_corrcoef"),
    "precision at recall 80%": partial(FederatedPrecisionAtFixedRecall, 0.8, with_threshold=False),
    "sensitivity at specificity 90%": partial(
        FederatedSensitivityAtSpecificity, 0.9, with_threshold=False
    ),
    "EER": FederatedEER,
    "LogAUC": FederatedLogAUC,
    "calibration error": FederatedCalibrationError,
    "log loss": FederatedLogLoss,
    "Brier score": FederatedBrierScore,
}
"""The numbers that are measured, by the names in the table."""

DATA = ("adult", "bank", "synthcover")
"""The first words of the score files."""


def values(preds: Tensor, target: Tensor, epsilon: float | None) -> dict[str, float]:
    """Return every number of one release; exact without an epsilon."""
    privacy = None
    if epsilon is not None:
        privacy = CentralDP(epsilon=epsilon)
    collection = federated_collection(metrics=METRICS, privacy=privacy)
    collection.update(preds, target)
    return {name: float(value) for name, value in collection.compute().items()}


def errors(preds: Tensor, target: Tensor, epsilon: float, runs: int) -> dict[str, list[float]]:
    """Return the distance of each private number from the exact one, in every run."""
    exact = values(preds, target, epsilon=None)
    distances: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(runs):
        private = values(preds, target, epsilon=epsilon)
        for name in METRICS:
            distances[name].append(abs(private[name] - exact[name]))
    return distances


def main() -> None:
    """Print a table: a row for each number, a column for each score file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="a folder with data/scores")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    columns: dict[str, dict[str, list[float]]] = {}
    for name, (target, scores) in files(arguments.shared, list(DATA)).items():
        columns[name] = errors(
            torch.from_numpy(scores),
            torch.from_numpy(target),
            epsilon=arguments.epsilon,
            runs=arguments.runs,
        )
    print(f"| mean error at epsilon {arguments.epsilon:g} | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for metric in METRICS:
        cells = []
        for distances in columns.values():
            mean = np.mean(distances[metric])
            deviation = np.std(distances[metric], ddof=1) / np.sqrt(arguments.runs)
            cells.append(f"{mean:.5f} ± {deviation:.5f}")
        print(f"| {metric} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
