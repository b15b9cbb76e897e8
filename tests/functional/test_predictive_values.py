"""Predictive values against scikit-learn's precision, with weights that give the classes another size."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import precision_score
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.functional import predictive_values
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("prevalence", [None, 0.02, 0.5])
@pytest.mark.parametrize("edge", [10, 32, 50])
def test_they_are_scikit_learns(
    scored: tuple[Tensor, Tensor],
    grid: ScoreGrid,
    binned: Tensor,
    edge: int,
    prevalence: float | None,
) -> None:
    """Tolerance 1e-12."""
    target = scored[1]
    share = target.double().mean().item()
    wanted = share if prevalence is None else prevalence
    weights = torch.tensor([(1 - wanted) / (1 - share), wanted / share], dtype=torch.float64)[
        target
    ]
    result = predictive_values(count(*scored, grid=grid), grid.edges[edge].item(), prevalence)
    called = (binned >= grid.edges[edge]).long()
    for value, label in ((result.positive, 1), (result.negative, 0)):
        expected = precision_score(target, called, pos_label=label, sample_weight=weights)
        assert value.item() == pytest.approx(expected, abs=1e-12)
    assert result.prevalence.item() == pytest.approx(wanted, abs=1e-12)


def test_exact_counts_are_known_and_sampling_is_wilsons(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC()
    metric.update(*scored)
    exact, sampled = (
        predictive_values(metric.release(), 0.5, None, 0.95, population)
        for population in (False, True)
    )
    assert exact.intervals is not None
    assert sampled.intervals is not None
    for value, interval in zip(exact[:2], exact.intervals, strict=True):
        assert interval.low.item() == pytest.approx(value.item(), abs=1e-12)
        assert interval.high.item() == pytest.approx(value.item(), abs=1e-12)
    called = int((scored[0] >= 0.5).sum())
    p, z = sampled.positive.item(), 1.96
    wilson = 2 * z / (1 + z**2 / called) * (p * (1 - p) / called + z**2 / (4 * called**2)) ** 0.5
    width = (sampled.intervals[0].high - sampled.intervals[0].low).item()
    assert width == pytest.approx(wilson, rel=0.1)


def test_classes_and_noise() -> None:
    metric = FederatedROC("multiclass", num_classes=3, privacy=CentralDP(1.0))
    target = torch.arange(3_000) % 3
    metric.update((torch.randn(3_000, 3) + 2 * torch.eye(3)[target]).softmax(1), target)
    result = predictive_values(metric.release(), 0.4, 0.1, 0.95)
    assert result.intervals is not None
    for value, (low, high) in zip(result[:2], result.intervals, strict=True):
        assert value.shape == (3,)
        assert bool(((low >= 0) & (low <= value) & (value <= high) & (high <= 1)).all())


def test_a_class_lost_in_the_noise_is_unknown_and_nobody_called_is_no_mistake() -> None:
    metric = FederatedROC(privacy=CentralDP(0.01), plan="single")
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    result = predictive_values(metric.release(), 0.5, None, 0.95)
    assert result.intervals is not None
    assert [(low.item(), high.item()) for low, high in result.intervals] == [(0.0, 1.0)] * 2
    assert predictive_values(torch.tensor([[3, 1], [1, 3]]), 1.0).positive == 1


def test_a_prevalence_is_a_fraction() -> None:
    with pytest.raises(InputError, match="prevalence"):
        predictive_values(torch.ones(2, 2), 0.5, 1.5)
