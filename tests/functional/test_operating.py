"""Operating points against torchmetrics, scipy, and a search through every threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import ks_2samp
from sklearn.metrics import confusion_matrix
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_precision_at_fixed_recall,
    binary_recall_at_fixed_precision,
    binary_sensitivity_at_specificity,
    binary_specificity_at_sensitivity,
)

from tests.functional.scores import Scored, rounded
from tests.grids import bin_of, centred, even
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.functional.operating import (
    OperatingPoint,
    best_f1,
    kolmogorov_smirnov,
    least_cost,
    precision_at_recall,
    recall_at_precision,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    youden,
)

Rates = dict[str, float]

FIXED: list[tuple[Callable[..., OperatingPoint], Callable[..., Any], str, str]] = [
    (recall_at_precision, binary_recall_at_fixed_precision, "recall", "precision"),
    (precision_at_recall, binary_precision_at_fixed_recall, "precision", "recall"),
    (sensitivity_at_specificity, binary_sensitivity_at_specificity, "recall", "specificity"),
    (specificity_at_sensitivity, binary_specificity_at_sensitivity, "specificity", "recall"),
]
"""Function, torchmetrics' function, the rate that is maximised, the rate that has a minimum."""

FREE: list[tuple[Callable[..., OperatingPoint], str]] = [(best_f1, "f1"), (youden, "j")]
"""Function, and the rate that is maximised."""


def rates_at(leaf: Tensor, edge: int) -> Rates:
    """Every rate of "score >= edge", from whole numbers; selecting nothing has precision 1."""
    tn, fn = leaf[:, :edge].sum(-1).tolist()
    fp, tp = leaf[:, edge:].sum(-1).tolist()
    precision = 1.0
    if tp + fp > 0:
        precision = tp / (tp + fp)
    return {
        "precision": precision,
        "recall": tp / (tp + fn),
        "specificity": tn / (tn + fp),
        "f1": 2 * tp / (2 * tp + fp + fn),
        "j": tp / (tp + fn) + tn / (tn + fp) - 1,
    }


def plain(point: OperatingPoint) -> tuple[float, float]:
    return point.value.item(), point.threshold.item()


@pytest.mark.parametrize("minimum", [0.0, 0.1, 0.305, 0.5, 0.77, 0.9, 0.999, 1.0])
@pytest.mark.parametrize(("function", "twin", "best", "fixed"), FIXED)
def test_it_is_torchmetrics_and_the_best_of_all_thresholds(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    function: Any,
    twin: Any,
    best: str,
    fixed: str,
    minimum: float,
) -> None:
    source = count(*scored, grid=grid)
    value, threshold = function(source, minimum)
    edges = 65
    if best == "precision":  # the highest edge selects no example, and has no precision
        edges = 64
    rates = [rates_at(source.leaf, edge) for edge in range(edges)]
    highest = max(rate[best] for rate in rates if rate[fixed] >= minimum)
    assert value.item() == rounded(highest)
    attained = rates_at(source.leaf, int(torch.searchsorted(source.edges, threshold)))
    assert attained[best] == rounded(value.item())
    assert attained[fixed] >= minimum
    expected, at = twin(binned, scored[1], minimum)
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)  # in float32
    if value > 0 and at < 1:  # torchmetrics' threshold is the centre of the leaf above ours
        assert threshold == source.edges[bin_of(at, grid)]


@pytest.mark.parametrize(("function", "best"), FREE)
def test_it_is_the_best_of_all_thresholds(
    scored: Scored,
    grid: ScoreGrid,
    function: Any,
    best: str,
) -> None:
    source = count(*scored, grid=grid)
    value, threshold = function(source)
    rates = [rates_at(source.leaf, edge)[best] for edge in range(65)]
    assert value.item() == rounded(max(rates))
    attained = rates[int(torch.searchsorted(source.edges, threshold))]
    assert attained == rounded(max(rates))


def test_a_rate_of_exactly_the_minimum_will_do() -> None:
    # specificity 1 - 9/10 at 0.5, a little below 0.1 in float64
    leaf = torch.tensor([[1, 9], [1, 1]])
    assert plain(sensitivity_at_specificity(even(leaf), 0.1)) == (0.5, 0.5)
    leaf = torch.tensor([[5, 2], [7, 15]])  # 15/22 * 22 is a little below 15
    assert plain(recall_at_precision(even(leaf), 15 / 17)) == (15 / 22, 0.5)


def test_of_equal_points_the_highest_threshold_is_given() -> None:
    leaf = torch.tensor([[3, 0, 0, 0, 1], [1, 0, 0, 3, 0]])
    assert youden(even(leaf)).threshold.item() == pytest.approx(0.6)
    assert recall_at_precision(even(leaf), 0.7).threshold.item() == pytest.approx(0.6)
    # but of equal precision, the most recall, as in torchmetrics
    leaf = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 1]])
    assert plain(precision_at_recall(even(leaf), 0.5)) == (0.5, 0.25)


