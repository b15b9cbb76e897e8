"""AUROC against scikit-learn and torchmetrics on binned scores, U against scipy."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from tests.functional.scores import Scored, rounded
from tests.grids import even
from torchmetrics_fed import InputError, ScoreGrid, paper
from torchmetrics_fed.functional import (
    auroc_from_counts,
    auroc_from_curve,
    mann_whitney_u,
    roc_from_counts,
)
from torchmetrics_fed.functional.curve import count

MAX_FPRS = [None, 0.01, 0.1, 0.5, 0.999, 1.0]


@pytest.fixture
def leaf(scored: Scored, grid: ScoreGrid) -> Tensor:
    return count(*scored, grid=grid).leaf


@pytest.mark.parametrize("max_fpr", MAX_FPRS)
def test_it_is_scikit_learns(
    leaf: Tensor,
    binned: Tensor,
    scored: Scored,
    max_fpr: float | None,
) -> None:
    area = auroc_from_counts(even(leaf), max_fpr=max_fpr).item()
    assert area == rounded(roc_auc_score(scored[1], binned, max_fpr=max_fpr))
    in_float32 = binary_auroc(binned, scored[1], max_fpr).item()
    assert area == pytest.approx(in_float32, abs=1e-6)


def test_max_fpr_may_be_a_point_of_the_curve() -> None:
    leaf = torch.tensor([[2, 1, 1], [1, 0, 3]])
    target = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1])
    scores = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    for max_fpr in (0.25, 0.5):
        expected = roc_auc_score(target, scores, max_fpr=max_fpr)
        assert auroc_from_counts(even(leaf), max_fpr=max_fpr).item() == rounded(expected)


def test_u_is_scipys_and_the_area_times_the_pairs(
    leaf: Tensor,
    binned: Tensor,
    scored: Scored,
) -> None:
    target = scored[1].bool()
    u = mann_whitney_u(even(leaf))
    assert u.item() == mannwhitneyu(binned[target], binned[~target], method="asymptotic").statistic
    area = (u / leaf.sum(-1).prod()).item()
    assert area == rounded(auroc_from_counts(even(leaf)).item())


@pytest.mark.parametrize("max_fpr", MAX_FPRS)
def test_leading_axes(max_fpr: float | None, stacked: Tensor) -> None:
    areas = auroc_from_counts(even(stacked), max_fpr=max_fpr)
    u = mann_whitney_u(even(stacked))
    assert areas.shape == u.shape == (3, 4)
    assert torch.equal(areas[1, 2], auroc_from_counts(even(stacked[1, 2]), max_fpr=max_fpr))
    assert torch.equal(u[1, 2], mann_whitney_u(even(stacked[1, 2])))


@pytest.mark.parametrize("max_fpr", MAX_FPRS)
@pytest.mark.parametrize(
    "counts",
    [[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]],
)
def test_without_a_class_it_warns_and_is_0(
    counts: list[list[int]],
    max_fpr: float | None,
) -> None:
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        assert auroc_from_counts(even(torch.tensor(counts)), max_fpr=max_fpr).item() == 0
    assert mann_whitney_u(even(torch.tensor(counts))).item() == 0


@pytest.mark.parametrize("max_fpr", MAX_FPRS)
def test_perfect_and_reversed(max_fpr: float | None) -> None:
    assert auroc_from_counts(even(torch.eye(2)), max_fpr=max_fpr).item() == 1
    lowest = 0.0
    if max_fpr is not None:
        chance = max_fpr / 2
        lowest = (1 - chance / (1 - chance)) / 2
    area = auroc_from_counts(even(torch.eye(2).flip(0)), max_fpr=max_fpr)
    assert area.item() == rounded(lowest)


def test_quantiles_come_close(scored: Scored) -> None:
    leaf = count(*scored, quantiles=16, grid="even").leaf
    area = auroc_from_counts(even(leaf), reconstruction=paper.Quantiles(16))
    assert area.item() == pytest.approx(auroc_from_counts(even(leaf)).item(), abs=0.005)


@pytest.mark.parametrize("max_fpr", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_of_the_area_needs_a_width(
    leaf: Tensor,
    max_fpr: float,
) -> None:
    with pytest.raises(InputError, match="max_fpr"):
        auroc_from_curve(roc_from_counts(even(leaf)), max_fpr)
