"""Area Error of groups and of everybody, with one release for all of them, and coverage of the gaps between groups.

    python -m benchmarks.groups --shared FOLDER --runs 30
    python -m benchmarks.groups --shared FOLDER --gaps --runs 400

Groups are made, three times: each example is in one at random, in even parts or in parts that fall by a third, and its
logit is shifted by up to a half. Everybody's error is divided by that of a release without groups in the same run, a
group's by its own sampling error, of 60 samples of its examples drawn again. Groups are sorted by the size of their
smaller class; behind the mean ratio of groups of a size stands its standard error.

With --gaps, examples are drawn again in each run, the truth is that of all of them, and what is printed is how often
the interval of each gap holds it, at 95%.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

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
SIZES = (120, 300, 800, 2_000)
SHIFT, SEEDS, DRAWN = 0.5, 3, 60
FACTS = {
    0.3: (1.5, 1.2, 0.99, np.nan, 0.64),
    1.0: (0.67, 0.62, 0.55, np.nan, 0.38),
    3.0: (0.43, 0.36, 0.29, np.nan, 0.23),
}
"""Errors of groups over their sampling errors that were measured before, by size of the smaller class."""

Numbers = NDArray[np.float64]


class Examples(NamedTuple):
    """Labels, scores and groups."""

    target: NDArray[np.int64]
    score: Numbers
    group: NDArray[np.int64]

    @classmethod
    def of(
        cls, target: NDArray[np.int64], score: Numbers, groups: int, even: bool, seed: int = 0
    ) -> Examples:
        """Return the scores in groups, each with its shift."""
        generator = np.random.default_rng(seed)
        parts = np.ones(groups) if even else (2 / 3) ** np.arange(groups)
        group = generator.choice(groups, len(target), p=parts / parts.sum())
        clipped = score.clip(1e-7, 1 - 1e-7)
        logit = np.log(clipped / (1 - clipped)) + np.linspace(-SHIFT, SHIFT, groups)[group]
        return cls(target, 1 / (1 + np.exp(-logit)), group)

    def taken(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Examples:
        """Return some of them."""
        return Examples(self.target[which], self.score[which], self.group[which])

    @property
    def exact(self) -> Release:
        """Their exact release, without groups."""
        return released(self, None, 0)


def released(examples: Examples, epsilon: float | None, groups: int) -> Release:
    """Return a release, private if there is an epsilon."""
    metric = FederatedROC(
        privacy=None if epsilon is None else CentralDP(epsilon), groups=groups or None
    )
    extra = (torch.from_numpy(examples.group),) if groups else ()
    metric.update(torch.from_numpy(examples.score), torch.from_numpy(examples.target), *extra)
    return metric.release()


def error(release: Release, exact: Release) -> float:
    """Return the geometric mean of both Area Errors."""
    roc = area_error_roc(roc_from_counts(release), roc_from_counts(exact))
    pr = area_error_pr(
        precision_recall_from_counts(release), precision_recall_from_counts(exact), "binned"
    )
    return float(np.sqrt(roc * pr))


def sampling_error(examples: Examples, runs: int) -> float:
    """Return the error of samples drawn again."""
    generator, size = np.random.default_rng(1), len(examples.target)
    drawn = (examples.taken(generator.integers(size, size=size)) for _ in range(runs))
    return float(np.mean([error(each.exact, examples.exact) for each in drawn]))


def accuracy(shared: Path, names: list[str], runs: int) -> None:
    """Print both tables."""
    overall: dict[tuple[int, float], list[float]] = defaultdict(list)
    of_groups: dict[tuple[int, float], list[float]] = defaultdict(list)
    for name, (target, score) in files(shared, names).items():
        for number, even, seed in product(NUMBERS, (True, False), range(SEEDS)):
            examples = Examples.of(target, score, number, even, seed)
            exact, parts = (
                examples.exact,
                [examples.taken(examples.group == g) for g in range(number)],
            )
            truths, sampling = (
                [each.exact for each in parts],
                [sampling_error(each, DRAWN) for each in parts],
            )
            for epsilon in EPSILONS:
                releases = [released(examples, epsilon, number) for _ in range(runs)]
                alone = np.mean([error(released(examples, epsilon, 0), exact) for _ in range(runs)])
                ratio = np.mean([error(each, exact) for each in releases]) / alone
                overall[number, epsilon].append(float(ratio))
                for g, (part, truth) in enumerate(zip(parts, truths, strict=True)):
                    mine = (
                        np.mean([error(each.by_group[str(g)], truth) for each in releases])
                        / sampling[g]
                    )
                    smaller = min(part.target.sum(), len(part.target) - part.target.sum())
                    of_groups[int(np.searchsorted(SIZES, smaller)), epsilon].append(float(mine))
            print(
                f"{name}, {number} groups, {'even' if even else 'uneven'}, {seed}: done", flush=True
            )
    print(
        "\n| epsilon | everybody, 2 / 4 / 8 groups | groups below 120 / 300 / 800 / 2,000 / above | before |"
    )
    print("|---|---|---|---|")
    for epsilon in EPSILONS:
        first = " / ".join(f"{geometric(overall[number, epsilon]):.2f}" for number in NUMBERS)
        cells = [of_groups[size, epsilon] for size in range(len(SIZES) + 1)]
        second = " / ".join(f"{geometric(cell):.2f} ± {deviation(cell):.2f}" for cell in cells)
        print(
            f"| {epsilon} | {first} | {second} | {' / '.join(f'{value:.2f}' for value in FACTS[epsilon])} |"
        )


def geometric(ratios: list[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")


def deviation(ratios: list[float]) -> float:
    """Return the standard error of the geometric mean."""
    return (
        float(geometric(ratios) * np.std(np.log(ratios)) / np.sqrt(len(ratios)))
        if ratios
        else float("nan")
    )


def gaps(shared: Path, names: list[str], runs: int, sizes: list[int], numbers: list[int]) -> None:
    """Print how often intervals hold the gaps of the population."""
    rates = ("tpr", "fpr", "positive_rate", "precision", "auroc")
    print(f"| scores | n | groups | epsilon | {' | '.join(rates)} | largest: {' | '.join(rates)} |")
    print(f"|---|---|---|---{'|---' * 2 * len(rates)}|")
    lowest = 1.0
    for name, (target, score) in files(shared, names).items():
        threshold = 0.5 if name.startswith("adult") else 0.2
        for number in numbers:
            everybody = Examples.of(target, score, number, even=False)
            truth = group_gaps(released(everybody, None, number), threshold)
            for size in sizes:
                for epsilon in (None, *EPSILONS):
                    held = np.array(
                        [
                            _held(everybody, truth, size, epsilon, number, threshold)
                            for _ in range(runs)
                        ]
                    )
                    share = np.nanmean(held, 0)
                    lowest = min(lowest, float(np.nanmin(share)))
                    cells = " | ".join(f"{value:.3f}" for value in share)
                    print(
                        f"| {name} | {size} | {number} | {epsilon or 'exact'} | {cells} |",
                        flush=True,
                    )
    print(f"\nlowest: {lowest:.3f}")


def _held(
    everybody: Examples,
    truth: GroupGaps,
    size: int,
    epsilon: float | None,
    number: int,
    threshold: float,
) -> Numbers:
    """Return whether each gap of the first and the last group, and each largest one, is in its interval."""
    drawn = everybody.taken(np.random.default_rng().integers(len(everybody.target), size=size))
    found = group_gaps(released(drawn, epsilon, number), threshold)
    ends = truth.groups[0], truth.groups[-1]
    pairs = zip(
        [*found.between(*ends).values(), *found.largest.values()],
        [*truth.between(*ends).values(), *truth.largest.values()],
        strict=True,
    )
    return np.array(
        [
            np.nan if gap.value.isnan() else bool(gap.low <= true.value <= gap.high)
            for gap, true in pairs
        ],
        dtype=np.float64,
    )


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
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of small groups, whose figures say it
    if given.gaps:
        gaps(given.shared, given.data, given.runs, given.sizes, given.groups)
    else:
        accuracy(given.shared, given.data, given.runs)


if __name__ == "__main__":
    main()
