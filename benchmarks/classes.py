"""Area Error of the curves of many classes, and of many labels, from one release.

    python -m benchmarks.classes --classes 10 30 100 --epsilons 1 3 --runs 10
    python -m benchmarks.classes --other --epsilons 1 3 --runs 10
    python -m benchmarks.classes --labels 14 --runs 10

One row for each kind of scores and each epsilon. The first column is the error of a release that
weighs all cells alike: the mean over classes and runs of the ROC and the PR error, and the root
mean square error of the macro AUROC. The other columns are errors of other releases at the same
epsilon, divided by it:

- positives: positives weigh more than negatives (``sums_to_one=False``);
- default: negatives are weighed by their score as well (for multi-label tasks:
  ``labels_per_example``);
- delta: discrete Gaussian noise, with a delta of 1e-6, and its own weights;
- delta, any labels: the same without ``labels_per_example``;
- single: the default with one query;
- clients: the default, of ten clients with distributed noise;
- paper: the paper's estimator at its best Q of 16, 64 and 256 (with ``--paper``).

All PR curves are read alike, as steps. A class that noise leaves without positives has no PR curve
and is left out of that mean. The last line is the geometric mean of each column, its worst row, and
the standard error of the mean.

No constant was tuned on the scores of ``--other``: models trained on other data.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_recall_curve, roc_curve
from sklearn.neural_network import MLPClassifier

from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, Query, Spec, paper
from torchmetrics_fed.exchange.plans import Adaptive, TreePlacement
from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    auroc_from_counts,
    precision_recall_from_counts,
    roc_from_counts,
)
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.release import Sum
from torchmetrics_fed.simulate import simulate

EXAMPLES = 10_000
LABELLED_EXAMPLES = 20_000
DELTA = 1e-6
CLIENTS = 10
PAPER_QUANTILES = (16, 64, 256)
"""The Q of which the paper's estimator has its best."""
KINDS = ("alike", "unlike", "of different sizes", "sure of itself")
LEAST_PREVALENCE = 0.005
MOST_PREVALENCE = 0.1

Floats = NDArray[np.float64]


class Scores(NamedTuple):
    """Targets, and the scores of each class or label."""

    target: NDArray[np.int64]
    preds: Floats

    @property
    def is_multilabel(self) -> bool:
        return self.target.ndim == 2

    def is_positive(self, number: int) -> NDArray[np.bool_]:
        """Return which examples are positives of a class or label."""
        if self.is_multilabel:
            return np.asarray(self.target[:, number] == 1)
        return np.asarray(self.target == number)


def made_scores(kind: str, classes: int) -> Scores:
    """Return softmax scores, made from a seed."""
    generator = np.random.default_rng(3)
    size = np.full(classes, 1 / classes)
    if kind == "of different sizes":
        size = np.geomspace(30, 1, classes)
        size = size / size.sum()
    separation = np.linspace(0.5, 4, classes)
    if kind == "alike":
        separation = np.full(classes, 2.0)
    scale = 1.5
    if kind == "sure of itself":
        scale = 4.0
    target = generator.choice(classes, EXAMPLES, p=size)
    logit = generator.normal(size=(EXAMPLES, classes))
    logit[np.arange(EXAMPLES), target] += separation[target]
    weight = np.exp(scale * logit) * size
    return Scores(target, weight / weight.sum(1, keepdims=True))


def labelled_scores(labels: int) -> Scores:
    """Return scores of labels that are rare, made from a seed."""
    generator = np.random.default_rng(5)
    prevalence = np.geomspace(LEAST_PREVALENCE, MOST_PREVALENCE, labels)
    target = (generator.random((LABELLED_EXAMPLES, labels)) < prevalence).astype(np.int64)
    noise = generator.normal(size=target.shape)
    logit = np.log(prevalence) + 1.2 * noise + 2.0 * target
    return Scores(target, 1 / (1 + np.exp(-logit)))


def trained_scores() -> dict[str, Callable[[], Scores]]:
    """Return scores of trained models, by name."""
    return {
        "digits, network": lambda: _trained(
            MLPClassifier((16,), max_iter=60, random_state=0), load_digits(return_X_y=True), 400
        ),
        "10 classes, regression": lambda: _trained(
            LogisticRegression(max_iter=500), _blobs(10, seed=1), 2_000
        ),
        "20 classes, network": lambda: _trained(
            MLPClassifier((64,), max_iter=60, random_state=0), _blobs(20, seed=2), 4_000
        ),
        "20 uneven classes, forest": lambda: _trained(
            RandomForestClassifier(100, min_samples_leaf=5, random_state=0),
            _blobs(20, seed=3, is_even=False),
            4_000,
        ),
    }


