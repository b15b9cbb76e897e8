"""Confusion matrices against scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional.calls import confusion_at
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("edge", [0, 1, 20, 32, 63, 64])
def test_it_is_scikit_learns_at_an_edge(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, binned: Tensor, edge: int
) -> None:
    at = grid.edges[edge].item()
    matrix, threshold = confusion_at(count(*scored, grid=grid), at)
    assert threshold.item() == at
    assert matrix.dtype == torch.int64
    assert matrix.tolist() == confusion_matrix(scored[1], binned >= at, labels=[0, 1]).tolist()


@pytest.mark.parametrize(
    ("asked", "used"), [(0.3, 0.25), (0.45, 0.5), (0.375, 0.25), (-7.0, 0.0), (7.0, 1.0)]
)
def test_elsewhere_it_is_that_of_the_nearest_edge(asked: float, used: float) -> None:
    leaf = torch.tensor([[4, 3, 2, 1], [1, 2, 3, 4]])
    result, expected = confusion_at(leaf, asked), confusion_at(leaf, used)
    assert result.threshold.item() == used
    assert torch.equal(result.matrix, expected.matrix)


def test_leading_axes_and_fractions() -> None:
    leaf = torch.rand(3, 4, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = confusion_at(leaf, 0.25)
    assert result.matrix.shape == (3, 4, 2, 2)
    assert torch.allclose(result.matrix.sum(-1), leaf.sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(result.matrix[1, 2], confusion_at(leaf[1, 2], 0.25).matrix)


def test_a_single_example_and_none() -> None:
    assert confusion_at(torch.tensor([[0, 0], [0, 1]]), 0.5).matrix.tolist() == [[0, 0], [0, 1]]
    assert confusion_at(torch.zeros(2, 2, dtype=torch.int64), 0.5).matrix.tolist() == [
        [0, 0],
        [0, 0],
    ]


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_is_a_number(threshold: float) -> None:
    with pytest.raises(InputError, match="threshold"):
        confusion_at(torch.ones(2, 2), threshold)


@pytest.mark.parametrize("threshold", [1e-300, 1e-20, 1.0])
def test_the_ends_of_a_two_sided_grid_are_exact(threshold: float) -> None:
    scores = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0])
    target = torch.tensor([0, 0, 1, 1, 0, 1])
    found = confusion_at(count(scores, target), threshold)
    truth = confusion_matrix(target.numpy(), (scores.double() >= threshold).numpy())
    assert found.matrix.tolist() == truth.tolist()
    nothing = confusion_at(count(scores, target), 2.0)
    assert nothing.matrix[:, 1].sum() == 0
