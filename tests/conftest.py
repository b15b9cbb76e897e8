"""Fixtures that several folders need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ranks import RankPool

SHARED = "TORCHMETRICS_FED_SHARED"


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with score files and the paper's figures; named by an environment variable, for
    it is not ours."""
    folder = os.environ.get(SHARED)
    if not folder or not Path(folder, "anchors").is_dir():
        pytest.skip(
            f"set {SHARED} to a folder with data/scores and anchors to compare with the published "
            "figures"
        )
    return Path(folder)


@pytest.fixture
def scored() -> tuple[Tensor, Tensor]:
    """Scores of a fair classifier, float64, and their labels."""
    generator = torch.Generator().manual_seed(7)
    target = (torch.rand(5_000, generator=generator) < 0.3).long()
    logits = 1.5 * torch.randn(5_000, generator=generator, dtype=torch.float64) + 2.0 * target - 1.0
    return logits.sigmoid(), target


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Three gloo processes."""
    pool = RankPool(3, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()
