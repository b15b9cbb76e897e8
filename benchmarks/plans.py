"""Area Error of every plan over that of the paper's estimator at its best Q, at the same epsilon.

    python -m benchmarks.plans --shared FOLDER --runs 100 --large-runs 20 --oracle
    python -m benchmarks.plans --shared FOLDER --data adult bank --plans adaptive earlier jump
    python -m benchmarks.plans --shared FOLDER --set PILOT_LEAVES=32 --set PILOT_FRACTION=4/64

The score files are those of FOLDER/data/scores. With --hard and --other, scores are made here, too.
Noise is independent from run to run and from cell to cell. Errors are means; behind a ratio stands
its standard error. With --csv the results are also written to a file.

All PR curves are read alike: linear but for steps at bins of tied scores, or as --reading says.
With --oracle, errors are also divided by those of an oracle that knows the densities
(benchmarks/oracle.py), with its best number of leaves in hindsight.

With --set, a constant of torchmetrics_fed.reconstruct.tuning has another value in this run: that is
how the constants are tuned. Compare with a run without it.

Beside the plans of the package there are

    federation   the adaptive plan, over eight clients that each add their share of the noise
    others       carry_over after a release of other examples: one half, for the curve of the other
    earlier      carry_over after a release of an earlier model: logits x 0.8, noise of 0.5
    jump         carry_over after a release of a model that had nothing to do with it
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from benchmarks.hard_scores import HARD, Scores
from benchmarks.oracle import LEAVES, Oracle
from benchmarks.other_scores import OTHER
from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, Release
from torchmetrics_fed.functional import area_error_pr, area_error_roc
from torchmetrics_fed.functional.area_error import Reading
from torchmetrics_fed.functional.precision_recall import precision_recall_from_tails
from torchmetrics_fed.functional.roc import roc_from_tails
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction, read, tuning
from torchmetrics_fed.simulate import simulate
from torchmetrics_fed.typing import GridName

EPSILONS = (0.1, 0.3, 1.0)
"""Epsilons of the tables."""

QUANTILES = (16, 64, 256, 1024)
"""The values of Q that the paper's estimator is measured at."""

PAPER = Quantiles(1024, non_negative=False)
"""The paper's reconstruction: its post-processing is least squares alone."""

OURS = ("single", "adaptive", "carry_over")
"""The plans that are measured by default."""

AFTER = ("others", "earlier", "jump")
"""Plans that carry over a release of something else."""

LARGE = 100_000
"""Examples above which a file is measured in fewer runs."""

CLIENTS = 8
"""Clients of the plan "federation"."""

LEAST_RATIO = 0.01
"""Ratios are at least this in geometric means: some errors are 0."""

CURVES = ("roc", "pr")
"""The curves whose errors are measured, in the order of columns."""

Errors = NDArray[np.float64]


