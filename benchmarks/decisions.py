"""What decisions can rely on: coverage of intervals, Brier scores of recalibrated models, errors of the drift test.

    python -m benchmarks.decisions --shared FOLDER --runs 400

reads the score files of ``FOLDER/data/scores`` (or TORCHMETRICS_FED_SHARED) and prints three tables:

- coverage: how often intervals of a private release hold what all clients' pooled scores have. Net benefit and gains
  count only if the whole curve is held; predictive values are those at threshold 0.5 where 5% are positive;
- recalibration: Brier scores of one half of the examples, by a module that was fitted to a release of the other half,
  divided by those of the scores as they were: mean and worst of five releases;
- drift: how often the test at level 0.05 says that two random halves differ, and that they do after the logits of one
  were moved: by itself, with ``tied=False``, and with the leaves of the release before; then the mean index beside that
  of the scores themselves.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
THRESHOLD, PREVALENCE = 0.5, 0.05
QUESTIONS = ("net benefit", "gains", "PPV", "NPV", "intercept", "slope")
NEAR = 2.0**-24

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
    """Return logits of scores, those at 0 and 1 as near to them as the package looks."""
    return np.asarray(logit(np.clip(scores, NEAR, 1 - NEAR)))


def release(scores: Scores, epsilon: float | None) -> Release:
    """Return a release of scores, exact without epsilon."""
    return once(None)(scores) if epsilon is None else once(CentralDP(epsilon), "adaptive")(scores)


def exact_net_benefit(scores: Scores, thresholds: Floats) -> Floats:
    """Return Vickers and Elkin's formula of the scores themselves."""
    target, score = scores
    found = [[np.mean((score >= t) & (target == label)) for t in thresholds] for label in (1, 0)]
    return np.asarray(found[0]) - np.asarray(found[1]) * thresholds / (1 - thresholds)


def exact_gains(scores: Scores, fractions: Floats) -> Floats:
    """Return the recall of the highest scores, sorted."""
    target, score = scores
    found = np.r_[0, target[np.argsort(-score, kind="stable")].cumsum()] / target.sum()
    return np.asarray(np.interp(fractions * len(target), np.arange(len(target) + 1), found))


def exact_predictive_values(
    scores: Scores, threshold: float, prevalence: float
) -> tuple[float, float]:
    """Return PPV and NPV of the scores at this prevalence."""
    target, score = scores
    sensitivity, fallout = (float(np.mean(score[target == label] >= threshold)) for label in (1, 0))
    true, false = prevalence * sensitivity, (1 - prevalence) * fallout
    kept, missed = (1 - prevalence) * (1 - fallout), prevalence * (1 - sensitivity)
    return true / (true + false), kept / (kept + missed)


def exact_line(scores: Scores) -> tuple[float, float]:
    """Return scikit-learn's logistic regression of the targets on the scores' logits, intercept and slope."""
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(logits(scores[1])[:, None], scores[0])
    return float(model.intercept_[0]), float(model.coef_[0, 0])


class Truth:
    """What the intervals of one data set should hold."""

    def __init__(self, scores: Scores) -> None:
        thresholds, fractions = np.linspace(0.01, 0.99, 99), np.linspace(0.01, 1, 100)
        self.scores, self.line = scores, exact_line(scores)
        self.net_benefit, self.gains = (
            exact_net_benefit(scores, thresholds),
            exact_gains(scores, fractions),
        )

    def held(self, release: Release) -> list[tuple[bool, float]]:
        """Return for each question whether its interval holds the truth, and its mean width."""
        values = predictive_values(release, THRESHOLD, PREVALENCE, 0.95)
        line = calibration_line(release, 0.95)
        assert values.intervals is not None
        assert line.intervals is not None
        truths = exact_predictive_values(self.scores, float(values.threshold), PREVALENCE)
        result = []
        for curve, exact in (
            (net_benefit(release, confidence=0.95), self.net_benefit),
            (cumulative_gains(release, confidence=0.95), self.gains),
        ):
            assert curve.low is not None
            assert curve.high is not None
            inside = (curve.low.numpy() <= exact) & (exact <= curve.high.numpy())
            result.append((bool(inside.all()), float((curve.high - curve.low).mean())))
        for (low, high), truth in zip(
            (*values.intervals, *line.intervals), (*truths, *self.line), strict=True
        ):
            result.append((bool(low <= truth <= high), float(high - low)))
        return result


def coverage(files: list[Path], runs: int, epsilons: list[float]) -> Iterator[str]:
    """Yield the lines of the first table."""
    yield f"Coverage at 0.95 and mean width, {runs} runs.\n"
    yield f"| scores, epsilon | {' | '.join(QUESTIONS)} |\n|---|{'---|' * len(QUESTIONS)}"
    for path in files:
        truth = Truth(load(path))
        for epsilon in epsilons:
            means = np.mean([truth.held(release(truth.scores, epsilon)) for _ in range(runs)], 0)
            yield f"| {path.stem}, {epsilon:g} | {' | '.join(f'{hit:.3f} ({width:.4f})' for hit, width in means)} |"


