"""Grids that the functions are compared with other libraries on, and counts."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from tests.functional.scores import Scored
from tests.grids import centred
from torchmetrics_fed import ScoreGrid


@pytest.fixture(params=[ScoreGrid.two_sided(16), ScoreGrid.even(16)], ids=lambda grid: grid.kind)
def grid(request: pytest.FixtureRequest) -> ScoreGrid:
    """64 bins: those that functions have by default, and the paper's."""
    return cast(ScoreGrid, request.param)


@pytest.fixture
def binned(scored: Scored, grid: ScoreGrid) -> Tensor:
    """The scores at the centres of their bins."""
    return centred(scored[0], grid)


@pytest.fixture
def stacked() -> Tensor:
    """Counts with two leading axes, ``(3, 4, 2, 16)``, none of them 0."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 9, (3, 4, 2, 16), generator=generator) + 1
