"""A trend is smooth, follows a curve that turns, and its intervals hold the exact values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, InputError, Release
from torchmetrics_fed.functional import trend
from torchmetrics_fed.functional.trend import smoothed

EPOCHS = 40


def learning_curve() -> Tensor:
    epochs = torch.arange(EPOCHS, dtype=torch.float64)
    return 0.9 - 0.2 * torch.exp(-epochs / 6)


def noisy(truth: Tensor, deviation: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return truth + deviation * torch.randn(truth.shape, generator=generator, dtype=truth.dtype)


@pytest.mark.parametrize("epochs", [1, 2])
def test_one_or_two_epochs_stay_as_they_are(epochs: int) -> None:
    values = torch.linspace(0.7, 0.8, epochs)
    smooth = smoothed(values, deviations=torch.full((epochs,), 0.01))
    assert torch.equal(smooth.value, values.double())
    assert (smooth.upper - smooth.lower - 2 * 1.96 * 0.01).abs().max() < 1e-5


def test_a_line_is_its_own_trend() -> None:
    line = torch.linspace(0.6, 0.9, EPOCHS, dtype=torch.float64)
    assert torch.allclose(smoothed(line).value, line, atol=1e-9)


def test_the_trend_has_less_than_two_thirds_of_the_error() -> None:
    """And with the true deviations, its intervals of 95% hold the truth as often."""
    truth = learning_curve()
    errors = []
    covered = []
    for seed in range(40):
        values = noisy(truth, 0.01, seed)
        smooth = smoothed(values, deviations=torch.full((EPOCHS,), 0.01))
        errors.append((smooth.value - truth).square().mean().item())
        inside = (smooth.lower <= truth) & (truth <= smooth.upper)
        covered.append(inside.double().mean().item())
    assert math.sqrt(sum(errors) / len(errors)) < 0.0066
    assert 0.9 < sum(covered) / len(covered) < 0.995


def test_a_drop_is_followed() -> None:
    truth = learning_curve()
    truth[25:] -= 0.2
    smooth = smoothed(noisy(truth, 0.003, seed=0), deviations=torch.full((EPOCHS,), 0.003))
    assert (smooth.value - truth)[[20, 30, 39]].abs().max() < 0.01


def test_values_of_unknown_deviation_have_a_scale() -> None:
    truth = learning_curve()
    narrow = smoothed(noisy(truth, 0.002, seed=1))
    wide = smoothed(noisy(truth, 0.02, seed=1))
    ratio = (wide.upper - wide.lower).median() / (narrow.upper - narrow.lower).median()
    assert 4 < ratio < 25


def test_an_evaluation_with_more_noise_counts_less() -> None:
    truth = torch.full((9,), 0.8, dtype=torch.float64)
    values = truth.clone()
    values[4] = 0.6
    deviations = torch.full((9,), 0.01)
    even = smoothed(values, deviations=deviations).value[4]
    deviations[4] = 0.2
    assert smoothed(values, deviations=deviations).value[4] > even


def test_classes_are_smoothed_each_by_itself() -> None:
    first = noisy(learning_curve(), 0.01, seed=2)
    second = noisy(learning_curve() - 0.1, 0.02, seed=3)
    both = smoothed(torch.stack([first, second], -1))
    assert torch.allclose(both.value[:, 0], smoothed(first).value)
    assert torch.allclose(both.upper[:, 1], smoothed(second).upper)


def test_a_value_that_is_missing_smooths_nothing() -> None:
    values = noisy(learning_curve(), 0.01, seed=4)
    values[3] = math.nan
    smooth = smoothed(values, deviations=torch.full((EPOCHS,), 0.01))
    assert torch.equal(smooth.value.isnan(), values.isnan())


def releases(epochs: int) -> tuple[list[Release], Tensor]:
    privacy = CentralDP.for_run(8.0, evaluations=epochs)
    private = FederatedROC(privacy=privacy)
    exact = FederatedROC()
    target = torch.arange(4000) % 2
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(4000, generator=generator)
    made = []
    areas = []
    for epoch in range(epochs):
        scores = (noise + (0.5 + 0.1 * epoch) * target).sigmoid()
        for metric in (private, exact):
            metric.reset()
            metric.update(scores, target)
        made.append(private.release())
        areas.append(exact.compute().scalars["auroc"])
    return made, torch.stack(areas)


def test_the_trend_of_releases_holds_the_exact_values() -> None:
    """Within 5.4 deviations of each of ten: the probability of a miss is below 1e-6."""
    private, exact = releases(10)
    smooth = trend(private)
    deviation = (smooth.upper - smooth.lower) / (2 * 1.96)
    assert ((smooth.value - exact).abs() < 5.4 * deviation).all()
    assert smooth.scalars["trend"] == smooth.value[-1]
    precision = trend(private, "average_precision")
    assert precision.value.shape == (10,)
    figure, axes = smooth.plot()
    assert axes.get_xlabel() == "Epoch"
    figure.clear()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="`releases`"):
        trend([])
    with pytest.raises(InputError, match="`measure`"):
        trend(releases(1)[0], "accuracy")  # type: ignore[arg-type]
