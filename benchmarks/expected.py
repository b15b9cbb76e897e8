"""The measured error of scores over the expected error, which is that of reference scores.

    python -m benchmarks.expected --shared FOLDER

Class sizes and AUROC are those of the scores; plans are `single` and `adaptive` at epsilon 0.1 and
1. The least and the greatest ratio are printed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.hard_scores import HARD, Scores
from benchmarks.plans import Curves, Errors, files
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.planning import expected_area_error

PLANS: tuple[PlanName, ...] = ("single", "adaptive")
EPSILONS = (0.1, 1.0)
HARD_NAMES = ("inside [0.4, 0.42]", "kNN, 6 values", "saturated network")


def ratios(scores: Scores, runs: int) -> Errors:
    """Return measured over expected error of every plan and epsilon, ``(cases, 2)``: ROC, PR."""
    target, score = scores
    positives = int(target.sum())
    negatives = len(target) - positives
    auroc = min(max(float(roc_auc_score(target, score)), 0.51), 0.999)
    curves = Curves(scores)
    result = []
    for plan in PLANS:
        for epsilon in EPSILONS:
            expected = expected_area_error(
                plan, epsilon, positives, negatives, auroc=auroc, runs=runs
            )
            measured = curves.errors(epsilon, plan, runs).mean(0)
            result.append(measured / [expected.roc, expected.precision_recall])
    return np.array(result)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    inputs: dict[str, Scores] = {}
    if arguments.shared:
        inputs |= files(Path(arguments.shared), ["adult", "bank"])
    for name in HARD_NAMES:
        inputs[name] = HARD[name](np.random.default_rng(7))
    print("| scores | ROC | PR |\n|---|---|---|")
    for name, scores in inputs.items():
        over_expected = ratios(scores, arguments.runs)
        roc_low, pr_low = over_expected.min(0)
        roc_high, pr_high = over_expected.max(0)
        print(
            f"| {name} | {roc_low:.2g} to {roc_high:.2g} | {pr_low:.2g} to {pr_high:.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