class Curves:
    """One score file: its exact curves, and errors of private ones.

    Args:
        scores: targets and scores.
        reading: how every estimated PR curve is read between its points.
    """

    def __init__(self, scores: Scores, reading: Reading = "binned") -> None:
        target, score = scores
        self.target = target
        self.score = score
        self.reading: Reading = reading
        self._exact_roc = roc_curve(target, score, drop_intermediate=True)
        self._exact_pr = precision_recall_curve(target, score)

    def errors(
        self,
        epsilon: float,
        plan: Any,
        runs: int,
        quantiles: int = 1024,
        reconstruction: Reconstruction | None = None,
    ) -> Errors:
        """Return the ROC and PR Area Error of each run of a plan of the package, ``(runs, 2)``."""
        if reconstruction is None:
            reconstruction = Aligned()
        if isinstance(reconstruction, Quantiles):
            reconstruction = replace(reconstruction, quantiles=quantiles)
        grid: GridName = "even" if plan == "paper" else "two_sided"
        metric = FederatedROC(quantiles=quantiles, grid=grid, privacy=CentralDP(epsilon), plan=plan)
        if plan == "carry_over":
            self._release(metric)  # the first release has nothing to carry
        errors = [self._errors(self._release(metric), reconstruction) for _ in range(runs)]
        return np.array(errors)

    def federated(self, epsilon: float, runs: int) -> Errors:
        """Return the errors of the adaptive plan over clients that share the noise."""
        privacy = DistributedDP(epsilon, min_clients=CLIENTS, max_colluding=0)
        metric = FederatedROC(privacy=privacy, plan="adaptive")
        preds = torch.from_numpy(self.score)
        target = torch.from_numpy(self.target)
        parts = [(preds[client::CLIENTS], target[client::CLIENTS]) for client in range(CLIENTS)]
        errors = []
        for _ in range(runs):
            release = simulate(iter(parts), metric, progress=False).release
            errors.append(self._errors(release, Aligned()))
        return np.array(errors)

    def after(self, epsilon: float, runs: int, before: str) -> Errors:
        """Return the errors of carry_over after a release of something else, one of ``AFTER``."""
        generator = np.random.default_rng()
        errors = []
        for _ in range(runs):
            first, second = self._pair(before, generator)
            metric = FederatedROC(privacy=CentralDP(epsilon), plan="carry_over")
            first._release(metric)
            errors.append(second._errors(second._release(metric), Aligned()))
        return np.array(errors)

    def paper(self, epsilon: float, runs: int) -> list[Errors]:
        """Return the errors of the paper's estimator, for each of ``QUANTILES``."""
        return [
            self.errors(epsilon, "paper", runs, quantiles=quantiles, reconstruction=PAPER)
            for quantiles in QUANTILES
        ]

    def oracle(self, epsilon: float, runs: int) -> list[Errors]:
        """Return the errors of the oracle, for each of ``LEAVES``."""
        exact = self._release(FederatedROC())
        generator = np.random.default_rng()
        errors = []
        for leaves in LEAVES:
            oracle = Oracle(exact, leaves, generator)
            errors.append(self.errors(epsilon, oracle.query, runs, reconstruction=oracle))
        return errors

    def of(self, plan: str, epsilon: float, runs: int) -> Errors:
        """Return the errors of a plan of the package, or of one of this module."""
        if plan == "federation":
            return self.federated(epsilon, runs)
        if plan in AFTER:
            return self.after(epsilon, runs, plan)
        return self.errors(epsilon, plan, runs)

    def _pair(self, before: str, generator: np.random.Generator) -> tuple[Curves, Curves]:
        """Return the scores of an earlier release, and those of the release that is measured."""
        examples = len(self.score)
        if before == "others":
            is_first = generator.random(examples) < 0.5
            first = Curves((self.target[is_first], self.score[is_first]))
            rest = (self.target[~is_first], self.score[~is_first])
            return first, Curves(rest, self.reading)
        noise = generator.normal(size=examples)
        logit = noise
        if before == "earlier":
            clipped = self.score.clip(1e-7, 1 - 1e-7)
            logit = 0.8 * np.log(clipped / (1 - clipped)) + 0.5 * noise
        return Curves((self.target, 1 / (1 + np.exp(-logit)))), self

    def _release(self, metric: FederatedROC) -> Release:
        metric.reset()
        metric.update(torch.from_numpy(self.score), torch.from_numpy(self.target))
        return metric.release()

    def _errors(self, release: Release, reconstruction: Reconstruction) -> tuple[float, float]:
        tails = read(release, reconstruction=reconstruction).tails
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # noise may leave a class empty
            roc = roc_from_tails(tails)
            pr = precision_recall_from_tails(tails)
        roc_error = area_error_roc(roc, self._exact_roc)
        return roc_error, area_error_pr(pr, self._exact_pr, self.reading)


class Measured(NamedTuple):
    """The mean of errors or of ratios, and its standard error, each ``(2,)``: ROC, PR."""

    mean: Errors
    error: Errors

    @classmethod
    def of(cls, runs: Errors) -> Measured:
        """Return the mean of the errors of several runs, ``(runs, 2)``."""
        deviation = runs.std(0, ddof=1)
        return cls(np.asarray(runs.mean(0)), np.asarray(deviation / np.sqrt(len(runs))))

    @classmethod
    def best(cls, settings: Sequence[Errors]) -> Measured:
        """Return the least mean of several settings, for each curve by itself."""
        measured = [cls.of(runs) for runs in settings]
        means = np.array([setting.mean for setting in measured])
        deviations = np.array([setting.error for setting in measured])
        best = means.argmin(0)
        return cls(means[best, [0, 1]], deviations[best, [0, 1]])

    @classmethod
    def geometric(cls, ratios: Sequence[Measured]) -> Measured:
        """Return the geometric mean of ratios."""
        means = np.array([ratio.mean for ratio in ratios]).clip(LEAST_RATIO)
        relative = np.array([ratio.error for ratio in ratios]) / means
        mean = np.exp(np.log(means).mean(0))
        return cls(np.asarray(mean), np.asarray(mean * _norm(relative) / len(ratios)))

    def over(self, other: Measured) -> Measured:
        """Return the ratio to other errors."""
        ratio = self.mean / other.mean
        absolute = np.hypot(self.error, ratio * other.error) / other.mean
        return Measured(ratio, np.asarray(absolute))

    def __str__(self) -> str:
        pairs = zip(self.mean, self.error, strict=True)
        return " / ".join(f"{mean:.2f} ± {error:.2f}" for mean, error in pairs)