@pytest.mark.parametrize("function", [function for function, *_ in FIXED])
def test_leading_axes(function: Any, stacked: Tensor) -> None:
    points = function(even(stacked), 0.6)
    assert points.value.shape == points.threshold.shape == (3, 4)
    assert (points.value[1, 2], points.threshold[1, 2]) == function(even(stacked[1, 2]), 0.6)


@pytest.mark.parametrize("function", [function for function, _ in FREE])
def test_leading_axes_of_the_rest(function: Any, stacked: Tensor) -> None:
    points = function(even(stacked))
    assert points.value.shape == points.threshold.shape == (3, 4)
    assert (points.value[1, 2], points.threshold[1, 2]) == function(even(stacked[1, 2]))


@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
def test_without_a_class() -> None:
    no_positives = torch.tensor([[1, 2], [0, 0]])
    no_negatives = torch.tensor([[0, 0], [0, 1]])
    for function, _, best, _ in FIXED:
        value = function(even(no_positives), 0.0).value.item()
        assert value == {"specificity": 1, "recall": 0, "precision": 0}[best]
        assert plain(function(even(no_negatives), 0.9)) == (1, 0.5)
    assert plain(specificity_at_sensitivity(even(no_positives), 0.1)) == (0, 1)  # none qualifies
    assert plain(youden(even(no_positives))) == plain(youden(even(no_negatives))) == (0, 1)
    assert plain(best_f1(even(no_positives))) == (0, 1)
    assert plain(best_f1(even(no_negatives))) == (1, 0.5)


def test_a_missing_class_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        youden(even(torch.tensor([[1, 2], [0, 0]])))


@pytest.mark.parametrize("minimum", [-0.1, 1.1, 90, float("nan")])
@pytest.mark.parametrize("function", [function for function, *_ in FIXED])
def test_minima_are_fractions(function: Any, minimum: float) -> None:
    with pytest.raises(InputError, match="min_"):
        function(torch.ones(2, 2), minimum)


@pytest.mark.parametrize("prevalence", [None, 0.05])
@pytest.mark.parametrize("costs", [(1.0, 1.0), (1.0, 20.0), (30.0, 1.0), (0.0, 1.0)])
def test_least_cost_is_that_of_a_search(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    costs: tuple[float, float],
    prevalence: float | None,
) -> None:
    """Against scikit-learn's confusion matrix at every edge, tolerance 1e-12."""
    target = scored[1]
    false_positive, false_negative = costs
    pi = prevalence or target.double().mean().item()
    cost_at = {}
    for edge in grid.edges.tolist():
        selected = (binned >= edge) & (edge < 1)
        tn, fp, fn, tp = confusion_matrix(target, selected.long()).ravel()
        fpr = fp / (tn + fp)
        fnr = fn / (fn + tp)
        cost_at[edge] = false_positive * (1 - pi) * fpr + false_negative * pi * fnr
    least = min(cost_at.values())
    point = least_cost(count(*scored, grid=grid), false_positive, false_negative, prevalence)
    assert point.value.item() == rounded(least)
    assert cost_at[point.threshold.item()] == rounded(least)


@pytest.mark.parametrize(
    ("name", "value"),
    [("false_positive", -1.0), ("false_negative", float("inf")), ("prevalence", 2.0)],
)
def test_costs_are_finite_and_not_negative(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        least_cost(torch.ones(2, 2), **{name: value})


def ks_distance(scores: Tensor, target: Tensor) -> float:
    result = ks_2samp(scores[target == 1], scores[target == 0], method="asymp")
    return float(result.statistic)


@pytest.mark.parametrize("worse_than_chance", [False, True])
def test_the_kolmogorov_smirnov_distance_is_scipys(
    scored: Scored,
    grid: ScoreGrid,
    worse_than_chance: bool,
) -> None:
    scores, target = scored
    if worse_than_chance:
        scores = 1 - scores
    distance = kolmogorov_smirnov(count(scores, target, grid=grid)).item()
    assert distance == rounded(ks_distance(centred(scores, grid), target))
    assert distance <= ks_distance(scores, target) + 1e-12


def test_leading_axes_of_the_kolmogorov_smirnov_distance(stacked: Tensor) -> None:
    distances = kolmogorov_smirnov(even(stacked))
    assert distances.shape == (3, 4)
    assert torch.equal(distances[1, 2], kolmogorov_smirnov(even(stacked[1, 2])))


def test_the_kolmogorov_smirnov_distance_of_perfect_and_of_equal_scores() -> None:
    assert kolmogorov_smirnov(even(torch.eye(2))).item() == 1
    assert kolmogorov_smirnov(even(torch.ones(2, 5))).item() == 0


@pytest.mark.parametrize(
    "counts",
    [[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]],
)
def test_the_kolmogorov_smirnov_distance_without_a_class_is_0(counts: list[list[int]]) -> None:
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        assert kolmogorov_smirnov(even(torch.tensor(counts))).item() == 0
