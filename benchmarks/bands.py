"""How often confidence bands and intervals hold the truth, how wide they are, and how wide they would have to be.

    python -m benchmarks.bands --runs 400 --only "*"            # the ten cells of the documentation
    python -m benchmarks.bands --shared FOLDER --runs 200       # all cells

The score files are those of FOLDER/data/scores, with two queries at each epsilon; without FOLDER they are left out.
Other cells are made here: other plans, clients with noise of their own, more clients than noise was calibrated for,
hard scores, and curves of a population, whose examples are drawn again in each run. A curve is held if all of it is.
Behind an interval's mean width stands that of the narrowest one around the same estimates that holds the truth as often
as it should: what an oracle that knows the law of the errors would give.
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
    auroc_interval,
    average_precision_interval,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.simulate import simulate

EPSILONS = (0.1, 0.3, 1.0)
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
TEN = (
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
"""The cells of ``--only "*"``: ties, saturation, few positives, little data, epsilon from 0.3 to 3."""

Floats = NDArray[np.float64]


class Truth(NamedTuple):
    """What bands should hold: points of both curves, and their areas."""

    roc: tuple[torch.Tensor, torch.Tensor]
    pr: tuple[torch.Tensor, torch.Tensor]
    auroc: float
    average_precision: float

    @classmethod
    def exact(cls, scores: Scores) -> Truth:
        """Return the curves of the scores themselves, every corner of the PR curve's steps included."""
        fpr, tpr, _ = roc_curve(*scores, drop_intermediate=False)
        precision, recall, _ = precision_recall_curve(*scores)
        steps = np.r_[recall, recall[1:]], np.r_[precision, precision[:-1]]
        areas = roc_auc_score(*scores), average_precision_score(*scores)
        return cls(_tensors(fpr, tpr), _tensors(*steps), *map(float, areas))

    @classmethod
    def population(cls, share: float, distance: float, deviation: float) -> Truth:
        """Return the curves of normal scores, so far apart, with this share of positives."""
        at = np.linspace(-12 * deviation, 12 * deviation, 20_001)[::-1]
        fpr, tpr = norm.sf(at / deviation), norm.sf((at - distance) / deviation)
        precision = share * tpr / (share * tpr + (1 - share) * fpr)
        areas = np.trapezoid(tpr, fpr), np.trapezoid(precision, tpr)
        return cls(_tensors(fpr, tpr), _tensors(tpr, precision), *map(float, areas))


def always(scores: Scores) -> Callable[[], Scores]:
    """Return what draws the same scores each time."""
    return lambda: scores


class Cell(NamedTuple):
    """One line of the table."""

    name: str
    draw: Callable[[], Scores]
    truth: Truth
    release: Callable[[Scores], Release]
    population: bool = False


def held(cell: Cell, confidence: float = 0.95) -> list[float]:
    """Whether ROC band, PR band, AUROC and AP interval of one release hold the truth, their widths, and both errors."""
    release, (roc, pr, auroc, average_precision) = cell.release(cell.draw()), cell.truth
    bands = [
        make(release, confidence, cell.population) for make in (roc_band, precision_recall_band)
    ]
    areas = [
        make(release, confidence, cell.population)
        for make in (auroc_interval, average_precision_interval)
    ]
    inside = [
        bool(band.contains(*points).all()) for band, points in zip(bands, (roc, pr), strict=True)
    ]
    inside += [
        bool(low <= at <= high)
        for (low, high), at in zip(areas, (auroc, average_precision), strict=True)
    ]
    widths = [float(torch.trapezoid(band.high - band.low, band.x)) for band in bands]
    widths += [float(high - low) for low, high in areas]
    values = auroc_from_counts(release), average_precision_from_counts(release)
    return [
        *inside,
        *widths,
        *(float(value) - at for value, at in zip(values, (auroc, average_precision), strict=True)),
    ]


def once(privacy: Privacy | None, plan: PlanName | None = None) -> Callable[[Scores], Release]:
    """Return what makes a release of scores in one process."""

    def release(scores: Scores) -> Release:
        metric = FederatedROC(
            privacy=privacy, plan=plan, grid="even" if plan == "paper" else "two_sided"
        )
        metric.update(torch.from_numpy(scores[1]), torch.from_numpy(scores[0]))
        return metric.release()

    return release


def again(privacy: Privacy) -> Callable[[Scores], Release]:
    """Return what makes a release that carries over another one of the same scores."""

    def release(scores: Scores) -> Release:
        metric = FederatedROC(privacy=privacy, plan="carry_over")
        for _ in range(2):
            metric.reset()
            metric.update(torch.from_numpy(scores[1]), torch.from_numpy(scores[0]))
            metric.release()
        return metric.release()

    return release


