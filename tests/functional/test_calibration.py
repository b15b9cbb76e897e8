"""Calibration against torchmetrics and scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sklearn_log_loss
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error, binary_hinge_loss

from tests.functional.scores import Scored, rounded
from tests.grids import even
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional.calibration import (
    CalibrationNorm,
    brier_score,
    calibration_error,
    calibration_from_counts,
    hinge_loss,
    log_loss,
)
from torchmetrics_fed.functional.curve import count

NORMS: tuple[CalibrationNorm, ...] = ("l1", "l2", "max")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [1, 2, 4, 8])
def test_it_is_torchmetrics_where_boundaries_are_edges(
    scored: Scored, grid: ScoreGrid, binned: Tensor, bins: int, norm: CalibrationNorm
) -> None:
    histograms = count(*scored, grid=grid)
    expected = binary_calibration_error(binned, scored[1], n_bins=bins, norm=norm)
    assert expected.dtype == torch.float64
    assert calibration_error(histograms, bins, norm).item() == rounded(expected.item())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [10, 15, 64])
def test_elsewhere_the_leaf_around_a_boundary_moves_whole(
    scored: Scored, bins: int, norm: CalibrationNorm
) -> None:
    """Of 5,000 examples about 2 are in such a leaf: the distance of 80 in a bin moves by 2%."""
    histograms = count(*scored)
    expected = binary_calibration_error(*scored, n_bins=bins, norm=norm)
    tolerance = 0.03 if norm == "max" else 0.003
    assert calibration_error(histograms, bins, norm).item() == pytest.approx(
        expected.item(), abs=tolerance
    )


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [5, 10, 15, 20, 30])
@pytest.mark.parametrize("digits", [1, 2])
def test_scores_on_the_boundaries_are_counted_as_torchmetrics_counts_them(
    scored: Scored, bins: int, norm: CalibrationNorm, digits: int
) -> None:
    """Rounded float32 scores; a leaf stands for its centre, 1/4096 from its ends at most."""
    preds = (scored[0] * 10**digits).round().div(10**digits).float()
    expected = binary_calibration_error(preds, scored[1], n_bins=bins, norm=norm).item()
    error = calibration_error(count(preds, scored[1]), bins, norm).item()
    assert error == pytest.approx(expected, abs=3e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_scores_of_a_forest_of_ten_trees_are_counted_as_torchmetrics_counts_them(
    norm: CalibrationNorm,
) -> None:
    """Most of its scores are tenths, and many of them boundaries of calibration bins."""
    features, labels = make_classification(4_000, flip_y=0.2, random_state=0)
    forest = RandomForestClassifier(10, random_state=0).fit(features[:1_000], labels[:1_000])
    preds = torch.from_numpy(forest.predict_proba(features[1_000:])[:, 1]).float()
    target = torch.from_numpy(labels[1_000:])
    histograms = count(preds, target)
    for bins in (10, 15):
        expected = binary_calibration_error(preds, target, n_bins=bins, norm=norm).item()
        assert calibration_error(histograms, bins, norm).item() == pytest.approx(expected, abs=3e-4)


def test_scores_of_exactly_one_have_a_bin_of_their_own() -> None:
    preds = torch.tensor([0.95, 0.95, 1.0, 1.0, 1.0, 0.0])
    target = torch.tensor([0, 0, 1, 1, 1, 0])
    histograms = count(preds, target)
    for norm in NORMS:
        expected = binary_calibration_error(preds, target, n_bins=10, norm=norm).item()
        assert calibration_error(histograms, 10, norm).item() == pytest.approx(expected, abs=3e-4)
    curve = calibration_from_counts(histograms, bins=10)
    assert curve.examples.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 5]
    assert curve.observed[9].item() == rounded(0.6)


def test_the_brier_score_is_scikit_learns(scored: Scored, grid: ScoreGrid, binned: Tensor) -> None:
    expected = brier_score_loss(scored[1], binned)
    histograms = count(*scored, grid=grid)
    assert brier_score(histograms).item() == rounded(expected)
    assert calibration_from_counts(histograms).brier_score.item() == rounded(expected)


def test_the_log_loss_is_scikit_learns(scored: Scored, grid: ScoreGrid, binned: Tensor) -> None:
    expected = sklearn_log_loss(scored[1], binned)
    assert log_loss(count(*scored, grid=grid)).item() == rounded(expected)


def test_the_log_loss_of_sure_scores_is_finite_as_in_scikit_learn() -> None:
    preds = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    target = torch.tensor([0, 1, 1, 0])
    expected = sklearn_log_loss(target, preds)
    assert log_loss(count(preds, target)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("squared", [False, True])
def test_the_hinge_loss_is_torchmetrics(
    scored: Scored, grid: ScoreGrid, binned: Tensor, squared: bool
) -> None:
    expected = binary_hinge_loss(binned, scored[1], squared=squared).item()
    loss = hinge_loss(count(*scored, grid=grid), squared)
    assert loss.item() == rounded(expected)


def test_averages_of_losses(scored: Scored) -> None:
    preds = torch.stack([scored[0], scored[0] ** 2], 1)
    target = torch.stack([scored[1], 1 - scored[1]], 1)
    histograms = count(preds, target, "multilabel", num_labels=2)
    for loss in (log_loss, brier_score, hinge_loss, calibration_error):
        values = loss(histograms)
        positives = target.sum(0)
        assert values.shape == (2,)
        assert loss(histograms, average="macro").item() == rounded(values.mean().item())
        weighted = (values * positives).sum() / positives.sum()
        assert loss(histograms, average="weighted").item() == rounded(weighted.item())
    pooled = sklearn_log_loss(target.flatten(), preds.flatten())
    assert log_loss(histograms, average="micro").item() == pytest.approx(pooled, abs=1e-4)


def test_reliability_is_that_of_the_examples(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    target = scored[1]
    result = calibration_from_counts(count(*scored, grid=grid), bins=8)
    assert result.examples.sum() == len(target)
    for index in range(8):
        members = (binned >= index / 8) & (binned < (index + 1) / 8)
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
    result = calibration_from_counts(even(single_example), bins=2)
    assert result.predicted.tolist() == [0.375, 0.75]
    assert result.observed[0] == 1
    assert result.observed[1].isnan()
    assert result.examples.tolist() == [1, 0]
    assert result.expected_calibration_error.item() == 0.625
    assert result.brier_score.item() == 0.625**2


def test_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1))
    results = calibration_from_counts(even(leaf))
    single = calibration_from_counts(even(leaf[1, 2]))
    assert results.brier_score.shape == (3, 4)
    assert results.observed.shape == (3, 4, 15)
    for value, expected in zip(results, single, strict=True):
        torch.testing.assert_close(value[1, 2], expected, rtol=0, atol=0, equal_nan=True)


def test_one_class_will_do_but_no_examples_are_warned_of() -> None:
    negatives = calibration_from_counts(even(torch.tensor([[2, 2], [0, 0]])))
    assert negatives.brier_score.item() == (0.25**2 + 0.75**2) / 2
    with pytest.warns(UserWarning, match="No examples"):
        result = calibration_from_counts(even(torch.zeros(2, 4)), bins=2)
    assert result.observed.isnan().all()
    values = result._replace(observed=torch.zeros(2))
    assert [value.tolist() for value in values] == [0, 0, [0.25, 0.75], [0, 0], [0, 0]]


@pytest.mark.parametrize("edges", [[-0.1, 0.5, 1.0], [0.0, 0.5, 1.1], [-4.0, 0.0, 4.0]])
def test_only_probabilities_can_be_calibrated(edges: list[float]) -> None:
    with pytest.raises(InputError, match="probabilities"):
        calibration_from_counts(torch.ones(2, 2), torch.tensor(edges))


@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bins_are_a_positive_number(bins: int) -> None:
    with pytest.raises(InputError, match="bins"):
        calibration_from_counts(even(torch.ones(2, 2)), bins=bins)