def _norm(relative: Errors) -> Errors:
    return np.asarray(np.sqrt(np.square(relative).sum(0)))


@dataclass(frozen=True)
class Settings:
    """What is measured of each file."""

    runs: int
    large_runs: int
    """Runs of files with more than ``LARGE`` examples."""
    plans: tuple[str, ...]
    epsilons: tuple[float, ...]
    oracle: bool
    """Whether the oracle is measured, too."""
    reading: Reading
    """How the PR curves of all methods are read."""


class Cell(NamedTuple):
    """One file at one epsilon."""

    scores: str
    epsilon: float
    paper: Measured
    """Errors of the paper's best Q."""
    oracle: Measured | None
    """Errors of the oracle's best number of leaves."""
    plans: dict[str, Measured]
    """Errors of each plan."""


def cells(scores: dict[str, Scores], settings: Settings) -> Iterator[Cell]:
    """Measure file by file."""
    for name, file_scores in scores.items():
        curves = Curves(file_scores, settings.reading)
        for epsilon in settings.epsilons:
            yield cell(name, curves, epsilon, settings)


def cell(name: str, curves: Curves, epsilon: float, settings: Settings) -> Cell:
    """Measure one file at one epsilon."""
    is_large = len(curves.target) > LARGE
    runs = settings.large_runs if is_large else settings.runs
    oracle = None
    if settings.oracle:
        oracle = Measured.best(curves.oracle(epsilon, runs))
    return Cell(
        scores=name,
        epsilon=epsilon,
        paper=Measured.best(curves.paper(epsilon, runs)),
        oracle=oracle,
        plans={plan: Measured.of(curves.of(plan, epsilon, runs)) for plan in settings.plans},
    )


def _numbers(values: Iterable[float], digits: int) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values)


def table(title: str, measured: Iterator[Cell], plans: Sequence[str]) -> list[Cell]:
    """Print one table and its summary, and return its cells."""
    print(f"\n## {title}\n\n| scores | epsilon | paper, best Q | {' | '.join(plans)} |")
    print(f"|---|---|---{'|---' * len(plans)}|")
    done = []
    for row in measured:
        done.append(row)
        columns = [row.scores, str(row.epsilon), _numbers(row.paper.mean, 5)]
        columns += [str(row.plans[plan].over(row.paper)) for plan in plans]
        print(f"| {' | '.join(columns)} |", flush=True)
    for plan in plans:
        print_summary(done, plan)
    return done


def print_summary(done: Sequence[Cell], plan: str) -> None:
    """Print the error of a plan over the paper's, and over the oracle's at each epsilon."""
    ratios = [row.plans[plan].over(row.paper) for row in done]
    total = Measured.geometric(ratios)
    worst = np.max([ratio.mean for ratio in ratios], axis=0)
    median_error = np.median([ratio.error for ratio in ratios])
    largest_error = np.max([ratio.error for ratio in ratios])
    print(
        f"\n{plan}: geometric mean {_numbers(total.mean, 3)} (standard error "
        f"{_numbers(total.error, 3)}), worst {_numbers(worst, 2)}; standard error of a ratio "
        f"{median_error:.2f} in the median, at most {largest_error:.2f}"
    )
    for epsilon in sorted({row.epsilon for row in done}):
        over_oracle = [
            row.plans[plan].over(row.oracle)
            for row in done
            if row.epsilon == epsilon and row.oracle is not None
        ]
        if over_oracle:
            mean = Measured.geometric(over_oracle)
            print(f"  epsilon {epsilon}: {mean} of the oracle's error")


