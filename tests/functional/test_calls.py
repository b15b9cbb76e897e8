"""Predictive values against scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import precision_score
from torch import Tensor

from tests.functional.scores import Scored, rounded
from tests.grids import even
from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.functional import predictive_values
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("prevalence", [None, 0.02, 0.5])
@pytest.mark.parametrize("edge", [10, 32, 50])
def test_predictive_values_are_scikit_learns_precisions(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    edge: int,
    prevalence: float | None,
) -> None:
    """Tolerance 1e-12. Weights give the classes the share that the prevalence says."""
    target = scored[1]
    share = target.double().mean().item()
    expected_prevalence = prevalence or share
    weights = torch.tensor(
        [(1 - expected_prevalence) / (1 - share), expected_prevalence / share],
        dtype=torch.float64,
    )
    result = predictive_values(count(*scored, grid=grid), grid.edges[edge].item(), prevalence)
    called = (binned >= grid.edges[edge]).long()
    for value, label in ((result.positive, 1), (result.negative, 0)):
        expected = precision_score(target, called, pos_label=label, sample_weight=weights[target])
        assert value.item() == rounded(expected)
    assert result.prevalence.item() == rounded(expected_prevalence)


def test_intervals_of_exact_counts_are_points_and_those_of_samples_wilsons(
    scored: Scored,
) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    release = metric.release()
    exact = predictive_values(release, 0.5, confidence=0.95, of="examples")
    sampled = predictive_values(release, 0.5, confidence=0.95)
    assert exact.intervals is not None
    assert sampled.intervals is not None
    for value, interval in zip(exact[:2], exact.intervals, strict=True):
        assert interval.low.item() == rounded(value.item())
        assert interval.high.item() == rounded(value.item())
    n = int((scored[0] >= 0.5).sum())
    p = sampled.positive.item()
    z = 1.96
    wilson = 2 * z / (1 + z**2 / n) * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    width = (sampled.intervals[0].high - sampled.intervals[0].low).item()
    assert width == pytest.approx(wilson, rel=0.1)


def test_intervals_of_private_classes_hold_the_values() -> None:
    metric = FederatedROC("multiclass", num_classes=3, privacy=CentralDP(1.0))
    target = torch.arange(3_000) % 3
    metric.update((torch.randn(3_000, 3) + 2 * torch.eye(3)[target]).softmax(1), target)
    result = predictive_values(metric.release(), 0.4, 0.1, 0.95)
    assert result.intervals is not None
    for value, (low, high) in zip(result[:2], result.intervals, strict=True):
        assert value.shape == (3,)
        assert ((low >= 0) & (low <= value) & (value <= high) & (high <= 1)).all()


def test_a_class_lost_in_the_noise_is_unknown() -> None:
    metric = FederatedROC(privacy=CentralDP(0.01), plan="single")
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    result = predictive_values(metric.release(), 0.5, None, 0.95)
    assert result.intervals is not None
    for low, high in result.intervals:
        assert low == 0
        assert high == 1


def test_a_call_that_no_example_gets_has_the_value_1() -> None:
    assert predictive_values(even(torch.tensor([[3, 1], [1, 3]])), 1.0).positive == 1


def test_a_prevalence_is_a_fraction() -> None:
    with pytest.raises(InputError, match="prevalence"):
        predictive_values(torch.ones(2, 2), 0.5, 1.5)
