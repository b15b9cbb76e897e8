"""Threat 12 for every function here: whatever was summed, values are finite and inside their ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, Query, Release, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.functional import (
    calibration_line,
    cumulative_gains,
    kolmogorov_smirnov,
    net_benefit,
    operating,
    population_stability_index,
    predictive_values,
    recalibrate,
)
from torchmetrics_fed.functional.calibration import calibration_from_counts
from torchmetrics_fed.functional.calls import confusion_at
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts, mann_whitney_u
from torchmetrics_fed.functional.tradeoffs import (
    area_under_gain,
    det_from_counts,
    precision_recall_gain_from_counts,
)
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.release import Sum

SPEC = Spec("binary", 1, ScoreGrid(bins=16), CentralDP(1.0))
QUERIES = [Query(Tree((4, 4))), Query(Tree.binary(16))]
RELEASES = 5_000  # of each query
Histograms = Release | Tensor
Values = Callable[[Histograms, Reconstruction], tuple[Tensor, ...]]

# functions whose every value is in [0, 1], thresholds of the unit interval included
FRACTIONS: dict[str, Values] = {
    "auroc": lambda s, how: (auroc_from_counts(s, None, how),),
    "auroc_max_fpr": lambda s, how: (auroc_from_counts(s, None, how, 0.1),),
    "average_precision": lambda s, how: (average_precision_from_counts(s, None, how),),
    "det": lambda s, how: det_from_counts(s, None, how),
    "gain": lambda s, how: precision_recall_gain_from_counts(s, None, how)[:3],
    "calibration": lambda s, how: calibration_from_counts(s, None, how)[:4],
    "recall_at_precision": lambda s, how: operating.recall_at_precision(read(s, None, how), 0.7),
    "precision_at_recall": lambda s, how: operating.precision_at_recall(read(s, None, how), 0.7),
    "sensitivity_at_specificity": lambda s, how: operating.sensitivity_at_specificity(
        read(s, None, how), 0.7
    ),
    "specificity_at_sensitivity": lambda s, how: operating.specificity_at_sensitivity(
        read(s, None, how), 0.7
    ),
    "best_f1": lambda s, how: operating.best_f1(read(s, None, how)),
    "youden": lambda s, how: operating.youden(read(s, None, how)),
    "kolmogorov_smirnov": lambda s, how: (kolmogorov_smirnov(read(s, None, how)),),
}
WAYS = [Reconstruction(), Reconstruction(non_negative=False, least_squares=False)]
pytestmark = pytest.mark.filterwarnings("ignore:No (positive |negative )?examples")


def releases(query: Query, number: int) -> Iterator[Release]:
    generator = torch.Generator().manual_seed(9)
    for turn in range(number):
        scale = 10 ** (turn % 16)
        cells = torch.randint(-scale, scale + 1, SPEC.shape(query), generator=generator)
        yield Release((Sum(SPEC, query, cells.abs() if turn % 3 == 0 else cells),))


def check(source: Histograms, how: Reconstruction) -> None:
    for name, function in FRACTIONS.items():
        for value in function(source, how):
            assert bool(((value >= 0) & (value <= 1)).all()), name
    leaf = read(source, None, how).leaf.double().clamp(min=0)
    negatives, positives = leaf.sum(-1).unbind(-1)
    u = mann_whitney_u(read(source, None, how))
    assert bool(((u >= 0) & (u <= negatives * positives * (1 + 1e-12))).all())
    count = calibration_from_counts(source, None, how).examples
    assert torch.allclose(count.sum(-1), negatives + positives, rtol=1e-12)
    matrix = confusion_at(read(source, None, how), 0.3).matrix.double()
    assert bool((matrix >= 0).all())
    assert torch.allclose(matrix.sum((-1, -2)), negatives + positives, rtol=1e-12)
    area, total = (
        area_under_gain(read(source, None, how)),
        read(source, None, how).tails.total.clamp(min=0),
    )
    lowest = torch.where(total[..., 1] > 0, -total[..., 0] / (2 * total[..., 1]), 0.0)
    assert bool((area.isfinite() & (area <= 1) & (area >= lowest)).all())


@pytest.mark.parametrize("how", WAYS, ids=["default", "raw"])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.tree.branching))
def test_any_release_gives_values_in_range(query: Query, how: Reconstruction) -> None:
    """All at once: functions of histograms with leading axes do for each what they do for one."""
    leaf = torch.stack([read(release, None, how).leaf for release in releases(query, RELEASES)])
    check(leaf, how)


@pytest.mark.parametrize(
    "how", [*WAYS, Reconstruction("quantile")], ids=["default", "raw", "quantile"]
)
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.tree.branching))
def test_releases_one_by_one(query: Query, how: Reconstruction) -> None:
    for release in releases(query, 48):
        check(release, how)
        if how.method == "aligned":
            leaf = read(release, None, how).leaf
            for name, function in FRACTIONS.items():
                both = zip(function(release, how), function(leaf, how), strict=True)
                assert all(torch.equal(value, expected) for value, expected in both), name


@pytest.mark.parametrize("small", [1e-300, 1e-17])
def test_classes_of_almost_nothing(small: float) -> None:
    leaf = torch.zeros(2, 2, 4, dtype=torch.float64)
    leaf[0, 0], leaf[0, 1, 0] = 1e15, small
    leaf[1, 1], leaf[1, 0, 3] = 1e15, small
    check(leaf, Reconstruction())


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.tree.branching))
def test_decisions_have_finite_values_within_their_bounds(query: Query) -> None:
    before: Release | None = None
    for release in releases(query, 16):
        benefit, gains = (
            net_benefit(release, [0.1, 0.9], 0.95),
            cumulative_gains(release, [0.1, 1.0], 0.95),
        )
        for value, low, high in (
            (benefit.model, benefit.low, benefit.high),
            (gains.recall, gains.low, gains.high),
        ):
            assert low is not None
            assert high is not None
            assert bool((value.isfinite() & (low <= value) & (value <= high)).all())
        for prevalence in (None, 0.1):
            calls = predictive_values(release, 0.4, prevalence, 0.95)
            for value, (low, high) in zip(calls[:2], calls.intervals or (), strict=True):
                assert 0 <= low <= value <= high <= 1
        assert bool(operating.least_cost(release, 1.0, 3.0).value.isfinite())
        assert bool(calibration_line(release, 0.95).slope.isfinite())
        for module in (recalibrate(release), recalibrate(release, "logistic")):
            calibrated = module(torch.linspace(0, 1, 9))
            assert bool(((calibrated >= 0) & (calibrated <= 1)).all())
        drift = population_stability_index(before or release, release)
        assert bool(drift.value.isfinite())
        assert 0 < drift.p_value <= 1
        before = release
