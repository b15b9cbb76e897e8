"""Threat 12 for every function here: whatever was summed, values are finite and in their range."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.grids import even
from torchmetrics_fed import CentralDP, Query, Reconstruction, Release, ScoreGrid, Spec, paper
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.functional import (
    Histograms,
    area_under_gain,
    auroc_from_counts,
    average_precision_from_counts,
    best_f1,
    brier_score,
    calibration_error,
    calibration_from_counts,
    calibration_line,
    confusion_at,
    cumulative_gains,
    det_from_counts,
    equal_error_rate,
    hinge_loss,
    kolmogorov_smirnov,
    least_cost,
    log_auc,
    log_loss,
    mann_whitney_u,
    net_benefit,
    population_stability_index,
    precision_at_recall,
    precision_recall_gain_from_counts,
    predictive_values,
    read,
    recalibrate,
    recall_at_precision,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    youden,
)
from torchmetrics_fed.reconstruct import Aligned
from torchmetrics_fed.release import Sum

SPEC = Spec("binary", 1, ScoreGrid(bins=16), CentralDP(1.0))

RELEASES = 5_000
"""Random releases for each query."""

Values = Callable[[Histograms], tuple[Tensor, ...]]

FRACTIONS: dict[str, Values] = {
    "auroc": lambda source: (auroc_from_counts(source),),
    "auroc_max_fpr": lambda source: (auroc_from_counts(source, max_fpr=0.1),),
    "average_precision": lambda source: (average_precision_from_counts(source),),
    "det": det_from_counts,
    "gain": lambda source: precision_recall_gain_from_counts(source)[:3],
    "calibration": lambda source: calibration_from_counts(source)[:3],
    "observed": lambda source: (calibration_from_counts(source).observed.nan_to_num(),),
    "calibration_error_l2": lambda source: (calibration_error(source, norm="l2"),),
    "calibration_error_max": lambda source: (calibration_error(source, norm="max"),),
    "brier_score": lambda source: (brier_score(source),),
    "equal_error_rate": lambda source: (equal_error_rate(source),),
    "log_auc": lambda source: (log_auc(source),),
    "recall_at_precision": lambda source: recall_at_precision(source, 0.7),
    "precision_at_recall": lambda source: precision_at_recall(source, 0.7),
    "sensitivity_at_specificity": lambda source: sensitivity_at_specificity(source, 0.7),
    "specificity_at_sensitivity": lambda source: specificity_at_sensitivity(source, 0.7),
    "best_f1": best_f1,
    "youden": youden,
    "kolmogorov_smirnov": lambda source: (kolmogorov_smirnov(source),),
}
"""Functions whose every value is in [0, 1], thresholds included."""

DEFAULT = Aligned()
RAW = Aligned(non_negative=False, least_squares=False)

pytestmark = [
    pytest.mark.filterwarnings("ignore:No (positive |negative )?examples"),
]

EVERY_QUERY = pytest.mark.parametrize(
    "query",
    [Query(Tree((4, 4))), Query(Tree.binary(16))],
    ids=["quaternary", "binary"],
)


def releases(query: Query, number: int) -> Iterator[Release]:
    """Yield releases of random cells of all sizes; the cells of every third are not negative."""
    generator = torch.Generator().manual_seed(9)
    for turn in range(number):
        scale = 10 ** (turn % 16)
        cells = torch.randint(-scale, scale + 1, SPEC.shape(query), generator=generator)
        if turn % 3 == 0:
            cells = cells.abs()
        yield Release((Sum(SPEC, query, cells),))


MAY_BE_UNDEFINED = ("cohen_kappa", "positive_likelihood_ratio", "negative_likelihood_ratio")
"""Scores that are NaN where a class, or a call, has no examples."""


def check_scores(source: Histograms) -> None:
    """Scores at a threshold are fractions, correlations or ratios; only some may be NaN."""
    for name, value in confusion_at(source, 0.3).scalars.items():
        if name in MAY_BE_UNDEFINED:
            value = value[~value.isnan()]
        lowest = -1 if name in ("matthews_corrcoef", "cohen_kappa") else 0
        highest = torch.inf if name.endswith("likelihood_ratio") else 1 + 1e-12
        assert bool(((value >= lowest - 1e-12) & (value <= highest)).all()), name


def check(source: Histograms) -> None:
    for name, function in FRACTIONS.items():
        for value in function(source):
            assert bool(((value >= 0) & (value <= 1)).all()), name
    check_scores(source)
    assert bool(((log_loss(source) >= 0) & log_loss(source).isfinite()).all())
    assert bool(((hinge_loss(source) >= 0) & (hinge_loss(source) <= 2)).all())
    leaf = source.leaf.double().clamp(min=0)
    negatives, positives = leaf.sum(-1).unbind(-1)
    u = mann_whitney_u(source)
    assert ((u >= 0) & (u <= negatives * positives * (1 + 1e-12))).all()
    examples = calibration_from_counts(source).examples
    assert torch.allclose(examples.sum(-1), negatives + positives, rtol=1e-12)
    matrix = confusion_at(source, 0.3).matrix.double()
    assert (matrix >= 0).all()
    assert torch.allclose(matrix.sum((-1, -2)), negatives + positives, rtol=1e-12)
    area = area_under_gain(source)
    negatives, positives = source.tails.total.clamp(min=0).unbind(-1)
    lowest = torch.where(positives > 0, -negatives / (2 * positives), 0.0)
    assert (area.isfinite() & (area <= 1) & (area >= lowest)).all()


@pytest.mark.parametrize("reconstruction", [DEFAULT, RAW], ids=["default", "raw"])
@EVERY_QUERY
def test_any_release_gives_values_in_range(
    query: Query,
    reconstruction: Reconstruction,
) -> None:
    """All releases at once, on a leading axis."""
    leaves = [
        read(release, reconstruction=reconstruction).leaf for release in releases(query, RELEASES)
    ]
    check(read(torch.stack(leaves), edges=SPEC.grid.edges, reconstruction=reconstruction))


@pytest.mark.parametrize(
    "reconstruction",
    [DEFAULT, RAW, paper.Quantiles(64)],
    ids=["default", "raw", "quantiles"],
)
@EVERY_QUERY
def test_releases_one_by_one(
    query: Query,
    reconstruction: Reconstruction,
) -> None:
    for release in releases(query, 48):
        check(read(release, reconstruction=reconstruction))


@pytest.mark.parametrize("reconstruction", [DEFAULT, RAW], ids=["default", "raw"])
@EVERY_QUERY
def test_a_release_has_the_values_of_its_leaf_counts(
    query: Query,
    reconstruction: Reconstruction,
) -> None:
    for release in releases(query, 48):
        source = read(release, reconstruction=reconstruction)
        leaves = read(source.leaf, edges=SPEC.grid.edges, reconstruction=reconstruction)
        for name, function in FRACTIONS.items():
            for value, expected in zip(function(source), function(leaves), strict=True):
                assert torch.equal(value, expected), name


@pytest.mark.parametrize("small", [1e-300, 1e-17])
def test_classes_of_almost_nothing(small: float) -> None:
    leaf = torch.zeros(2, 2, 4, dtype=torch.float64)
    leaf[0, 0] = 1e15
    leaf[0, 1, 0] = small
    leaf[1, 1] = 1e15
    leaf[1, 0, 3] = small
    check(even(leaf))


def check_bounds(
    value: Tensor,
    low: Tensor | None,
    high: Tensor | None,
) -> None:
    assert low is not None
    assert high is not None
    assert (value.isfinite() & (low <= value) & (value <= high)).all()


@EVERY_QUERY
def test_decisions_have_finite_values_within_their_bounds(query: Query) -> None:
    for release in releases(query, 16):
        benefit = net_benefit(release, [0.1, 0.9], 0.95)
        check_bounds(benefit.model, benefit.low, benefit.high)
        gains = cumulative_gains(release, [0.1, 1.0], 0.95)
        check_bounds(gains.recall, gains.low, gains.high)
        assert least_cost(release, 1.0, 3.0).value.isfinite()


@EVERY_QUERY
@pytest.mark.parametrize("prevalence", [None, 0.1])
def test_predictive_values_are_fractions_within_their_intervals(
    query: Query,
    prevalence: float | None,
) -> None:
    for release in releases(query, 16):
        calls = predictive_values(release, 0.4, prevalence, 0.95)
        for value, (low, high) in zip(calls[:2], calls.intervals or (), strict=True):
            assert 0 <= low <= value <= high <= 1


@EVERY_QUERY
def test_recalibrated_scores_are_probabilities(query: Query) -> None:
    for release in releases(query, 16):
        assert calibration_line(release, 0.95).slope.isfinite()
        for module in (recalibrate(release), recalibrate(release, "logistic")):
            calibrated = module(torch.linspace(0, 1, 9))
            assert ((calibrated >= 0) & (calibrated <= 1)).all()


@EVERY_QUERY
def test_drift_is_finite(query: Query) -> None:
    before = next(releases(query, 1))
    for release in releases(query, 16):
        drift = population_stability_index(before, release)
        assert drift.value.isfinite()
        assert 0 < drift.p_value <= 1
        before = release
