"""Counts that figures are drawn of."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import pytest
import torch
from torch import Tensor

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture
def leaf(scored: tuple[Tensor, Tensor]) -> Tensor:
    """Counts of a fair classifier on 1,024 leaves, ``(2, leaves)``."""
    preds, target = scored
    rows = [torch.histc(preds[target == row], 1024, 0, 1) for row in (0, 1)]
    return torch.stack(rows)