def _blobs(classes: int, seed: int, is_even: bool = True) -> Any:
    weights = None
    if not is_even:
        sizes = np.geomspace(20, 1, classes)
        weights = list(sizes / sizes.sum())
    return make_classification(
        14_000,
        30,
        n_informative=12,
        n_classes=classes,
        n_clusters_per_class=1,
        weights=weights,
        class_sep=1.5,
        flip_y=0.02,
        random_state=seed,
    )


def _trained(model: Any, data: Any, training_rows: int) -> Scores:
    """Train on the first rows, and return the scores of the next ones."""
    warnings.simplefilter("ignore")  # a network that has not converged is as good as any other
    features, labels = data
    model.fit(features[:training_rows], labels[:training_rows])
    rows = slice(training_rows, training_rows + EXAMPLES)
    preds = model.predict_proba(features[rows])
    return Scores(labels[rows].astype(np.int64), np.asarray(preds, dtype=np.float64))


@dataclass(frozen=True)
class OneWeight(TreePlacement):
    """Queries that weigh all cells alike, and a pilot of each class by itself."""

    def pilot(self, spec: Spec) -> Query:
        """Return the pilot of the default plan without its weights."""
        return replace(super().pilot(spec), weights=(), pools_classes=False)

    def placed(self, earlier: Sum, fraction: float) -> Query:
        """Return the placed query of the default plan without its weights."""
        return replace(super().placed(earlier, fraction), weights=())


class Errors(NamedTuple):
    """Errors of the releases of one method."""

    roc: float
    pr: float
    macro: float
    """Root mean square error of the macro AUROC."""
    noise: float
    """Standard error of the ROC error, relative to it."""
    milliseconds: float
    """CPU time to read a release."""

    def __str__(self) -> str:
        return f"{self.roc:.4f} / {self.pr:.4f}, {self.macro:.4f}"


class Bench:
    """Releases of one set of scores, and their errors."""

    def __init__(self, scores: Scores, runs: int) -> None:
        self._scores = scores
        self._runs = runs
        self._classes = scores.preds.shape[1]
        self._exact = []
        for number in range(self._classes):
            is_positive = scores.is_positive(number)
            roc = roc_curve(is_positive, scores.preds[:, number])
            pr = precision_recall_curve(is_positive, scores.preds[:, number])
            self._exact.append((roc, pr))
        exact = FederatedROC(**self._task)
        self._update(exact)
        self._macro = self._macro_auroc(exact)

    @property
    def _task(self) -> dict[str, Any]:
        if self._scores.is_multilabel:
            return {"task": "multilabel", "num_labels": self._classes}
        return {"task": "multiclass", "num_classes": self._classes}

    @property
    def labels_per_example(self) -> int | None:
        """The limit that 99% of the examples keep, for multi-label tasks."""
        if not self._scores.is_multilabel:
            return None
        return max(int(np.quantile(self._scores.target.sum(1), 0.99)), 1)

    def errors(self, **options: Any) -> Errors:
        """Return the errors of a metric with these options."""
        metric = FederatedROC(**self._task, **options)
        return self._errors(lambda: self._released(metric))

    def errors_of_clients(self, epsilon: float) -> Errors:
        """Return the errors of the default plan, with noise drawn by ten clients."""
        privacy = DistributedDP(epsilon=epsilon, min_clients=CLIENTS)
        metric = FederatedROC(
            **self._task, privacy=privacy, labels_per_example=self.labels_per_example
        )
        return self._errors(lambda: self._simulated(metric))

    def paper_errors(self, epsilon: float) -> Errors:
        """Return the least errors of the paper's estimator."""
        results = []
        for quantiles in PAPER_QUANTILES:
            reconstruction = paper.Quantiles(quantiles, non_negative=False)
            results.append(
                self.errors(
                    quantiles=quantiles,
                    privacy=CentralDP(epsilon=epsilon),
                    plan="paper",
                    grid="even",
                    reconstruction=reconstruction,
                )
            )
        return Errors(*np.min(results, 0))

    def _released(self, metric: FederatedROC) -> FederatedROC:
        metric.reset()
        self._update(metric)
        metric.release()
        return metric

    def _simulated(self, metric: FederatedROC) -> FederatedROC:
        parts = np.array_split(np.arange(len(self._scores.target)), CLIENTS)
        clients = []
        for part in parts:
            preds = torch.from_numpy(self._scores.preds[part])
            target = torch.from_numpy(self._scores.target[part])
            clients.append((preds, target))
        release = simulate(clients, metric).release
        return FederatedROC.from_release(release)

    def _update(self, metric: FederatedROC) -> None:
        preds = torch.from_numpy(self._scores.preds)
        metric.update(preds, torch.from_numpy(self._scores.target))

    def _macro_auroc(self, metric: FederatedROC) -> float:
        histograms = read(metric.release(), reconstruction=metric.reconstruction)
        return float(auroc_from_counts(histograms).mean())

    def _errors(self, make: Callable[[], FederatedROC]) -> Errors:
        of_runs = []
        macro = []
        seconds = []
        for _ in range(self._runs):
            metric = make()
            release = metric.release()
            start = time.process_time()
            histograms = read(release, reconstruction=metric.reconstruction)
            seconds.append(time.process_time() - start)
            macro.append(self._macro_auroc(metric) - self._macro)
            of_runs.append(self._class_errors(histograms))
        roc, pr = np.nanmean(of_runs, (0, 1))
        means = np.nanmean(of_runs, 1)[:, 0]
        return Errors(
            roc=float(roc),
            pr=float(pr),
            macro=float(np.sqrt(np.mean(np.square(macro)))),
            noise=float(means.std(ddof=1) / np.sqrt(self._runs) / roc),
            milliseconds=1e3 * float(np.median(seconds)),
        )

    def _class_errors(self, histograms: Any) -> Floats:
        """Return the ROC and the PR error of each class, ``(classes, 2)``."""
        roc = roc_from_counts(histograms)
        pr = precision_recall_from_counts(histograms)
        errors = []
        for number, (exact_roc, exact_pr) in enumerate(self._exact):
            roc_error = area_error_roc((roc.fpr[number], roc.tpr[number]), exact_roc)
            estimate = (pr.precision[number], pr.recall[number])
            errors.append((roc_error, area_error_pr(estimate, exact_pr, "binned")))
        return np.array(errors)


