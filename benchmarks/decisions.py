"""Coverage of decisions' intervals, Brier scores after recalibration, errors of the drift test.

    python -m benchmarks.decisions --shared FOLDER --runs 400

reads the score files of ``FOLDER/data/scores`` (or TORCHMETRICS_FED_SHARED) and prints three
tables:

- coverage: how often intervals of a private release hold the values of all clients' pooled scores.
  Net benefit and gains count only if the whole curve is held; predictive values are those at
  threshold 0.5 with a prevalence of 5%;
- recalibration: Brier scores of one half of the examples, by a module that was fitted to a release
  of the other half, divided by those of the scores as they were: mean and worst of five releases;
- drift: how often the test at level 0.05 says that two random halves differ, and that they do after
  the logits of one half were moved: by itself, with ``tied=False``, and with the leaves of the
  earlier release; then the mean index beside that of the scores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from benchmarks.bands import once
from benchmarks.hard_scores import Scores
from torchmetrics_fed import CentralDP, FederatedROC, Query
from torchmetrics_fed.functional import (
    calibration_line,
    cumulative_gains,
    net_benefit,
    population_stability_index,
    predictive_values,
    recalibrate,
)
from torchmetrics_fed.functional.recalibration import RecalibrationMethod
from torchmetrics_fed.release import Release

Floats = NDArray[np.float64]
FILES = ("adult_LogisticRegression", "bank_LogisticRegression", "synthcover_LogisticRegression")
EPSILONS = (0.3, 1.0)
METHODS: tuple[RecalibrationMethod, ...] = ("isotonic", "logistic")
THRESHOLD = 0.5
PREVALENCE = 0.05
CONFIDENCE = 0.95
QUESTIONS = ("net benefit", "gains", "PPV", "NPV", "intercept", "slope")
LEAST_SCORE = 2.0**-24
"""Scores are clipped to this distance from 0 and 1 before the logit, as the package does."""
RECALIBRATIONS = 5
"""Private releases that recalibration is averaged over."""
SHIFTS = (0.0, 0.1, 0.2, 0.4)
"""How far the logits of one half are moved in the drift test."""

DISTORTIONS: dict[str, Callable[[Floats], Floats]] = {
    "as they are": lambda x: x,
    "logits doubled": lambda x: 2 * x,
    "logits halved and 1 higher": lambda x: x / 2 + 1,
    "logits bent": lambda x: x + np.sin(x) + 0.8 * (x < -1),
}


def load(path: Path) -> Scores:
    """Return targets and scores of a file."""
    data = np.load(path)
    return data["y_true"].astype(np.int64), data["y_score"].astype(np.float64)


def logits(scores: Floats) -> Floats:
    """Return the logits of scores, clipped near 0 and 1."""
    return np.asarray(logit(np.clip(scores, LEAST_SCORE, 1 - LEAST_SCORE)))


def release(scores: Scores, epsilon: float | None) -> Release:
    """Return a release of scores, exact without epsilon."""
    if epsilon is None:
        return once(None)(scores)
    return once(CentralDP(epsilon), "adaptive")(scores)


def exact_net_benefit(scores: Scores, thresholds: Floats) -> Floats:
    """Return the net benefit of the scores by Vickers and Elkin's formula."""
    target, score = scores
    tp = np.array([np.mean((score >= threshold) & (target == 1)) for threshold in thresholds])
    fp = np.array([np.mean((score >= threshold) & (target == 0)) for threshold in thresholds])
    return np.asarray(tp - fp * thresholds / (1 - thresholds))


def exact_gains(scores: Scores, fractions: Floats) -> Floats:
    """Return the recall of the highest scores."""
    target, score = scores
    order = np.argsort(-score, kind="stable")
    recall = np.append(0, target[order].cumsum()) / target.sum()
    return np.asarray(np.interp(fractions * len(target), np.arange(len(target) + 1), recall))


def exact_predictive_values(
    scores: Scores, threshold: float, prevalence: float
) -> tuple[float, float]:
    """Return PPV and NPV of the scores at this prevalence."""
    target, score = scores
    tpr = float(np.mean(score[target == 1] >= threshold))
    fpr = float(np.mean(score[target == 0] >= threshold))
    tp = prevalence * tpr
    fp = (1 - prevalence) * fpr
    tn = (1 - prevalence) * (1 - fpr)
    fn = prevalence * (1 - tpr)
    return tp / (tp + fp), tn / (tn + fn)


