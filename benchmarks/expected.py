"""How far the error to expect, which is that of reference scores, is from what other scores measure.

    python -m benchmarks.expected --shared FOLDER

Class sizes and AUROC are those of the scores; `single` and `adaptive` at epsilon 0.1 and 1. Printed is the least
and the most of measured over expected.
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
    """Measured over expected error of every plan and epsilon, ``(cases, 2)``: ROC, PR."""
    target, score = scores
    positives, area = int(target.sum()), float(roc_auc_score(target, score))
    curves, result = Curves(scores), []
    for plan in PLANS:
        for epsilon in EPSILONS:
            expected = expected_area_error(
                plan,
                epsilon,
                positives,
                len(target) - positives,
                auroc=min(max(area, 0.51), 0.999),
                runs=runs,
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
    inputs = files(Path(arguments.shared), ["adult", "bank"]) if arguments.shared else {}
    inputs |= {name: HARD[name](np.random.default_rng(7)) for name in HARD_NAMES}
    print("| scores | ROC | PR |\n|---|---|---|")
    for name, scores in inputs.items():
        found = ratios(scores, arguments.runs)
        spans = [
            f"{low:.2g} to {high:.2g}" for low, high in zip(found.min(0), found.max(0), strict=True)
        ]
        print(f"| {name} | {' | '.join(spans)} |", flush=True)


if __name__ == "__main__":
    main()