def measured(bench: Bench, epsilon: float, with_paper: bool) -> dict[str, Errors]:
    """Return the errors of every method; those of one weight for all cells first."""
    central = CentralDP(epsilon=epsilon)
    gaussian = CentralDP(epsilon=epsilon, mechanism="discrete_gaussian", delta=DELTA)
    limit = bench.labels_per_example
    results = {"one weight": bench.errors(privacy=central, plan=Adaptive(placement=OneWeight()))}
    if limit is None:
        results["positives"] = bench.errors(privacy=central, sums_to_one=False)
    results["default"] = bench.errors(privacy=central, labels_per_example=limit)
    results["delta"] = bench.errors(privacy=gaussian, labels_per_example=limit)
    if limit is not None:
        results["delta, any labels"] = bench.errors(privacy=gaussian)
    results["single"] = bench.errors(privacy=central, labels_per_example=limit, plan="single")
    results["clients"] = bench.errors_of_clients(epsilon)
    if with_paper:
        results["paper"] = bench.paper_errors(epsilon)
    return results


def _rows(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Scores]]]:
    """Yield the names of sets of scores, and what makes them."""
    if arguments.other:
        yield from trained_scores().items()
        return
    for labels in arguments.labels:
        yield f"{labels} labels", partial(labelled_scores, labels)
    if arguments.labels:
        return
    for classes in arguments.classes:
        for kind in arguments.kinds:
            yield f"{classes}, {kind}", partial(made_scores, kind, classes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--labels", type=int, nargs="+", default=[])
    parser.add_argument("--other", action="store_true", help="scores of models trained elsewhere")
    parser.add_argument("--paper", action="store_true", help="the paper's estimator, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    table: list[dict[str, Floats]] = []
    for name, make in _rows(arguments):
        bench = Bench(make(), arguments.runs)
        for epsilon in arguments.epsilons:
            results = measured(bench, epsilon, arguments.paper)
            base = results.pop("one weight")
            if not table:
                print(f"| classes | epsilon | one weight | {' | '.join(results)} | read, ms |")
                print("|---" * (len(results) + 4) + "|")
            ratios = {key: np.array(value[:2]) / base[:2] for key, value in results.items()}
            cells = [
                f"{roc:.2f} / {pr:.2f}, {results[key].macro:.4f}"
                for key, (roc, pr) in ratios.items()
            ]
            read_time = results["default"].milliseconds
            print(
                f"| {name} | {epsilon:g} | {base} | {' | '.join(cells)} | {read_time:.1f} |",
                flush=True,
            )
            noise = np.hypot(base.noise, results["default"].noise)
            table.append({**ratios, "noise": np.array([noise])})
    summary = []
    for key in (name for name in table[0] if name != "noise"):
        ratios_of_key = np.stack([row[key] for row in table])
        mean = np.exp(np.log(ratios_of_key).mean(0))
        worst = ratios_of_key.max(0)
        summary.append(f"{mean[0]:.2f} / {mean[1]:.2f} ({worst[0]:.2f} / {worst[1]:.2f})")
    noise = float(np.sqrt(np.sum([row["noise"] ** 2 for row in table])) / len(table))
    print(f"| geometric mean (worst) | | ± {noise:.3f} | {' | '.join(summary)} | |")


if __name__ == "__main__":
    main()
