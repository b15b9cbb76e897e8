"""Calibration against torchmetrics and scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import brier_score_loss
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from tests.functional.scores import Scored, rounded
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional.calibration import calibration_from_counts
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 64, 100])
def test_it_is_torchmetrics_and_scikit_learns(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
    bins: int,
) -> None:
    target = scored[1]
    result = calibration_from_counts(count(*scored, grid=grid), bins=bins)
    expected = binary_calibration_error(binned, target, n_bins=bins, norm="l1")
    assert expected.dtype == torch.float64
    assert result.expected_calibration_error.item() == rounded(expected.item())
    assert result.brier_score.item() == rounded(brier_score_loss(target, binned))


def test_reliability_is_that_of_the_examples(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    target = scored[1]
    result = calibration_from_counts(count(*scored, grid=grid), bins=10)
    assert result.examples.sum() == len(target)
    for index in range(10):
        members = (binned >= index / 10) & (binned < (index + 1) / 10)
        mean_score = binned[members].mean().item()
        share = target[members].double().mean().item()
        assert result.examples[index] == members.sum()
        assert result.predicted[index].item() == rounded(mean_score)
        assert result.observed[index].item() == rounded(share)


def test_edges_need_not_span_the_unit_interval() -> None:
    edges = torch.tensor([0.2, 0.4, 0.8], dtype=torch.float64)
    result = calibration_from_counts(torch.tensor([[3, 1], [1, 3]]), edges, bins=2)
    assert result.predicted.tolist() == rounded([0.3, 0.6])
    assert result.expected_calibration_error.item() == rounded((0.05 + 0.15) / 2)


def test_a_centre_on_a_boundary_is_in_the_bin_above() -> None:
    edges = torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=torch.float64)
    result = calibration_from_counts(torch.tensor([[3, 1, 0], [0, 0, 2]]), edges, bins=2)
    assert result.examples.tolist() == [3, 3]
    binned = torch.tensor([0.125, 0.125, 0.125, 0.5, 0.875, 0.875])
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    expected = binary_calibration_error(binned.double(), target, n_bins=2).item()
    assert result.expected_calibration_error.item() == rounded(expected)


def test_empty_bins_stand_at_their_centre() -> None:
    single_example = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]])
    result = calibration_from_counts(single_example, bins=2)
    assert result.predicted.tolist() == [0.375, 0.75]
    assert result.observed.tolist() == [1, 0]
    assert result.examples.tolist() == [1, 0]
    assert result.expected_calibration_error.item() == 0.625
    assert result.brier_score.item() == 0.625**2


def test_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1))
    results = calibration_from_counts(leaf)
    single = calibration_from_counts(leaf[1, 2])
    assert results.brier_score.shape == (3, 4)
    assert results.observed.shape == (3, 4, 15)
    for value, expected in zip(results, single, strict=True):
        assert torch.equal(value[1, 2], expected)


def test_one_class_will_do_but_no_examples_are_warned_of() -> None:
    negatives = calibration_from_counts(torch.tensor([[2, 2], [0, 0]]))
    assert negatives.brier_score.item() == (0.25**2 + 0.75**2) / 2
    with pytest.warns(UserWarning, match="No examples"):
        result = calibration_from_counts(torch.zeros(2, 4), bins=2)
    assert [value.tolist() for value in result] == [0, 0, [0.25, 0.75], [0, 0], [0, 0]]


@pytest.mark.parametrize("edges", [[-0.1, 0.5, 1.0], [0.0, 0.5, 1.1], [-4.0, 0.0, 4.0]])
def test_only_probabilities_can_be_calibrated(edges: list[float]) -> None:
    with pytest.raises(InputError, match="probabilities"):
        calibration_from_counts(torch.ones(2, 2), torch.tensor(edges))


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bins_are_a_positive_number(bins: int) -> None:
    with pytest.raises(InputError, match="bins"):
        calibration_from_counts(torch.ones(2, 2), bins=bins)
