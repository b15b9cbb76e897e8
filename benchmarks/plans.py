"""Area Error of every plan against the paper's estimator at its best Q, in one run, at the same epsilon.

    python -m benchmarks.plans --shared FOLDER --runs 100 --large-runs 20
    python -m benchmarks.plans --shared FOLDER --data adult bank --plans adaptive federation earlier jump

The score files are those of FOLDER/data/scores; with --hard and --other scores are made here, too. Noise is independent
from run to run and from cell to cell. Errors are means; behind a ratio stands its standard error. Results also as CSV
with --csv. Beside the plans of the package there are

    federation   the adaptive plan, over eight clients that each add their share of the noise
    others       carry_over after a release of other examples: of one half, for the curve of the other half
    earlier      carry_over after a release of an earlier model: logits x 0.8, with noise of deviation 0.5
    jump         carry_over after a release of a model that had nothing to do with it
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from benchmarks.hard_scores import HARD, Scores
from benchmarks.other_scores import OTHER
from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, Release
from torchmetrics_fed.functional import area_error_pr, area_error_roc
from torchmetrics_fed.functional.area_error import Reading
from torchmetrics_fed.functional.precision_recall import precision_recall_from_tails
from torchmetrics_fed.functional.roc import roc_from_tails
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.simulate import simulate
from torchmetrics_fed.typing import GridName

EPSILONS = (0.1, 0.3, 1.0)
QUANTILES = (16, 64, 256, 1024)
PAPER = Reconstruction(method="quantile", non_negative=False)
"""The paper's reconstruction: its post-processing is least squares alone."""
OURS = ("single", "adaptive", "carry_over")
AFTER = ("others", "earlier", "jump")
LARGE = 100_000
CLIENTS, LEAST = 8, 0.01
ORACLE = {0.1: (0.21, 0.19), 0.3: (0.31, 0.28), 1.0: (0.43, 0.37), 3.0: (0.46, 0.35)}
"""Error over the paper's of flat leaves placed, filled and weighed by the true densities, on the score files."""

Errors = NDArray[np.float64]


class Curves:
    """One score file: its exact curves, and errors of private ones."""

    def __init__(self, scores: Scores) -> None:
        self.target, self.score = scores
        self._exact = roc_curve(*scores, drop_intermediate=True), precision_recall_curve(*scores)

    def errors(
        self,
        epsilon: float,
        plan: Any,
        runs: int,
        quantiles: int = 1024,
        how: Reconstruction | None = None,
    ) -> Errors:
        """ROC and PR Area Error of each run, ``(runs, 2)``."""
        how = replace(how or Reconstruction(), quantiles=quantiles)
        grid: GridName = "even" if plan == "paper" else "two_sided"
        metric = FederatedROC(quantiles=quantiles, grid=grid, privacy=CentralDP(epsilon), plan=plan)
        result = []
        for _ in range(runs + (plan == "carry_over")):
            metric.reset()
            metric.update(torch.from_numpy(self.score), torch.from_numpy(self.target))
            result.append(self._errors(metric.release(), how))
        return np.array(result[-runs:])  # the first of a carried-over plan has nothing to carry

    def federated(self, epsilon: float, runs: int) -> Errors:
        """Those of the adaptive plan over clients whose noise adds up to that of one process."""
        metric = FederatedROC(
            privacy=DistributedDP(epsilon, min_clients=CLIENTS, max_colluding=0), plan="adaptive"
        )
        preds, target = torch.from_numpy(self.score), torch.from_numpy(self.target)
        parts = [(preds[client::CLIENTS], target[client::CLIENTS]) for client in range(CLIENTS)]
        releases = (simulate(iter(parts), metric, progress=False).release for _ in range(runs))
        return np.array([self._errors(release, Reconstruction()) for release in releases])

    def after(self, epsilon: float, runs: int, before: str) -> Errors:
        """Those of carry_over after a release of something else."""
        generator, result = np.random.default_rng(), []
        for _ in range(runs):
            metric = FederatedROC(privacy=CentralDP(epsilon), plan="carry_over")
            score, target, curves = self.score, self.target, self
            if before == "others":
                first = generator.random(len(score)) < 0.5
                score, target, curves = (
                    score[first],
                    target[first],
                    Curves((target[~first], score[~first])),
                )
            elif before == "earlier":
                clipped = score.clip(1e-7, 1 - 1e-7)
                logit = 0.8 * np.log(clipped / (1 - clipped)) + 0.5 * generator.normal(
                    size=len(score)
                )
                score = 1 / (1 + np.exp(-logit))
            else:
                score = 1 / (1 + np.exp(-generator.normal(size=len(score))))
            metric.update(torch.from_numpy(score), torch.from_numpy(target))
            metric.release()
            metric.reset()
            metric.update(torch.from_numpy(curves.score), torch.from_numpy(curves.target))
            result.append(curves._errors(metric.release(), Reconstruction()))
        return np.array(result)

    def of(self, plan: str, epsilon: float, runs: int) -> Errors:
        """Those of a plan of the package, or of one of those above."""
        if plan == "federation":
            return self.federated(epsilon, runs)
        return (
            self.after(epsilon, runs, plan) if plan in AFTER else self.errors(epsilon, plan, runs)
        )

    def _errors(self, release: Release, how: Reconstruction) -> tuple[float, float]:
        tails = read(release, reconstruction=how).tails
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # noise may leave a class empty
            roc, pr = roc_from_tails(tails), precision_recall_from_tails(tails)
        reading: Reading = (
            "linear" if how.method == "quantile" else "binned"
        )  # the paper's curves have no bins
        return area_error_roc(roc, self._exact[0]), area_error_pr(pr, self._exact[1], reading)


