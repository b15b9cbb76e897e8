"""Coverage and width of confidence bands and intervals, and the width that they would need.

    python -m benchmarks.bands --runs 400 --only "*"            # the ten cells of the documentation
    python -m benchmarks.bands --shared FOLDER --runs 200       # all cells

The score files are those of FOLDER/data/scores, with two queries at each epsilon; without FOLDER
they are left out. The other cells are made here: other plans, clients with noise of their own, more
clients than the noise was calibrated for, hard scores, and curves of a population, whose examples
are drawn again in each run. A curve is held if all of it is in its band. After the mean width of an
interval stands that of an oracle that knows the law of the errors: the width of the narrowest
interval around the same estimates that holds the truth as often as it should.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from benchmarks.hard_scores import HARD, Scores
from torchmetrics_fed import CentralDP, DistributedDP, FederatedROC, LocalDP, Privacy, Release
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import (
    Band,
    Interval,
    auroc_interval,
    average_precision_interval,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.simulate import simulate
from torchmetrics_fed.typing import GridName

EPSILONS = (0.1, 0.3, 1.0)
"""The epsilons of the score files."""
HARD_CELLS: dict[str, tuple[float, ...]] = {
    "1% positives": (0.3, 1.0),
    "20 positives": (0.3, 1.0),
    "kNN, 6 values": (0.3, 1.0, 3.0),
    "20 values": (1.0, 3.0),
    "forest, 50 values": (0.3, 1.0),
    "saturated network": (0.3, 1.0),
    "200 examples": (1.0, 3.0),
    "1,000 examples": (0.3,),
    "AUROC 0.998": (1.0,),
    "separated": (0.3, 1.0),
}
"""The epsilons of each kind of hard scores."""
DOCUMENTED = (
    ("kNN, 6 values", 1.0),
    ("20 values", 3.0),
    ("forest, 50 values", 0.3),
    ("saturated network", 0.3),
    ("saturated network", 1.0),
    ("1% positives", 1.0),
    ("200 examples", 3.0),
    ("1,000 examples", 0.3),
    ("AUROC 0.998", 1.0),
    ("separated", 1.0),
)
"""The cells of ``--only "*"``: ties, saturation, few positives, little data, epsilon 0.3 to 3."""

Floats = NDArray[np.float64]
Points = tuple[torch.Tensor, torch.Tensor]
"""The coordinates of points of a curve."""
MakeRelease = Callable[[Scores], Release]


class Truth(NamedTuple):
    """The values that bands and intervals should hold: points of both curves, and their areas."""

    roc: Points
    pr: Points
    auroc: float
    average_precision: float

    @classmethod
    def exact(cls, scores: Scores) -> Truth:
        """Return the curves of the scores, every corner of the PR curve's steps included."""
        target, score = scores
        fpr, tpr, _ = roc_curve(target, score, drop_intermediate=False)
        precision, recall, _ = precision_recall_curve(target, score)
        corner_recall = np.concatenate([recall, recall[1:]])
        corner_precision = np.concatenate([precision, precision[:-1]])
        return cls(
            roc=_points(fpr, tpr),
            pr=_points(corner_recall, corner_precision),
            auroc=float(roc_auc_score(target, score)),
            average_precision=float(average_precision_score(target, score)),
        )

    @classmethod
    def population(cls, share: float, distance: float, deviation: float) -> Truth:
        """Return the curves of normal scores, so far apart, with this share of positives."""
        thresholds = np.linspace(-12 * deviation, 12 * deviation, 20_001)[::-1]
        fpr = norm.sf(thresholds / deviation)
        tpr = norm.sf((thresholds - distance) / deviation)
        precision = share * tpr / (share * tpr + (1 - share) * fpr)
        return cls(
            roc=_points(fpr, tpr),
            pr=_points(tpr, precision),
            auroc=float(np.trapezoid(tpr, fpr)),
            average_precision=float(np.trapezoid(precision, tpr)),
        )


def _points(x: Floats, y: Floats) -> Points:
    return torch.from_numpy(x.astype(np.float64)), torch.from_numpy(y.astype(np.float64))


def always(scores: Scores) -> Callable[[], Scores]:
    """Return a function that draws the same scores each time."""
    return lambda: scores


