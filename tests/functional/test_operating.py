"""Operating points against torchmetrics on binned scores, and a search through every threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_precision_at_fixed_recall,
    binary_recall_at_fixed_precision,
    binary_sensitivity_at_specificity,
    binary_specificity_at_sensitivity,
)

from tests.grids import bin_of
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.functional.operating import (
    OperatingPoint,
    best_f1,
    least_cost,
    precision_at_recall,
    recall_at_precision,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    youden,
)

Rates = dict[str, float]
# function, torchmetrics' twin, what is maximised, what must reach the minimum
FIXED: list[tuple[Callable[..., OperatingPoint], Callable[..., Any], str, str]] = [
    (recall_at_precision, binary_recall_at_fixed_precision, "recall", "precision"),
    (precision_at_recall, binary_precision_at_fixed_recall, "precision", "recall"),
    (sensitivity_at_specificity, binary_sensitivity_at_specificity, "recall", "specificity"),
    (specificity_at_sensitivity, binary_specificity_at_sensitivity, "specificity", "recall"),
]
FREE: list[tuple[Callable[..., OperatingPoint], str]] = [(best_f1, "f1"), (youden, "j")]


def rates_at(leaf: Tensor, edge: int) -> Rates:
    """Every rate of "score >= edge", from whole numbers; selecting nothing has precision 1."""
    (tn, fn), (fp, tp) = (
        [int(half.sum()) for half in part] for part in (leaf[:, :edge], leaf[:, edge:])
    )
    rates = {
        "precision": tp / (tp + fp) if tp + fp else 1.0,
        "recall": tp / (tp + fn),
        "specificity": tn / (tn + fp),
    }
    return rates | {
        "f1": 2 * tp / (2 * tp + fp + fn),
        "j": rates["recall"] + rates["specificity"] - 1,
    }


def plain(point: OperatingPoint) -> tuple[float, float]:
    return point.value.item(), point.threshold.item()


@pytest.mark.parametrize("minimum", [0.0, 0.1, 0.305, 0.5, 0.77, 0.9, 0.999, 1.0])
@pytest.mark.parametrize(("function", "twin", "best", "fixed"), FIXED)
def test_it_is_torchmetrics_and_the_best_of_all_thresholds(
    scored: tuple[Tensor, Tensor],
    grid: ScoreGrid,
    binned: Tensor,
    function: Any,
    twin: Any,
    best: str,
    fixed: str,
    minimum: float,
) -> None:
    source = count(*scored, grid=grid)
    leaf, edges = source.leaf, source.edges
    value, threshold = function(source, minimum)
    every = [rates_at(leaf, edge) for edge in range(64 if best == "precision" else 65)]
    assert value.item() == pytest.approx(
        max(r[best] for r in every if r[fixed] >= minimum), abs=1e-12
    )
    attained = rates_at(leaf, int(torch.searchsorted(edges, threshold)))
    assert attained[best] == pytest.approx(value.item(), abs=1e-12)
    assert attained[fixed] >= minimum
    expected, at = twin(binned, scored[1], minimum)
    assert value.item() == pytest.approx(expected.item(), abs=1e-6)  # in float32
    if value > 0 and at < 1:  # torchmetrics' threshold is the centre of the leaf above ours
        assert threshold == edges[bin_of(at, grid)]


@pytest.mark.parametrize(("function", "best"), FREE)
def test_it_is_the_best_of_all_thresholds(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, function: Any, best: str
) -> None:
    source = count(*scored, grid=grid)
    leaf, edges = source.leaf, source.edges
    value, threshold = function(source)
    every = np.array([rates_at(leaf, edge)[best] for edge in range(65)])
    assert value.item() == pytest.approx(every.max(), abs=1e-12)
    assert every[int(torch.searchsorted(edges, threshold))] == pytest.approx(every.max(), abs=1e-12)


def test_a_rate_of_exactly_the_minimum_will_do() -> None:
    leaf = torch.tensor(
        [[1, 9], [1, 1]]
    )  # specificity 1 - 9/10 at 0.5, a little below 0.1 in float64
    assert plain(sensitivity_at_specificity(leaf, 0.1)) == (0.5, 0.5)
    leaf = torch.tensor([[5, 2], [7, 15]])  # 15/22 * 22 is a little below 15
    assert plain(recall_at_precision(leaf, 15 / 17)) == (15 / 22, 0.5)


def test_of_equal_points_the_highest_threshold_is_given() -> None:
    leaf = torch.tensor([[3, 0, 0, 0, 1], [1, 0, 0, 3, 0]])
    assert youden(leaf).threshold.item() == pytest.approx(0.6)
    assert recall_at_precision(leaf, 0.7).threshold.item() == pytest.approx(0.6)
    even = torch.tensor(
        [[1, 1, 0, 1], [0, 1, 0, 1]]
    )  # but of equal precision, the most recall, as in torchmetrics
    assert plain(precision_at_recall(even, 0.5)) == (0.5, 0.25)


@pytest.mark.parametrize("function", [function for function, *_ in FIXED])
def test_leading_axes(function: Any) -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1)) + 1
    every, one = function(leaf, 0.6), function(leaf[1, 2], 0.6)
    assert every.value.shape == every.threshold.shape == (3, 4)
    assert (every.value[1, 2], every.threshold[1, 2]) == one


@pytest.mark.parametrize(("function", "best"), FREE)
def test_leading_axes_of_the_rest(function: Any, best: str) -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1)) + 1
    every, one = function(leaf), function(leaf[1, 2])
    assert every.value.shape == every.threshold.shape == (3, 4)
    assert (every.value[1, 2], every.threshold[1, 2]) == one


@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
def test_without_a_class() -> None:
    no_positives, no_negatives = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[0, 0], [0, 1]])
    for function, *_ in FIXED:
        expected = 1.0 if function is specificity_at_sensitivity else 0.0
        assert function(no_positives, 0.0).value.item() == expected
        assert plain(function(no_negatives, 0.9)) == (1, 0.5)
    assert plain(specificity_at_sensitivity(no_positives, 0.1)) == (0, 1)  # none qualifies
    assert plain(youden(no_positives)) == plain(youden(no_negatives)) == (0, 1)
    assert plain(best_f1(no_positives)) == (0, 1)
    assert plain(best_f1(no_negatives)) == (1, 0.5)


def test_a_missing_class_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        youden(torch.tensor([[1, 2], [0, 0]]))


@pytest.mark.parametrize("minimum", [-0.1, 1.1, 90, float("nan")])
@pytest.mark.parametrize("function", [function for function, *_ in FIXED])
def test_minima_are_fractions(function: Any, minimum: float) -> None:
    with pytest.raises(InputError, match="min_"):
        function(torch.ones(2, 2), minimum)


@pytest.mark.parametrize("prevalence", [None, 0.05])
@pytest.mark.parametrize("costs", [(1.0, 1.0), (1.0, 20.0), (30.0, 1.0), (0.0, 1.0)])
def test_least_cost_is_that_of_a_search(
    scored: tuple[Tensor, Tensor],
    grid: ScoreGrid,
    binned: Tensor,
    costs: tuple[float, float],
    prevalence: float | None,
) -> None:
    """Against scikit-learn's confusion matrix at every edge, tolerance 1e-12."""
    target = scored[1]
    share = target.double().mean().item() if prevalence is None else prevalence
    every = {}
    for edge in grid.edges.tolist():
        (tn, fp), (fn, tp) = confusion_matrix(
            target, (binned >= edge).long() if edge < 1 else torch.zeros_like(target)
        )
        every[edge] = costs[0] * (1 - share) * fp / (tn + fp) + costs[1] * share * fn / (fn + tp)
    found = least_cost(count(*scored, grid=grid), *costs, prevalence)
    assert found.value.item() == pytest.approx(min(every.values()), abs=1e-12)
    assert every[found.threshold.item()] == pytest.approx(min(every.values()), abs=1e-12)


def test_costs_are_not_negative() -> None:
    for wrong in ({"false_positive": -1.0}, {"false_negative": float("inf")}, {"prevalence": 2.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            least_cost(torch.ones(2, 2), **wrong)
