"""Average precision against scikit-learn and torchmetrics on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.functional.classification import binary_average_precision

from tests.functional.scores import Scored
from tests.grids import even
from torchmetrics_fed import ScoreGrid, paper
from torchmetrics_fed.functional import (
    average_precision_from_counts,
    average_precision_from_curve,
    precision_recall_curve,
)
from torchmetrics_fed.functional.curve import count


def test_it_is_scikit_learns(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    scores, target = scored
    area = average_precision_from_counts(even(count(scores, target, grid=grid).leaf)).item()
    assert area == pytest.approx(average_precision_score(target, binned), abs=1e-12)
    in_float32 = binary_average_precision(binned, target).item()
    assert area == pytest.approx(in_float32, abs=1e-6)
    curve = precision_recall_curve(scores, target, grid=grid)
    assert area == average_precision_from_curve(curve).item()


def test_leading_axes(stacked: Tensor) -> None:
    areas = average_precision_from_counts(even(stacked))
    assert areas.shape == (3, 4)
    assert torch.equal(areas[1, 2], average_precision_from_counts(even(stacked[1, 2])))


@pytest.mark.parametrize("counts", [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]])
def test_without_positives_it_is_0_with_a_warning(counts: list[list[int]]) -> None:
    with pytest.warns(UserWarning, match="No positive"):
        assert str(average_precision_from_counts(even(torch.tensor(counts))).item()) == "0.0"


@pytest.mark.parametrize("counts", [[[0, 0], [1, 2]], [[0, 0], [1, 0]]])
def test_without_negatives_it_is_1(counts: list[list[int]]) -> None:
    assert average_precision_from_counts(even(torch.tensor(counts))).item() == 1


def test_perfect_and_reversed() -> None:
    assert average_precision_from_counts(even(torch.eye(2))).item() == 1
    assert average_precision_from_counts(even(torch.eye(2).flip(0))).item() == 0.5


def test_quantiles_come_close(scored: Scored) -> None:
    leaf = count(*scored, quantiles=256, grid="even").leaf
    area = average_precision_from_counts(even(leaf), reconstruction=paper.Quantiles(256))
    assert area.item() == pytest.approx(average_precision_from_counts(even(leaf)).item(), abs=0.01)
