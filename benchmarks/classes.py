"""Area Error of ten one-vs-rest curves from one release, over the paper's estimator at its best Q.

    python -m benchmarks.classes --runs 20

10,000 examples of softmax scores: classes that are alike, that are separated unequally well, that
have very different sizes, and those of an overconfident network. Errors are means over classes and
runs; a class that noise leaves without positives has no PR curve and is left out of that mean.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from torchmetrics_fed import CentralDP, FederatedROC, Privacy, paper
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.functional.area_error import Reading
from torchmetrics_fed.reconstruct.histograms import read

CLASSES = 10
EXAMPLES = 10_000
SIZES = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01])
"""Fractions of the examples, for classes of different sizes."""
KINDS = ("alike", "unlike", "of different sizes", "sure of itself")
PAPER_QUANTILES = (16, 64, 256)
"""The Q of which the paper's estimator has its best."""

Floats = NDArray[np.float64]


def scores(kind: str) -> tuple[NDArray[np.int64], Floats]:
    """Return targets and softmax scores, made from a seed."""
    generator = np.random.default_rng(3)
    size = np.full(CLASSES, 1 / CLASSES)
    if kind == "of different sizes":
        size = SIZES
    separation = np.linspace(0.5, 4, CLASSES)
    if kind == "alike":
        separation = np.full(CLASSES, 2.0)
    scale = 1.5
    if kind == "sure of itself":
        scale = 4.0
    target = generator.choice(CLASSES, EXAMPLES, p=size)
    logit = generator.normal(size=(EXAMPLES, CLASSES))
    logit[np.arange(EXAMPLES), target] += separation[target]
    weight = np.exp(scale * logit) * size
    return target, weight / weight.sum(1, keepdims=True)


class Reader:
    """Releases of one kind of scores, and their errors."""

    def __init__(self, kind: str) -> None:
        self._target, self._preds = scores(kind)
        self._exact = []
        for label in range(CLASSES):
            is_positive = self._target == label
            roc = roc_curve(is_positive, self._preds[:, label])
            pr = precision_recall_curve(is_positive, self._preds[:, label])
            self._exact.append((roc, pr))

    def paper_errors(self, privacy: Privacy, runs: int, quantiles: int) -> Floats:
        """Return the mean ROC and PR error of the paper's estimator."""
        metric = FederatedROC(
            task="multiclass",
            num_classes=CLASSES,
            quantiles=quantiles,
            privacy=privacy,
            plan="paper",
            grid="even",
            reconstruction=paper.Quantiles(quantiles, non_negative=False),
        )
        errors, _ = self._errors(metric, runs, "linear")
        return errors

    def errors(self, plan: PlanName, privacy: Privacy, runs: int) -> tuple[Floats, float]:
        """Return the mean ROC and PR error, and the milliseconds of reading a release."""
        metric = FederatedROC(task="multiclass", num_classes=CLASSES, privacy=privacy, plan=plan)
        return self._errors(metric, runs, "binned")

    def _errors(self, metric: FederatedROC, runs: int, reading: Reading) -> tuple[Floats, float]:
        errors = []
        seconds = []
        for _ in range(runs):
            metric.reset()
            metric.update(torch.from_numpy(self._preds), torch.from_numpy(self._target))
            release = metric.release()
            start = time.perf_counter()
            histograms = read(release, reconstruction=metric.reconstruction)
            seconds.append(time.perf_counter() - start)
            roc = roc_from_counts(histograms)
            pr = precision_recall_from_counts(histograms)
            for label, (exact_roc, exact_pr) in enumerate(self._exact):
                roc_error = area_error_roc((roc.fpr[label], roc.tpr[label]), exact_roc)
                estimate = (pr.precision[label], pr.recall[label])
                errors.append((roc_error, area_error_pr(estimate, exact_pr, reading)))
        return np.nanmean(errors, 0), 1e3 * float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    runs = arguments.runs
    laplace = CentralDP(arguments.epsilon)
    skellam = CentralDP(arguments.epsilon, mechanism="skellam", delta=1e-6)
    print("| classes | paper, best Q | adaptive | adaptive, Skellam | single | read, ms |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        reader = Reader(kind)
        of_paper = [reader.paper_errors(laplace, runs, quantiles) for quantiles in PAPER_QUANTILES]
        best = np.min(of_paper, 0)
        adaptive, milliseconds = reader.errors("adaptive", laplace, runs)
        with_skellam, _ = reader.errors("adaptive", skellam, runs)
        single, _ = reader.errors("single", laplace, runs)
        ratios = [
            f"{roc:.2f} / {pr:.2f}" for roc, pr in np.stack([adaptive, with_skellam, single]) / best
        ]
        print(
            f"| {kind} | {best[0]:.4f} / {best[1]:.4f} | {' | '.join(ratios)} "
            f"| {milliseconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