def halves(scores: Scores, generator: np.random.Generator) -> tuple[Scores, Scores]:
    """Return two random halves of the examples."""
    order = generator.permutation(len(scores[0]))
    first, second = np.array_split(order, 2)
    return (scores[0][first], scores[1][first]), (scores[0][second], scores[1][second])


def brier(target: NDArray[np.int64], scores: torch.Tensor) -> float:
    """Return the Brier score."""
    return float(((scores - torch.from_numpy(target)) ** 2).mean())


def recalibrated(
    fitted: Scores, tested: Scores, epsilon: float | None, method: RecalibrationMethod
) -> float:
    """Return the Brier score of the second half by a module that was fitted to a release of the first."""
    module = recalibrate(release(fitted, epsilon), method)
    return brier(tested[0], module(torch.from_numpy(tested[1])))


def recalibration(files: list[Path], times: int = 5) -> Iterator[str]:
    """Yield the lines of the second table."""
    columns = [(epsilon, method) for epsilon in (None, *EPSILONS) for method in METHODS]
    names = [
        f"{method}, {'exact' if epsilon is None else f'epsilon {epsilon:g}'}"
        for epsilon, method in columns
    ]
    yield f"Brier score after recalibration over that before, held-out half, mean (worst) of {times}.\n"
    yield f"| scores | Brier | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"
    generator = np.random.default_rng(11)
    for path in files:
        target, scores = load(path)
        for name, distort in DISTORTIONS.items():
            fitted, tested = halves((target, expit(distort(logits(scores)))), generator)
            before = brier(tested[0], torch.from_numpy(tested[1]))
            cells = []
            for epsilon, method in columns:
                after = [
                    recalibrated(fitted, tested, epsilon, method)
                    for _ in range(times if epsilon else 1)
                ]
                cells.append(f"{np.mean(after) / before:.4f} ({max(after) / before:.4f})")
            yield f"| {path.stem}, {name} | {before:.4f} | {' | '.join(cells)} |"


def drift(files: list[Path], runs: int) -> Iterator[str]:
    """Yield the lines of the third table."""
    shifts = (0.0, 0.1, 0.2, 0.4)
    yield f"Drift found at level 0.05 (tied=False, same leaves), mean index (that of the scores), {runs} runs.\n"
    yield f"| scores, epsilon | {' | '.join(f'logits {shift:g} higher' for shift in shifts)} |\n|---|{'---|' * 4}"
    generator = np.random.default_rng(12)
    for name, scores in (
        *((path.stem, load(path)) for path in files),
        ("20 values", twenty(generator)),
    ):
        for epsilon in (None, *EPSILONS):
            cells = []
            for shift in shifts:
                found = [_found(scores, epsilon, shift, generator) for _ in range(runs)]
                rate, smooth, same, value, exact = np.mean(found, 0)
                cells.append(f"{rate:.3f} ({smooth:.3f}, {same:.3f}), {value:.4f} ({exact:.4f})")
            yield f"| {name}, {'exact' if epsilon is None else f'{epsilon:g}'} | {' | '.join(cells)} |"


def twenty(generator: np.random.Generator) -> Scores:
    """Return 20,000 examples whose scores have twenty values."""
    target = (generator.random(20_000) < 0.3).astype(np.int64)
    scores = expit(1.5 * generator.standard_normal(20_000) + 2 * target - 1)
    return target, (np.floor(20 * scores) + 0.5) / 20


def _found(
    scores: Scores, epsilon: float | None, shift: float, generator: np.random.Generator
) -> list[float]:
    before, after = halves(scores, generator)
    moved = after[0], expit(logits(after[1]) + shift)
    first, second = release(before, epsilon), release(moved, epsilon)
    result, smooth = (
        population_stability_index(first, second),
        population_stability_index(first, second, tied=False),
    )
    alike = result
    if epsilon is not None:
        metric = FederatedROC(privacy=CentralDP(epsilon), plan=Query(first.queries[-1].tree))
        metric.update(torch.from_numpy(moved[1]), torch.from_numpy(moved[0]))
        alike = population_stability_index(first, metric.release())
    exact = exact_index(before[1], moved[1], result.edges.numpy())
    return [
        float(result.drifted),
        float(smooth.drifted),
        float(alike.drifted),
        float(result.value),
        exact,
    ]


def exact_index(before: Floats, after: Floats, edges: Floats) -> float:
    """Return the population stability index of scores, parted at these edges."""
    inner = edges[1:-1]
    p, q = (
        np.bincount(np.searchsorted(inner, each, "right"), minlength=len(edges) - 1)
        for each in (before, after)
    )
    p, q = p / p.sum(), q / q.sum()
    some = (p > 0) & (q > 0)
    return float(((q - p) * np.log(np.where(some, q, 1) / np.where(some, p, 1)))[some].sum())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--scores", default="", help="files whose name has this in it")
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=list(EPSILONS), help="those of coverage"
    )
    parser.add_argument("--only", choices=["coverage", "recalibration", "drift"])
    arguments = parser.parse_args()
    if arguments.shared is None:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
        return
    named = (name for name in FILES if arguments.scores in name)
    files = [Path(arguments.shared, "data", "scores", f"{name}.npz") for name in named]
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