def federated(privacy: Privacy, clients: int, plan: PlanName) -> Callable[[Scores], Release]:
    """Return what makes a release of scores dealt to clients, each with its own draw of noise."""

    def release(scores: Scores) -> Release:
        target, preds = map(torch.from_numpy, scores)
        dealt = ((preds[number::clients], target[number::clients]) for number in range(clients))
        return simulate(dealt, FederatedROC(privacy=privacy, plan=plan), progress=False).release

    return release


def cells(shared: Path | None) -> Iterator[Cell]:
    """All cells, file by file."""
    for path in sorted((shared / "data" / "scores").glob("[ab]*.npz")) if shared else []:
        data = np.load(path)
        scores = data["y_true"].astype(np.int64), data["y_score"]
        truth = Truth.exact(scores)
        for epsilon in EPSILONS:
            yield Cell(
                f"{path.stem}, epsilon {epsilon}",
                always(scores),
                truth,
                once(CentralDP(epsilon), "adaptive"),
            )
    fair = normal(20_000, 0.3, 2.0, 1.5)
    yield from synthetic("normal", fair)
    for name in HARD_CELLS:
        hard = HARD[name](np.random.default_rng(7))
        for epsilon in HARD_CELLS[name]:
            two, mark = once(CentralDP(epsilon), "adaptive"), "*" if (name, epsilon) in TEN else ""
            yield Cell(f"{name}, epsilon {epsilon:g}{mark}", always(hard), Truth.exact(hard), two)
    truth = Truth.population(0.3, 2.0, 1.5)
    for name, release in {
        "exact counts": once(None),
        "epsilon 1": once(CentralDP(1.0), "adaptive"),
    }.items():
        yield Cell(
            f"population, {name}", lambda: normal(5_000, 0.3, 2.0, 1.5), truth, release, True
        )


def synthetic(name: str, scores: Scores) -> Iterator[Cell]:
    """The same scores in every setting."""
    truth = Truth.exact(scores)
    settings = {
        "exact counts": once(None),
        "one query, epsilon 0.3": once(CentralDP(0.3), "single"),
        "one query, epsilon 1": once(CentralDP(1.0), "single"),
        "the paper's tree, epsilon 1": once(CentralDP(1.0), "paper"),
        "two queries, epsilon 0.3": once(CentralDP(0.3), "adaptive"),
        "carried over, epsilon 0.3": again(CentralDP(0.3)),
        "5 clients with LocalDP, two queries, epsilon 1": federated(LocalDP(1.0), 5, "adaptive"),
        "5 clients with LocalDP, one query, epsilon 1": federated(LocalDP(1.0), 5, "single"),
        "12 clients, noise for 4, two queries, epsilon 0.5": federated(
            DistributedDP(0.5, 5), 12, "adaptive"
        ),
        "12 clients, noise for 4, one query, epsilon 0.5": federated(
            DistributedDP(0.5, 5), 12, "single"
        ),
        "Skellam, two queries, epsilon 1": once(
            CentralDP(1.0, mechanism="skellam", delta=1e-6), "adaptive"
        ),
    }
    for setting, release in settings.items():
        yield Cell(f"{name}, {setting}", always(scores), truth, release)


def normal(examples: int, share: float, distance: float, deviation: float) -> Scores:
    """Return sigmoids of normal logits, drawn again."""
    generator = np.random.default_rng()
    target = (generator.random(examples) < share).astype(np.int64)
    return target, 1 / (
        1 + np.exp(1.0 - deviation * generator.standard_normal(examples) - distance * target)
    )


def _tensors(x: Floats, y: Floats) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.astype(np.float64)), torch.from_numpy(y.astype(np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    arguments = parser.parse_args()
    if arguments.shared is None:
        print(
            "No folder with score files: name one with --shared or TORCHMETRICS_FED_SHARED.",
            file=sys.stderr,
        )
    print(f"Coverage at {arguments.confidence} and mean width, {arguments.runs} runs.\n")
    print("| scores | ROC | PR | AUROC | AP |\n|---|---|---|---|---|")
    for cell in cells(arguments.shared and Path(arguments.shared)):
        if arguments.only not in cell.name:
            continue
        figures = np.array([held(cell, arguments.confidence) for _ in range(arguments.runs)])
        means, needed = (
            figures.mean(0),
            2 * np.quantile(np.abs(figures[:, 8:]), arguments.confidence, axis=0),
        )
        oracle = ["", "", *(f", oracle {width:.4f}" for width in needed)]
        parts = zip(means[:4], means[4:8], oracle, strict=True)
        columns = [f"{rate:.3f} ({width:.4f}{beside})" for rate, width, beside in parts]
        print(f"| {cell.name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
