"""Kolmogorov-Smirnov against scipy on binned scores."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from tests.grids import centred
from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.functional import kolmogorov_smirnov
from torchmetrics_fed.functional.curve import count


@pytest.mark.parametrize("turned", [False, True], ids=["fair", "worse than chance"])
def test_it_is_scipys(scored: tuple[Tensor, Tensor], grid: ScoreGrid, turned: bool) -> None:
    scores, target = (1 - scored[0] if turned else scored[0]), scored[1]
    binned = centred(scores, grid)
    distance = kolmogorov_smirnov(count(scores, target, grid=grid)).item()
    expected = ks_2samp(binned[target == 1], binned[target == 0], method="asymp").statistic
    assert distance == pytest.approx(expected, abs=1e-12)
    whole = ks_2samp(scores[target == 1], scores[target == 0], method="asymp").statistic
    assert distance <= whole + 1e-12


def test_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1)) + 1
    distances = kolmogorov_smirnov(leaf)
    assert distances.shape == (3, 4)
    assert torch.equal(distances[1, 2], kolmogorov_smirnov(leaf[1, 2]))


def test_ends_of_the_range() -> None:
    assert kolmogorov_smirnov(torch.eye(2)).item() == 1
    assert kolmogorov_smirnov(torch.ones(2, 5)).item() == 0


@pytest.mark.parametrize(
    "counts", [[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]]
)
def test_without_a_class_it_warns_and_is_0(counts: list[list[int]]) -> None:
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        assert kolmogorov_smirnov(torch.tensor(counts)).item() == 0