class Cell(NamedTuple):
    """One line of the table."""

    name: str
    draw: Callable[[], Scores]
    truth: Truth
    release: MakeRelease
    population: bool = False
    """Whether the truth is that of the population rather than of the scores."""


class BandResult(NamedTuple):
    """Whether a band or an interval holds the truth, and its width."""

    holds: bool
    width: float


def held(cell: Cell, confidence: float = 0.95) -> list[float]:
    """Return the results of one release.

    They are, for ROC band, PR band, AUROC interval and AP interval, whether each holds the truth;
    then the four widths; then the errors of AUROC and AP.
    """
    release = cell.release(cell.draw())
    truth = cell.truth
    roc = roc_band(release, confidence, cell.population)
    pr = precision_recall_band(release, confidence, cell.population)
    auroc = auroc_interval(release, confidence, cell.population)
    average_precision = average_precision_interval(release, confidence, cell.population)
    results = [
        _band_result(roc, truth.roc),
        _band_result(pr, truth.pr),
        _interval_result(auroc, truth.auroc),
        _interval_result(average_precision, truth.average_precision),
    ]
    errors = [
        float(auroc_from_counts(release)) - truth.auroc,
        float(average_precision_from_counts(release)) - truth.average_precision,
    ]
    holds = [result.holds for result in results]
    widths = [result.width for result in results]
    return [*holds, *widths, *errors]


def _band_result(band: Band, points: Points) -> BandResult:
    x, y = points
    width = torch.trapezoid(band.high - band.low, band.x)
    return BandResult(bool(band.contains(x, y).all()), float(width))


def _interval_result(interval: Interval, truth: float) -> BandResult:
    low, high = interval
    return BandResult(bool(low <= truth <= high), float(high - low))


class Once:
    """Makes a release of scores in one process."""

    def __init__(self, privacy: Privacy | None, plan: PlanName | None) -> None:
        self._privacy = privacy
        self._plan = plan

    def __call__(self, scores: Scores) -> Release:
        target, preds = scores
        grid: GridName = "even" if self._plan == "paper" else "two_sided"
        metric = FederatedROC(privacy=self._privacy, plan=self._plan, grid=grid)
        metric.update(torch.from_numpy(preds), torch.from_numpy(target))
        return metric.release()


def once(privacy: Privacy | None, plan: PlanName | None = None) -> MakeRelease:
    """Return a function that makes a release of scores in one process."""
    return Once(privacy, plan)


class CarriedOver:
    """Makes a release that carries over another release of the same scores."""

    def __init__(self, privacy: Privacy) -> None:
        self._privacy = privacy

    def __call__(self, scores: Scores) -> Release:
        target, preds = scores
        metric = FederatedROC(privacy=self._privacy, plan="carry_over")
        for _ in range(2):
            metric.reset()
            metric.update(torch.from_numpy(preds), torch.from_numpy(target))
            metric.release()
        return metric.release()


class Federated:
    """Makes a release of scores dealt to clients, each with its own draw of noise."""

    def __init__(self, privacy: Privacy, clients: int, plan: PlanName) -> None:
        self._privacy = privacy
        self._clients = clients
        self._plan = plan

    def __call__(self, scores: Scores) -> Release:
        target, preds = map(torch.from_numpy, scores)
        clients = [
            (preds[number :: self._clients], target[number :: self._clients])
            for number in range(self._clients)
        ]
        metric = FederatedROC(privacy=self._privacy, plan=self._plan)
        return simulate(clients, metric, progress=False).release


def federated(privacy: Privacy, clients: int, plan: PlanName) -> MakeRelease:
    """Return a function that makes a release of scores dealt to clients."""
    return Federated(privacy, clients, plan)


def cells(shared: Path | None) -> Iterator[Cell]:
    """Yield all cells."""
    if shared is not None:
        yield from file_cells(shared)
    yield from synthetic("normal", normal(20_000, 0.3, 2.0, 1.5))
    yield from hard_cells()
    truth = Truth.population(0.3, 2.0, 1.5)
    settings = {
        "exact counts": once(None),
        "epsilon 1": once(CentralDP(1.0), "adaptive"),
    }
    for name, release in settings.items():
        yield Cell(
            name=f"population, {name}",
            draw=lambda: normal(5_000, 0.3, 2.0, 1.5),
            truth=truth,
            release=release,
            population=True,
        )