def files(shared: Path, names: list[str]) -> dict[str, Scores]:
    """Return the score files whose name begins with one of ``names``."""
    loaded = {}
    for path in sorted((shared / "data" / "scores").glob("*.npz")):
        if path.stem.startswith(tuple(names)):
            data = np.load(path)
            loaded[path.stem] = (data["y_true"].astype(np.int64), data["y_score"])
    return loaded


class Constant(NamedTuple):
    """A tuned constant and its value in this run."""

    name: str
    value: Any

    @classmethod
    def parsed(cls, assignment: str) -> Constant:
        """Return the constant of an assignment such as ``PILOT_LEAVES=32``; raise if there is none.

        A value has the type of the constant: a float may be a fraction such as ``3/64``, a tuple is
        written as in Python.
        """
        name, _, text = assignment.partition("=")
        if name not in constant_names():
            raise argparse.ArgumentTypeError(
                f"there is no constant {name!r} in torchmetrics_fed.reconstruct.tuning. "
                f"Name one of {', '.join(constant_names())}."
            )
        present = getattr(tuning, name)
        try:
            value = _value_like(present, text)
        except (ValueError, TypeError, SyntaxError, ZeroDivisionError) as error:
            raise argparse.ArgumentTypeError(
                f"expected a value like {present!r} for {name} but got {text!r}."
            ) from error
        return cls(name, value)

    def set(self) -> None:
        """Give the constant its value, for the rest of this process."""
        setattr(tuning, self.name, self.value)


def constant_names() -> list[str]:
    """Return the names of all tuned constants."""
    return [name for name in vars(tuning) if name.isupper()]


def _value_like(present: Any, text: str) -> Any:
    if isinstance(present, tuple):
        return tuple(int(part) for part in ast.literal_eval(text))
    if isinstance(present, int):
        return int(text)
    return float(Fraction(text))


def write_csv(path: Path, done: Sequence[Cell]) -> None:
    """Write one row for each cell, method and curve."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["scores", "epsilon", "method", "curve", "error", "error_se"])
        for row in done:
            methods = {"paper": row.paper, **row.plans}
            if row.oracle is not None:
                methods["oracle"] = row.oracle
            for method, errors in methods.items():
                for place, curve in enumerate(CURVES):
                    numbers = [f"{array[place]:.6g}" for array in errors]
                    writer.writerow([row.scores, row.epsilon, method, curve, *numbers])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    result.add_argument("--runs", type=int, default=100)
    result.add_argument("--large-runs", type=int, default=20)
    result.add_argument("--data", nargs="*", default=["adult", "bank", "synthcover"])
    result.add_argument("--plans", nargs="+", default=list(OURS))
    result.add_argument("--hard", nargs="*", help="names of hard inputs; all if none is given")
    result.add_argument(
        "--other", action="store_true", help="scores of models that no constant was chosen on"
    )
    result.add_argument("--oracle", action="store_true", help="compare with the oracle, too")
    result.add_argument("--reading", choices=get_args(Reading), default="binned")
    result.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    result.add_argument(
        "--set",
        type=Constant.parsed,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a tuned constant; can be given several times",
    )
    result.add_argument("--csv", type=Path)
    return result


def main(words: Sequence[str] | None = None) -> None:
    """Print a table for each kind of scores."""
    arguments = parser().parse_args(words)
    settings = Settings(
        runs=arguments.runs,
        large_runs=arguments.large_runs,
        plans=tuple(arguments.plans),
        epsilons=tuple(arguments.epsilons),
        oracle=arguments.oracle,
        reading=arguments.reading,
    )
    for constant in arguments.set:
        print(f"{constant.name} = {constant.value} instead of {getattr(tuning, constant.name)}")
        constant.set()
    tables: dict[str, dict[str, Scores]] = {}
    if arguments.shared is not None and arguments.data:
        tables["Score files"] = files(Path(arguments.shared), arguments.data)
    elif arguments.data:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
    if arguments.hard is not None:
        names = arguments.hard or list(HARD)
        tables["Hard inputs"] = {name: HARD[name](np.random.default_rng(7)) for name in names}
    if arguments.other:
        tables["Other models"] = {name: make() for name, make in OTHER.items()}
    done = []
    for title, scores in tables.items():
        done += table(title, cells(scores, settings), settings.plans)
    if arguments.csv is not None:
        write_csv(arguments.csv, done)


if __name__ == "__main__":
    main()