class Cell(NamedTuple):
    """One file at one epsilon."""

    scores: str
    epsilon: float
    paper: Errors
    """Of the paper's best Q, ``(2,)``."""
    paper_error: Errors
    ratios: dict[str, Errors]
    """By plan, ``(2,)``."""
    errors: dict[str, Errors]
    """Standard errors of the ratios."""


def cells(
    files: dict[str, Scores],
    runs: int,
    large_runs: int,
    plans: tuple[str, ...],
    epsilons: tuple[float, ...],
) -> Iterator[Cell]:
    """Measure file by file."""
    for name, scores in files.items():
        curves, several = Curves(scores), large_runs if len(scores[0]) > LARGE else runs
        for epsilon in epsilons:
            paper = [curves.errors(epsilon, "paper", several, q, PAPER) for q in QUANTILES]
            means, deviations = (np.array([f(e) for e in paper]) for f in (_mean, _standard_error))
            best = means.argmin(0)
            at, off = means[best, [0, 1]], deviations[best, [0, 1]]
            ratios, errors = {}, {}
            for plan in plans:
                ours = curves.of(plan, epsilon, several)
                ratios[plan] = _mean(ours) / at
                errors[plan] = ratios[plan] * np.hypot(
                    _standard_error(ours) / _mean(ours), off / at
                )
            yield Cell(name, epsilon, at, off, ratios, errors)


def _mean(errors: Errors) -> Errors:
    return np.asarray(errors.mean(0))


def _standard_error(errors: Errors) -> Errors:
    return np.asarray(errors.std(0, ddof=1) / np.sqrt(len(errors)))


def table(title: str, measured: Iterator[Cell], plans: tuple[str, ...]) -> list[Cell]:
    """Print one table and its summary."""
    print(f"\n## {title}\n\n| scores | epsilon | paper, best Q | {' | '.join(plans)} |")
    print(f"|---|---|---{'|---' * len(plans)}|")
    done = []
    for cell in measured:
        done.append(cell)
        paper = " / ".join(f"{value:.5f}" for value in cell.paper)
        ours = [
            " / ".join(
                f"{r:.2f} ± {e:.2f}"
                for r, e in zip(cell.ratios[plan], cell.errors[plan], strict=True)
            )
            for plan in plans
        ]
        print(f"| {cell.scores} | {cell.epsilon} | {paper} | {' | '.join(ours)} |", flush=True)
    for plan in plans:
        ratios = np.array([cell.ratios[plan] for cell in done])
        mean = " / ".join(
            f"{value:.3f}" for value in np.exp(np.log(ratios.clip(LEAST)).mean(0))
        )  # some errors are 0
        worst = " / ".join(f"{value:.2f}" for value in ratios.max(0))
        print(f"\n{plan}: geometric mean {mean}, worst {worst}")
        if title == "Score files":
            for epsilon in sorted({cell.epsilon for cell in done} & set(ORACLE)):
                ratios = np.array([cell.ratios[plan] for cell in done if cell.epsilon == epsilon])
                over = np.exp(np.log(ratios).mean(0)) / ORACLE[epsilon]
                print(
                    f"  epsilon {epsilon}: {' / '.join(f'{value:.2f}' for value in over)} of the oracle's error"
                )
    return done


def files(shared: Path, names: list[str]) -> dict[str, Scores]:
    """Return the score files whose name begins with one of ``names``."""
    paths = sorted((shared / "data" / "scores").glob("*.npz"))
    loaded = {
        path.stem: np.load(path)
        for path in paths
        if any(path.stem.startswith(name) for name in names)
    }
    return {
        name: (data["y_true"].astype(np.int64), data["y_score"]) for name, data in loaded.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--large-runs", type=int, default=20)
    parser.add_argument("--data", nargs="*", default=["adult", "bank", "synthcover"])
    parser.add_argument("--plans", nargs="+", default=list(OURS))
    parser.add_argument("--hard", nargs="*", help="names of hard inputs; all if none is given")
    parser.add_argument(
        "--other", action="store_true", help="scores of models that no constant was chosen on"
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    plans = tuple(arguments.plans)
    runs = arguments.runs, arguments.large_runs, plans, tuple(arguments.epsilons)
    done = []
    if arguments.shared is not None and arguments.data:
        done += table(
            "Score files", cells(files(Path(arguments.shared), arguments.data), *runs), plans
        )
    elif arguments.data:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
    if arguments.hard is not None:
        chosen = {name: HARD[name](np.random.default_rng(7)) for name in arguments.hard or HARD}
        done += table("Hard inputs", cells(chosen, *runs), plans)
    if arguments.other:
        done += table(
            "Other models", cells({name: make() for name, make in OTHER.items()}, *runs), plans
        )
    if arguments.csv is not None:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["scores", "epsilon", "plan", "curve", "paper", "paper_se", "ratio", "ratio_se"]
            )
            for cell in done:
                for plan in plans:
                    for i, curve in enumerate(("roc", "pr")):
                        figures = (
                            cell.paper[i],
                            cell.paper_error[i],
                            cell.ratios[plan][i],
                            cell.errors[plan][i],
                        )
                        writer.writerow(
                            [
                                cell.scores,
                                cell.epsilon,
                                plan,
                                curve,
                                *(f"{value:.6g}" for value in figures),
                            ]
                        )


if __name__ == "__main__":
    main()
