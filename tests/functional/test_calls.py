"""Confusion matrices and predictive values against scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score
from torch import Tensor

from tests.functional.scores import Scored, rounded
from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.functional import confusion_at, predictive_values
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("edge", [0, 1, 20, 32, 63, 64])
def test_the_confusion_matrix_is_scikit_learns_at_an_edge(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    edge: int,
) -> None:
    target = scored[1]
    at = grid.edges[edge].item()
    matrix, threshold = confusion_at(count(*scored, grid=grid), at)
    assert threshold.item() == at
    assert matrix.dtype == torch.int64
    assert matrix.tolist() == confusion_matrix(target, binned >= at, labels=[0, 1]).tolist()


@pytest.mark.parametrize(
    ("threshold", "edge"),
    [(0.3, 0.25), (0.45, 0.5), (0.375, 0.25), (-7.0, 0.0), (7.0, 1.0)],
)
def test_elsewhere_it_is_that_of_the_nearest_edge(
    threshold: float,
    edge: float,
) -> None:
    leaf = torch.tensor([[4, 3, 2, 1], [1, 2, 3, 4]])
    result = confusion_at(leaf, threshold)
    expected = confusion_at(leaf, edge)
    assert result.threshold.item() == edge
    assert torch.equal(result.matrix, expected.matrix)


def test_confusion_has_the_leading_axes_of_the_counts_and_keeps_fractions() -> None:
    generator = torch.Generator().manual_seed(1)
    leaf = torch.rand(3, 4, 2, 16, dtype=torch.float64, generator=generator)
    result = confusion_at(leaf, 0.25)
    assert result.matrix.shape == (3, 4, 2, 2)
    assert torch.allclose(result.matrix.sum(-1), leaf.sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(result.matrix[1, 2], confusion_at(leaf[1, 2], 0.25).matrix)


def test_a_single_example_and_none() -> None:
    single = confusion_at(torch.tensor([[0, 0], [0, 1]]), 0.5)
    assert single.matrix.tolist() == [[0, 0], [0, 1]]
    empty = confusion_at(torch.zeros(2, 2, dtype=torch.int64), 0.5)
    assert empty.matrix.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_is_a_number(threshold: float) -> None:
    with pytest.raises(InputError, match="threshold"):
        confusion_at(torch.ones(2, 2), threshold)


@pytest.mark.parametrize("threshold", [1e-300, 1e-20, 1.0])
def test_the_ends_of_a_two_sided_grid_are_exact(threshold: float) -> None:
    scores = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0])
    target = torch.tensor([0, 0, 1, 1, 0, 1])
    result = confusion_at(count(scores, target), threshold)
    expected = confusion_matrix(target.numpy(), (scores.double() >= threshold).numpy())
    assert result.matrix.tolist() == expected.tolist()
    above_all = confusion_at(count(scores, target), 2.0)
    assert above_all.matrix[:, 1].sum() == 0


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
    assert predictive_values(torch.tensor([[3, 1], [1, 3]]), 1.0).positive == 1


def test_a_prevalence_is_a_fraction() -> None:
    with pytest.raises(InputError, match="prevalence"):
        predictive_values(torch.ones(2, 2), 0.5, 1.5)
