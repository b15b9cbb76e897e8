"""Coverage and width of confidence bands and intervals, and the width that they would need.

    python -m benchmarks.bands --population --runs 400          # of populations: the documentation
    python -m benchmarks.bands --runs 400 --only "*"            # of the examples: ten cells
    python -m benchmarks.bands --shared FOLDER --runs 200       # of the examples: all cells

With ``--population``, intervals are those of a population whose examples are drawn again in each
run (:mod:`benchmarks.populations`). After the coverage stands the mean width over the width that is
needed: for a number the range of 95% of its estimates, for a curve the band around its mean that
holds 95% of the estimated curves as a whole. A curve is held if all points from one in 10,000 on
are in its band.

Without it, intervals are those of the examples themselves. The score files are those of
FOLDER/data/scores, with two queries at each epsilon; without FOLDER they are left out. The other
cells are made here: other plans, clients with noise of their own, more clients than the noise was
calibrated for, and hard scores. A curve is held if all of it is in its band. After the mean width
of an interval stands that of an oracle that knows the law of the errors: the width of the narrowest
interval around the same estimates that holds the truth as often as it should.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from benchmarks.hard_scores import HARD, Scores
from benchmarks.populations import POPULATIONS, Population, true_counts
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedROC,
    LocalDP,
    Privacy,
    Release,
    ScoreGrid,
)
from torchmetrics_fed import functional as F
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

LEAST_RATE = 1e-4
"""Points of curves of a population are judged from this false positive rate, or recall, on."""

LEAST_TIE = 2e-3
"""Part of the positives in one bin from which on their scores are ties of the population."""

LEAST_DEVIATION = 1e-9
"""Least standard deviation of an estimate that a width is divided by."""

TEN_CLASSES = "mean of ten classes, 10,000"
"""The name of the row of several classes."""

CLASSES_EXAMPLES = 10_000
"""Examples of ten classes."""

CLASSES_TRUE_EXAMPLES = 1_000_000
"""Examples that stand for the population of ten classes."""

RATES = np.unique(
    np.concatenate([np.linspace(0.0, 1.0, 201)[1:-1], expit(np.linspace(-9.0, 9.0, 181))])
)
"""False positive rates, or recalls, at which the needed width of a band is measured."""

OTHER_NUMBERS: dict[str, Callable[[F.Histograms], torch.Tensor]] = {
    "Youden": lambda histograms: F.youden(histograms).value,
    "best F1": lambda histograms: F.best_f1(histograms).value,
    "Brier": lambda histograms: F.calibration_from_counts(histograms).brier_score,
    "ECE": lambda histograms: F.calibration_from_counts(histograms).expected_calibration_error,
}
"""Numbers beside the areas."""

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
    def population(cls, counts: Floats) -> Truth:
        """Return the curves of a population that such counts on bins stand for."""
        fp, tp = np.concatenate([np.zeros((2, 1)), counts[:, ::-1].cumsum(1)], 1)
        fpr = fp / fp[-1]
        recall = tp / tp[-1]
        precision = tp[1:] / np.maximum(tp[1:] + fp[1:], 1.0)
        # a bin with many scores is a tie, and the PR curve has a corner there
        is_tied = np.diff(recall) > LEAST_TIE
        corners = np.flatnonzero(is_tied)
        pr_recall = np.concatenate([recall[1:], np.nextafter(recall[corners], 1.0)])
        pr_precision = np.concatenate([precision, precision[corners]])
        is_shown = (pr_recall >= LEAST_RATE) & (pr_recall <= 1 - LEAST_RATE)
        is_roc_shown = (fpr >= LEAST_RATE) & (fpr <= 1 - LEAST_RATE)
        return cls(
            roc=_points(fpr[is_roc_shown], recall[is_roc_shown]),
            pr=_points(pr_recall[is_shown], pr_precision[is_shown]),
            auroc=float(np.trapezoid(recall, fpr)),
            average_precision=float((np.diff(recall) * precision).sum()),
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
    roc = roc_band(release, confidence, of="examples")
    pr = precision_recall_band(release, confidence, of="examples")
    auroc = auroc_interval(release, confidence, of="examples")
    average_precision = average_precision_interval(release, confidence, of="examples")
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


class Measured(NamedTuple):
    """One value in one run: whether its interval or band holds the truth, the width, the error."""

    holds: bool
    width: float
    errors: Floats
    """Of the number, or of the curve at :data:`RATES`."""


def population_row(
    population: Population, runs: int, confidence: float, *, exact: bool
) -> list[str]:
    """Return coverage and width over need of both areas, both curves, and other numbers."""
    counts = true_counts(population.law)
    truth = Truth.population(counts)
    edges = ScoreGrid.two_sided().edges
    true_numbers = {
        name: float(function(F.read(torch.from_numpy(counts), edges)))
        for name, function in OTHER_NUMBERS.items()
    }
    privacy = None
    if not exact:
        privacy = CentralDP(population.epsilon)
    generator = np.random.default_rng()
    results: dict[str, list[Measured]] = defaultdict(list)
    for _ in range(runs):
        release = once(privacy)(population.law(generator, population.examples))
        for name, measured in _measured(release, truth, true_numbers, confidence).items():
            results[name].append(measured)
    return [_summary(measured, confidence) for measured in results.values()]


def _measured(
    release: Release, truth: Truth, true_numbers: dict[str, float], confidence: float
) -> dict[str, Measured]:
    histograms = F.read(release)
    results = {}
    numbers: dict[str, tuple[Callable[[F.Histograms], torch.Tensor], float]] = {
        "AUROC": (F.auroc_from_counts, truth.auroc),
        "AP": (F.average_precision_from_counts, truth.average_precision),
    }
    numbers |= {name: (OTHER_NUMBERS[name], value) for name, value in true_numbers.items()}
    for name, (function, value) in numbers.items():
        low, high = F.intervals(release, function, confidence)["value"]
        error = float(function(histograms)) - value
        results[name] = Measured(bool(low <= value <= high), float(high - low), np.array([error]))
        if name == "AP":
            results |= _measured_curves(release, truth, confidence)
    return results


def _measured_curves(release: Release, truth: Truth, confidence: float) -> dict[str, Measured]:
    curve = F.roc_from_counts(release)
    tpr = np.interp(RATES, curve.fpr.numpy(), curve.tpr.numpy())
    precision, recall, _ = F.precision_recall_from_counts(release)
    order = np.searchsorted(recall.flip(0).numpy(), RATES)
    at_recall = precision.flip(0).numpy()[np.minimum(order, len(recall) - 1)]
    roc = _band_result(roc_band(release, confidence), truth.roc)
    pr = _band_result(precision_recall_band(release, confidence), truth.pr)
    return {"ROC": Measured(*roc, tpr), "PR": Measured(*pr, at_recall)}


def _summary(measured: list[Measured], confidence: float) -> str:
    """Return coverage, and mean width over the width that is needed."""
    coverage = np.mean([result.holds for result in measured])
    width = np.mean([result.width for result in measured])
    errors = np.stack([result.errors for result in measured])
    if errors.shape[1] == 1:
        low, high = np.quantile(errors, [(1 - confidence) / 2, (1 + confidence) / 2])
        need = float(high - low)
    else:
        centred = errors - errors.mean(0)
        deviation = np.maximum(centred.std(0), LEAST_DEVIATION)
        factor = np.quantile(np.abs(centred / deviation).max(1), confidence)
        need = float(2 * factor * np.trapezoid(deviation, RATES))
    return f"{coverage:.3f} ({width / max(need, LEAST_DEVIATION):.2f})"


def ten_classes(generator: torch.Generator, examples: int) -> Points:
    """Return softmax scores and the classes of examples."""
    target = torch.randint(0, 10, (examples,), generator=generator)
    logits = torch.randn(examples, 10, generator=generator)
    logits[torch.arange(examples), target] += 2
    return logits.softmax(1), target


def ten_classes_row(runs: int, confidence: float, *, exact: bool) -> list[str]:
    """Return coverage and width over need of the mean areas of ten classes, epsilon 1."""
    generator = torch.Generator().manual_seed(13)
    privacy = None
    if not exact:
        privacy = CentralDP(1.0)
    population = FederatedROC("multiclass", num_classes=10)
    population.update(*ten_classes(generator, CLASSES_TRUE_EXAMPLES))
    functions: tuple[Callable[..., torch.Tensor], ...] = (
        F.auroc_from_counts,
        F.average_precision_from_counts,
    )
    results: dict[int, list[Measured]] = defaultdict(list)
    for _ in range(runs):
        metric = FederatedROC("multiclass", num_classes=10, privacy=privacy)
        metric.update(*ten_classes(generator, CLASSES_EXAMPLES))
        release = metric.release()
        for place, function in enumerate(functions):
            value = float(function(population.release(), average="macro"))
            low, high = F.intervals(release, function, confidence, average="macro")["value"]
            error = float(function(release, average="macro")) - value
            held_truth = bool(low <= value <= high)
            results[place].append(Measured(held_truth, float(high - low), np.array([error])))
    return [_summary(measured, confidence) for measured in results.values()]


def print_populations(runs: int, confidence: float, only: str, *, exact: bool) -> None:
    """Print the table of populations."""
    names = ["AUROC", "AP", "ROC", "PR", *OTHER_NUMBERS]
    print(f"Coverage at {confidence} and width over need, {runs} runs.\n")
    print(f"| population | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for name, population in POPULATIONS.items():
        if only in name:
            row = population_row(population, runs, confidence, exact=exact)
            print(f"| {name} | {' | '.join(row)} |", flush=True)
    if only in TEN_CLASSES:
        row = ten_classes_row(runs, confidence, exact=exact)
        print(f"| {TEN_CLASSES} | {' | '.join(row)} | {'| ' * (len(names) - 2)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=os.environ.get("TORCHMETRICS_FED_SHARED"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--population", action="store_true", help="intervals of populations")
    parser.add_argument("--exact", action="store_true", help="of populations, from exact counts")
    arguments = parser.parse_args()
    if arguments.population:
        print_populations(
            arguments.runs, arguments.confidence, arguments.only, exact=arguments.exact
        )
        return
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
