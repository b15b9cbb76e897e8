"""Area Error of groups and of all examples, from one release, and coverage of gaps between groups.

    python -m benchmarks.groups --shared FOLDER --runs 30
    python -m benchmarks.groups --shared FOLDER --gaps --runs 400

Groups are made, three times: each example is in one at random, in even parts or in parts that fall
by a third, and its logit is shifted by up to a half. The error of all examples is divided by that
of a release without groups in the same run, the error of a group by its own sampling error, from 60
samples of its examples drawn again. Groups are sorted by the size of their smaller class; after the
mean ratio of groups of a size stands its standard error.

With --gaps, examples are drawn again in each run, and the truth is that of all of them. The table
shows how often the interval of each gap holds it, at 95%.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.plans import files
from torchmetrics_fed import CentralDP, FederatedROC, Release
from torchmetrics_fed.functional import (
    GroupGaps,
    area_error_pr,
    area_error_roc,
    group_gaps,
    precision_recall_from_counts,
    roc_from_counts,
)

EPSILONS = (0.3, 1.0, 3.0)
NUMBERS = (2, 4, 8)
"""Numbers of groups."""
SIZES = (120, 300, 800, 2_000)
"""Limits of the sizes of a group's smaller class, by which groups are sorted."""
SHIFT = 0.5
"""The largest shift of a group's logits."""
SEEDS = 3
SAMPLES = 60
"""Samples drawn again, for the sampling error."""
EARLIER_RATIOS = {
    0.3: (1.5, 1.2, 0.99, np.nan, 0.64),
    1.0: (0.67, 0.62, 0.55, np.nan, 0.38),
    3.0: (0.43, 0.36, 0.29, np.nan, 0.23),
}
"""Errors of groups over their sampling errors that were measured before, by SIZES."""
RATES = ("tpr", "fpr", "positive_rate", "precision", "auroc")
LOGIT_CLIP = 1e-7
"""Scores are clipped to this distance from 0 and 1 before the logit."""

Floats = NDArray[np.float64]