def exact_line(scores: Scores) -> tuple[float, float]:
    """Return intercept and slope of a logistic regression of the targets on the scores' logits."""
    target, score = scores
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(logits(score)[:, None], target)
    return float(model.intercept_[0]), float(model.coef_[0, 0])


class Truth:
    """The values that the intervals of one data set should hold."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        self.line = exact_line(scores)
        self.net_benefit = exact_net_benefit(scores, np.linspace(0.01, 0.99, 99))
        self.gains = exact_gains(scores, np.linspace(0.01, 1, 100))

    def held(self, release: Release) -> list[tuple[bool, float]]:
        """Return for each question whether its interval holds the truth, and its mean width."""
        values = predictive_values(release, THRESHOLD, PREVALENCE, CONFIDENCE, of="examples")
        line = calibration_line(release, CONFIDENCE, of="examples")
        assert values.intervals is not None
        assert line.intervals is not None
        intervals = (*values.intervals, *line.intervals)
        exact_values = exact_predictive_values(self.scores, float(values.threshold), PREVALENCE)
        truths = (*exact_values, *self.line)
        results = [
            _curve_held(
                net_benefit(release, confidence=CONFIDENCE, of="examples"), self.net_benefit
            ),
            _curve_held(
                cumulative_gains(release, confidence=CONFIDENCE, of="examples"), self.gains
            ),
        ]
        for (low, high), truth in zip(intervals, truths, strict=True):
            results.append((bool(low <= truth <= high), float(high - low)))
        return results


def _curve_held(curve: Any, truth: Floats) -> tuple[bool, float]:
    """Return whether a curve's band holds all of the truth, and its mean width."""
    is_inside = (curve.low.numpy() <= truth) & (truth <= curve.high.numpy())
    return bool(is_inside.all()), float((curve.high - curve.low).mean())


def coverage(files: list[Path], runs: int, epsilons: list[float]) -> Iterator[str]:
    """Yield the lines of the first table."""
    yield f"Coverage at {CONFIDENCE} and mean width, {runs} runs.\n"
    yield f"| scores, epsilon | {' | '.join(QUESTIONS)} |\n|---|{'---|' * len(QUESTIONS)}"
    for path in files:
        truth = Truth(load(path))
        for epsilon in epsilons:
            means = np.mean([truth.held(release(truth.scores, epsilon)) for _ in range(runs)], 0)
            cells = [f"{rate:.3f} ({width:.4f})" for rate, width in means]
            yield f"| {path.stem}, {epsilon:g} | {' | '.join(cells)} |"


def halves(scores: Scores, generator: np.random.Generator) -> tuple[Scores, Scores]:
    """Return two random halves of the examples."""
    target, score = scores
    first, second = np.array_split(generator.permutation(len(target)), 2)
    return (target[first], score[first]), (target[second], score[second])


def brier(target: NDArray[np.int64], scores: torch.Tensor) -> float:
    """Return the Brier score."""
    return float(((scores - torch.from_numpy(target)) ** 2).mean())


def recalibrated(
    fitted: Scores, tested: Scores, epsilon: float | None, method: RecalibrationMethod
) -> float:
    """Return the Brier score of ``tested`` by a module fitted to a release of ``fitted``."""
    module = recalibrate(release(fitted, epsilon), method)
    target, score = tested
    return brier(target, module(torch.from_numpy(score)))


def recalibration(files: list[Path]) -> Iterator[str]:
    """Yield the lines of the second table."""
    columns = [(epsilon, method) for epsilon in (None, *EPSILONS) for method in METHODS]
    names = [f"{method}, {_epsilon_name(epsilon)}" for epsilon, method in columns]
    yield (
        "Brier score after recalibration over that before, held-out half, mean (worst) of "
        f"{RECALIBRATIONS}.\n"
    )
    yield f"| scores | Brier | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"
    generator = np.random.default_rng(11)
    for path in files:
        target, scores = load(path)
        for name, distort in DISTORTIONS.items():
            distorted = (target, expit(distort(logits(scores))))
            fitted, tested = halves(distorted, generator)
            before = brier(tested[0], torch.from_numpy(tested[1]))
            cells = []
            for epsilon, method in columns:
                runs = 1 if epsilon is None else RECALIBRATIONS
                after = [recalibrated(fitted, tested, epsilon, method) for _ in range(runs)]
                cells.append(f"{np.mean(after) / before:.4f} ({max(after) / before:.4f})")
            yield f"| {path.stem}, {name} | {before:.4f} | {' | '.join(cells)} |"


