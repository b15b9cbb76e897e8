"""Grids that the functions are compared with other libraries on."""

from __future__ import annotations

from typing import cast

import pytest
from torch import Tensor

from tests.grids import centred
from torchmetrics_fed import ScoreGrid


@pytest.fixture(params=[ScoreGrid.two_sided(16), ScoreGrid.even(16)], ids=lambda grid: grid.kind)
def grid(request: pytest.FixtureRequest) -> ScoreGrid:
    """64 bins: those that functions have by default, and the paper's."""
    return cast(ScoreGrid, request.param)


@pytest.fixture
def binned(scored: tuple[Tensor, Tensor], grid: ScoreGrid) -> Tensor:
    """The scores at the centres of their bins."""
    return centred(scored[0], grid)