def file_cells(shared: Path) -> Iterator[Cell]:
    """Yield the cells of the score files."""
    for path in sorted((shared / "data" / "scores").glob("[ab]*.npz")):
        data = np.load(path)
        scores = (data["y_true"].astype(np.int64), data["y_score"])
        truth = Truth.exact(scores)
        for epsilon in EPSILONS:
            name = f"{path.stem}, epsilon {epsilon}"
            yield Cell(name, always(scores), truth, once(CentralDP(epsilon), "adaptive"))


def hard_cells() -> Iterator[Cell]:
    """Yield the cells of hard scores. A star marks those of the documentation."""
    for name, epsilons in HARD_CELLS.items():
        scores = HARD[name](np.random.default_rng(7))
        truth = Truth.exact(scores)
        for epsilon in epsilons:
            mark = "*" if (name, epsilon) in DOCUMENTED else ""
            release = once(CentralDP(epsilon), "adaptive")
            yield Cell(f"{name}, epsilon {epsilon:g}{mark}", always(scores), truth, release)


def synthetic(name: str, scores: Scores) -> Iterator[Cell]:
    """Yield cells of the same scores in every setting."""
    local = LocalDP(1.0)
    distributed = DistributedDP(0.5, 5)
    skellam = CentralDP(1.0, mechanism="skellam", delta=1e-6)
    settings: dict[str, MakeRelease] = {
        "exact counts": once(None),
        "one query, epsilon 0.3": once(CentralDP(0.3), "single"),
        "one query, epsilon 1": once(CentralDP(1.0), "single"),
        "the paper's tree, epsilon 1": once(CentralDP(1.0), "paper"),
        "two queries, epsilon 0.3": once(CentralDP(0.3), "adaptive"),
        "carried over, epsilon 0.3": CarriedOver(CentralDP(0.3)),
        "5 clients with LocalDP, two queries, epsilon 1": federated(local, 5, "adaptive"),
        "5 clients with LocalDP, one query, epsilon 1": federated(local, 5, "single"),
        "12 clients, noise for 4, two queries, epsilon 0.5": federated(distributed, 12, "adaptive"),
        "12 clients, noise for 4, one query, epsilon 0.5": federated(distributed, 12, "single"),
        "Skellam, two queries, epsilon 1": once(skellam, "adaptive"),
    }
    truth = Truth.exact(scores)
    for setting, release in settings.items():
        yield Cell(f"{name}, {setting}", always(scores), truth, release)


def normal(examples: int, share: float, distance: float, deviation: float) -> Scores:
    """Return sigmoids of normal logits, new ones at each call."""
    generator = np.random.default_rng()
    target = (generator.random(examples) < share).astype(np.int64)
    logits = deviation * generator.standard_normal(examples) + distance * target - 1.0
    return target, 1 / (1 + np.exp(-logits))


def row(cell: Cell, runs: int, confidence: float) -> str:
    """Return the line of a cell: coverage, width and, for intervals, the oracle's width."""
    results = np.array([held(cell, confidence) for _ in range(runs)])
    coverage = results[:, :4].mean(0)
    width = results[:, 4:8].mean(0)
    oracle = 2 * np.quantile(np.abs(results[:, 8:]), confidence, axis=0)
    columns = [
        f"{coverage[0]:.3f} ({width[0]:.4f})",
        f"{coverage[1]:.3f} ({width[1]:.4f})",
        f"{coverage[2]:.3f} ({width[2]:.4f}, oracle {oracle[0]:.4f})",
        f"{coverage[3]:.3f} ({width[3]:.4f}, oracle {oracle[1]:.4f})",
    ]
    return f"| {cell.name} | {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    arguments = parser.parse_args()
    shared = None
    if arguments.shared:
        shared = Path(arguments.shared)
    else:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
    print(f"Coverage at {arguments.confidence} and mean width, {arguments.runs} runs.\n")
    print("| scores | ROC | PR | AUROC | AP |\n|---|---|---|---|---|")
    for cell in cells(shared):
        if arguments.only in cell.name:
            print(row(cell, arguments.runs, arguments.confidence), flush=True)


if __name__ == "__main__":
    main()
