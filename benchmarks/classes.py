"""Area Error of ten one-vs-rest curves from one release, against the paper's estimator at its best Q in the same run.

    python -m benchmarks.classes --runs 20

10,000 examples of softmax scores: classes that are alike, that differ in how well they are found, that are of very
different sizes, and of a network that is sure of itself. Errors are means over classes and runs; a class that noise
leaves without positives has no PR curve, and is left out of that mean.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from benchmarks.plans import PAPER, QUANTILES
from torchmetrics_fed import CentralDP, FederatedROC, Privacy
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.functional.area_error import Reading
from torchmetrics_fed.reconstruct.histograms import read

CLASSES, EXAMPLES = 10, 10_000
SIZES = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01])
KINDS = ("alike", "unlike", "of different sizes", "sure of itself")

Floats = NDArray[np.float64]


def scores(kind: str) -> tuple[NDArray[np.int64], Floats]:
    """Targets and softmax scores, made from a seed."""
    generator = np.random.default_rng(3)
    size = SIZES if kind == "of different sizes" else np.full(CLASSES, 1 / CLASSES)
    target = generator.choice(CLASSES, EXAMPLES, p=size)
    logit = generator.normal(size=(EXAMPLES, CLASSES))
    logit[np.arange(EXAMPLES), target] += (
        2.0 if kind == "alike" else np.linspace(0.5, 4, CLASSES)[target]
    )
    weight = np.exp((4.0 if kind == "sure of itself" else 1.5) * logit) * size
    return target, weight / weight.sum(1, keepdims=True)


def errors(
    kind: str, plan: PlanName, privacy: Privacy, runs: int, quantiles: int = 1024
) -> tuple[Floats, float]:
    """Mean ROC and PR error, and the milliseconds that reading a release takes."""
    target, preds = scores(kind)
    exact = [
        (roc_curve(target == k, preds[:, k]), precision_recall_curve(target == k, preds[:, k]))
        for k in range(10)
    ]
    paper = plan == "paper"
    metric = FederatedROC(
        task="multiclass",
        num_classes=CLASSES,
        quantiles=quantiles,
        privacy=privacy,
        plan=plan,
        grid="even" if paper else "two_sided",
        reconstruction=PAPER if paper else None,
    )
    found, seconds = [], []
    for _ in range(runs):
        metric.reset()
        metric.update(torch.from_numpy(preds), torch.from_numpy(target))
        release = metric.release()
        start = time.perf_counter()
        source = read(release, reconstruction=metric.reconstruction)
        seconds.append(time.perf_counter() - start)
        roc, pr = roc_from_counts(source), precision_recall_from_counts(source)
        for k, (exact_roc, exact_pr) in enumerate(exact):
            reading: Reading = "linear" if paper else "binned"
            found.append(
                (
                    area_error_roc((roc.fpr[k], roc.tpr[k]), exact_roc),
                    area_error_pr((pr.precision[k], pr.recall[k]), exact_pr, reading),
                )
            )
    return np.nanmean(found, 0), 1e3 * float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    laplace = CentralDP(arguments.epsilon)
    skellam = CentralDP(arguments.epsilon, mechanism="skellam", delta=1e-6)
    print(
        "| classes | paper, best Q | adaptive | adaptive, Skellam | single | read, ms |\n|---|---|---|---|---|---|"
    )
    for kind in KINDS:
        paper = np.min(
            [errors(kind, "paper", laplace, arguments.runs, q)[0] for q in QUANTILES[:3]], 0
        )
        ours = [errors(kind, "adaptive", privacy, arguments.runs) for privacy in (laplace, skellam)]
        ours.append(errors(kind, "single", laplace, arguments.runs))
        ratios = [" / ".join(f"{value:.2f}" for value in error / paper) for error, _ in ours]
        shown = " / ".join(f"{value:.4f}" for value in paper)
        print(f"| {kind} | {shown} | {' | '.join(ratios)} | {ours[0][1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