class Examples(NamedTuple):
    """Labels, scores and groups."""

    target: NDArray[np.int64]
    score: Floats
    group: NDArray[np.int64]

    @classmethod
    def of(
        cls, target: NDArray[np.int64], score: Floats, groups: int, even: bool, seed: int = 0
    ) -> Examples:
        """Return the scores in groups, each with its shift."""
        generator = np.random.default_rng(seed)
        parts: Floats = np.ones(groups)
        if not even:
            parts = np.power(2 / 3, np.arange(groups))
        group = generator.choice(groups, len(target), p=parts / parts.sum())
        clipped = score.clip(LOGIT_CLIP, 1 - LOGIT_CLIP)
        shift = np.linspace(-SHIFT, SHIFT, groups)[group]
        logit = np.log(clipped / (1 - clipped)) + shift
        return cls(target, 1 / (1 + np.exp(-logit)), group)

    def select(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Examples:
        """Return the examples of these rows."""
        return Examples(self.target[rows], self.score[rows], self.group[rows])

    @property
    def smaller_class(self) -> int:
        """The number of examples of the smaller class."""
        positives = int(self.target.sum())
        return min(positives, len(self.target) - positives)

    @property
    def exact(self) -> Release:
        """The exact release, without groups."""
        return released(self, None, 0)


def released(examples: Examples, epsilon: float | None, groups: int) -> Release:
    """Return a release, private with an epsilon, and of groups if there are any."""
    privacy = None
    if epsilon is not None:
        privacy = CentralDP(epsilon)
    preds = torch.from_numpy(examples.score)
    target = torch.from_numpy(examples.target)
    if groups == 0:
        metric = FederatedROC(privacy=privacy)
        metric.update(preds, target)
    else:
        metric = FederatedROC(privacy=privacy, groups=groups)
        metric.update(preds, target, torch.from_numpy(examples.group))
    return metric.release()


def error(release: Release, exact: Release) -> float:
    """Return the geometric mean of both Area Errors."""
    roc = area_error_roc(roc_from_counts(release), roc_from_counts(exact))
    pr = area_error_pr(
        precision_recall_from_counts(release), precision_recall_from_counts(exact), "binned"
    )
    return float(np.sqrt(roc * pr))


def sampling_error(examples: Examples) -> float:
    """Return the mean error of samples drawn again."""
    generator = np.random.default_rng(1)
    size = len(examples.target)
    errors = []
    for _ in range(SAMPLES):
        sample = examples.select(generator.integers(size, size=size))
        errors.append(error(sample.exact, examples.exact))
    return float(np.mean(errors))


class Group(NamedTuple):
    """One group of the examples."""

    name: str
    exact: Release
    sampling_error: float
    size: int
    """The number of the group's size among SIZES."""


class Accuracy:
    """Ratios of errors, for both parts of the table."""

    def __init__(self) -> None:
        self.overall: dict[tuple[int, float], list[float]] = defaultdict(list)
        """Of all examples, by number of groups and epsilon."""
        self.of_groups: dict[tuple[int, float], list[float]] = defaultdict(list)
        """Of single groups, by size and epsilon."""

    def add(self, examples: Examples, number: int, runs: int) -> None:
        """Add the ratios of examples in this many groups."""
        groups = []
        for label in range(number):
            part = examples.select(examples.group == label)
            size = int(np.searchsorted(SIZES, part.smaller_class))
            groups.append(Group(str(label), part.exact, sampling_error(part), size))
        exact = examples.exact
        for epsilon in EPSILONS:
            releases = [released(examples, epsilon, number) for _ in range(runs)]
            ungrouped = [released(examples, epsilon, 0) for _ in range(runs)]
            ratio = mean_error(releases, exact) / mean_error(ungrouped, exact)
            self.overall[number, epsilon].append(ratio)
            for group in groups:
                of_group = [release.by_group[group.name] for release in releases]
                ratio = mean_error(of_group, group.exact) / group.sampling_error
                self.of_groups[group.size, epsilon].append(ratio)


def mean_error(releases: list[Release], exact: Release) -> float:
    return float(np.mean([error(release, exact) for release in releases]))


def accuracy(shared: Path, names: list[str], runs: int) -> None:
    """Print the errors of all examples and of groups."""
    ratios = Accuracy()
    for name, (target, score) in files(shared, names).items():
        for number, even, seed in product(NUMBERS, (True, False), range(SEEDS)):
            ratios.add(Examples.of(target, score, number, even, seed), number, runs)
            parts = "even" if even else "uneven"
            print(f"{name}, {number} groups, {parts}, {seed}: done", flush=True)
    print(
        "\n| epsilon | everybody, 2 / 4 / 8 groups | groups below 120 / 300 / 800 / 2,000 / above "
        "| before |"
    )
    print("|---|---|---|---|")
    for epsilon in EPSILONS:
        overall = [f"{geometric(ratios.overall[number, epsilon]):.2f}" for number in NUMBERS]
        of_groups = []
        for size in range(len(SIZES) + 1):
            cell = ratios.of_groups[size, epsilon]
            of_groups.append(f"{geometric(cell):.2f} ± {deviation(cell):.2f}")
        earlier = [f"{value:.2f}" for value in EARLIER_RATIOS[epsilon]]
        columns = [" / ".join(column) for column in (overall, of_groups, earlier)]
        print(f"| {epsilon} | {' | '.join(columns)} |")


def geometric(ratios: list[float]) -> float:
    """Return the geometric mean; NaN without ratios."""
    if not ratios:
        return float("nan")
    return float(np.exp(np.mean(np.log(ratios))))


def deviation(ratios: list[float]) -> float:
    """Return the standard error of the geometric mean; NaN without ratios."""
    if not ratios:
        return float("nan")
    return float(geometric(ratios) * np.std(np.log(ratios)) / np.sqrt(len(ratios)))


class Population(NamedTuple):
    """Examples in groups, from which samples are drawn, and their gaps."""

    examples: Examples
    groups: int
    threshold: float
    truth: GroupGaps

    @classmethod
    def of(cls, examples: Examples, groups: int, threshold: float) -> Population:
        """Return the population of these examples."""
        truth = group_gaps(released(examples, None, groups), threshold)
        return cls(examples, groups, threshold, truth)

    def held(self, size: int, epsilon: float | None) -> Floats:
        """Draw a sample and return whether the interval of each gap holds the truth.

        The gaps are those between the first and the last group, and then the largest ones.
        """
        rows = np.random.default_rng().integers(len(self.examples.target), size=size)
        sample = self.examples.select(rows)
        gaps = self._gaps(group_gaps(released(sample, epsilon, self.groups), self.threshold))
        results = []
        for gap, truth in zip(gaps, self._gaps(self.truth), strict=True):
            if gap.value.isnan():
                results.append(np.nan)
            else:
                results.append(float(gap.low <= truth.value <= gap.high))
        return np.array(results)

    def _gaps(self, gaps: GroupGaps) -> list[Any]:
        first = self.truth.groups[0]
        last = self.truth.groups[-1]
        return [*gaps.between(first, last).values(), *gaps.largest.values()]


def gaps(shared: Path, names: list[str], runs: int, sizes: list[int], numbers: list[int]) -> None:
    """Print how often intervals hold the gaps of the population."""
    rates = " | ".join(RATES)
    print(f"| scores | n | groups | epsilon | {rates} | largest: {rates} |")
    print(f"|---|---|---|---{'|---' * 2 * len(RATES)}|")
    lowest = 1.0
    for name, (target, score) in files(shared, names).items():
        threshold = 0.5 if name.startswith("adult") else 0.2
        for number in numbers:
            examples = Examples.of(target, score, number, even=False)
            population = Population.of(examples, number, threshold)
            for size, epsilon in product(sizes, (None, *EPSILONS)):
                results = [population.held(size, epsilon) for _ in range(runs)]
                coverage = np.nanmean(results, 0)
                lowest = min(lowest, float(np.nanmin(coverage)))
                cells = " | ".join(f"{value:.3f}" for value in coverage)
                level = epsilon or "exact"
                print(f"| {name} | {size} | {number} | {level} | {cells} |", flush=True)
    print(f"\nlowest: {lowest:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared",
        type=Path,
        default=os.environ.get("TORCHMETRICS_FED_SHARED"),
        required="TORCHMETRICS_FED_SHARED" not in os.environ,
    )
    parser.add_argument(
        "--data", nargs="+", default=["adult", "bank"], help="beginnings of the files' names"
    )
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--gaps", action="store_true", help="coverage of the gaps' intervals")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[20_000], help="examples, with --gaps"
    )
    parser.add_argument(
        "--groups", type=int, nargs="+", default=[2, 4], help="numbers of groups, with --gaps"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # small groups warn, and the table shows it
    shared = Path(arguments.shared)
    if arguments.gaps:
        gaps(shared, arguments.data, arguments.runs, arguments.sizes, arguments.groups)
    else:
        accuracy(shared, arguments.data, arguments.runs)


if __name__ == "__main__":
    main()