def _epsilon_name(epsilon: float | None) -> str:
    if epsilon is None:
        return "exact"
    return f"epsilon {epsilon:g}"


class DriftResult(NamedTuple):
    """The drift of one pair of halves."""

    drifted: bool
    """Whether the test finds drift."""
    drifted_untied: bool
    """The same with ``tied=False``."""
    drifted_on_same_leaves: bool
    """The same with a second release on the leaves of the first."""
    value: float
    """The population stability index of the releases."""
    exact_value: float
    """The index of the scores."""


def drift(files: list[Path], runs: int) -> Iterator[str]:
    """Yield the lines of the third table."""
    yield (
        "Drift found at level 0.05 (tied=False, same leaves), mean index (that of the scores), "
        f"{runs} runs.\n"
    )
    names = [f"logits {shift:g} higher" for shift in SHIFTS]
    yield f"| scores, epsilon | {' | '.join(names)} |\n|---|{'---|' * len(names)}"
    generator = np.random.default_rng(12)
    inputs = {path.stem: load(path) for path in files}
    inputs["20 values"] = twenty(generator)
    for name, scores in inputs.items():
        for epsilon in (None, *EPSILONS):
            cells = []
            for shift in SHIFTS:
                results = [measure_drift(scores, epsilon, shift, generator) for _ in range(runs)]
                mean = DriftResult(*np.array(results, dtype=np.float64).mean(0))
                cells.append(
                    f"{mean.drifted:.3f} ({mean.drifted_untied:.3f}, "
                    f"{mean.drifted_on_same_leaves:.3f}), "
                    f"{mean.value:.4f} ({mean.exact_value:.4f})"
                )
            level = "exact" if epsilon is None else f"{epsilon:g}"
            yield f"| {name}, {level} | {' | '.join(cells)} |"


def twenty(generator: np.random.Generator) -> Scores:
    """Return 20,000 examples whose scores have twenty values."""
    target = (generator.random(20_000) < 0.3).astype(np.int64)
    scores = expit(1.5 * generator.standard_normal(20_000) + 2 * target - 1)
    return target, (np.floor(20 * scores) + 0.5) / 20


def measure_drift(
    scores: Scores, epsilon: float | None, shift: float, generator: np.random.Generator
) -> DriftResult:
    """Release two random halves, the second with moved logits, and test them for drift."""
    before, (target, score) = halves(scores, generator)
    after = (target, expit(logits(score) + shift))
    first = release(before, epsilon)
    second = release(after, epsilon)
    result = population_stability_index(first, second)
    untied = population_stability_index(first, second, tied=False)
    on_same_leaves = result
    if epsilon is not None:
        metric = FederatedROC(privacy=CentralDP(epsilon), plan=Query(first.queries[-1].tree))
        metric.update(torch.from_numpy(after[1]), torch.from_numpy(after[0]))
        on_same_leaves = population_stability_index(first, metric.release())
    return DriftResult(
        drifted=bool(result.drifted),
        drifted_untied=bool(untied.drifted),
        drifted_on_same_leaves=bool(on_same_leaves.drifted),
        value=float(result.value),
        exact_value=exact_index(before[1], after[1], result.edges.numpy()),
    )


def exact_index(before: Floats, after: Floats, edges: Floats) -> float:
    """Return the population stability index of scores, parted at these edges."""
    p = _fractions(before, edges)
    q = _fractions(after, edges)
    has_both = (p > 0) & (q > 0)
    p = p[has_both]
    q = q[has_both]
    return float(((q - p) * np.log(q / p)).sum())


def _fractions(scores: Floats, edges: Floats) -> Floats:
    """Return the fraction of scores in each part."""
    parts = np.searchsorted(edges[1:-1], scores, "right")
    counts = np.bincount(parts, minlength=len(edges) - 1)
    return np.asarray(counts / counts.sum())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--scores", default="", help="files whose name has this in it")
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=list(EPSILONS), help="of coverage"
    )
    parser.add_argument("--only", choices=["coverage", "recalibration", "drift"])
    arguments = parser.parse_args()
    if arguments.shared is None:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
        return
    folder = Path(arguments.shared, "data", "scores")
    files = [folder / f"{name}.npz" for name in FILES if arguments.scores in name]
    tables: dict[str, Iterator[str]] = {
        "coverage": coverage(files, arguments.runs, arguments.epsilon),
        "recalibration": recalibration(files),
        "drift": drift(files, arguments.runs),
    }
    for name, lines in tables.items():
        if arguments.only in (None, name):
            for line in lines:
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
