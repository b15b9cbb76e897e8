"""Averages over classes are torchmetrics', and a metric refuses averages that it does not have."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_auroc,
    multiclass_average_precision,
)

from tests.grids import centred
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional import auroc, average_precision
from torchmetrics_fed.functional.averages import checked_average, macro_curve


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    target = torch.randint(0, 3, (600,), generator=generator)
    noise = torch.randn(600, 3, generator=generator, dtype=torch.float64)
    return (noise + 2 * torch.eye(3, dtype=torch.float64)[target]).softmax(1), target


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_averages_are_torchmetrics(average: Literal["macro", "weighted"]) -> None:
    """Tolerance 1e-6: torchmetrics computes in float32."""
    preds, target = examples()
    grid = ScoreGrid.even(64)
    binned = centred(preds, grid)
    area = auroc(preds, target, "multiclass", num_classes=3, average=average, grid=grid)
    expected = multiclass_auroc(binned, target, 3, average=average, validate_args=False)
    assert area.item() == pytest.approx(expected.item(), abs=1e-6)
    area = average_precision(preds, target, "multiclass", num_classes=3, average=average, grid=grid)
    expected = multiclass_average_precision(binned, target, 3, average=average, validate_args=False)
    assert area.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_macro_curve_is_the_mean_at_every_x() -> None:
    x = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.25, 1.0]])
    y = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.75, 1.0]])
    at, mean, thresholds = macro_curve(x, y, torch.tensor([1.0, 0.5, 0.0]))
    assert at.tolist() == [0, 0, 0.25, 0.5, 1, 1]
    assert mean[2].item() == pytest.approx((0.25 + 0.75) / 2)
    assert mean[3].item() == pytest.approx((0.5 + 0.75 + 0.25 / 3) / 2)
    assert len(thresholds) == 6


def test_the_macro_curve_leaves_out_classes_without_values() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([[0.0, 1.0], [torch.nan, 1.0]])
    with pytest.warns(UserWarning, match="macro-average"):
        at, mean, _ = macro_curve(x, y, torch.tensor([1.0, 0.0]))
    assert at.tolist() == mean.tolist() == [0, 1]


def test_an_average_that_a_metric_does_not_have_is_refused() -> None:
    assert checked_average("none", ("micro",), "multiclass") is None
    assert checked_average("micro", ("micro",), "multiclass") == "micro"
    with pytest.raises(InputError, match="one of"):
        checked_average("macro", ("micro",), "multiclass")
    with pytest.raises(InputError, match="there is one class"):
        checked_average("micro", ("micro",), "binary")
