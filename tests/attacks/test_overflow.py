"""Threat 12: overflow, half precision, negative noisy counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchmetrics_fed import CentralDP, FederatedPrecisionRecallCurve, FederatedROC, Release, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct import Method

SPECS = [Spec("binary", 1, ScoreGrid(bins=64), tree, CentralDP(1.0)) for tree in (Tree((8, 8)), Tree.binary(64))]


@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.tree.branching))
@pytest.mark.parametrize(
    ("method", "releases"), [("aligned", 2_500), pytest.param("quantile", 100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("switches", [{}, {"non_negative": False, "least_squares": False}], ids=["default", "raw"])
def test_any_release_gives_a_curve(spec: Spec, method: Method, releases: int, switches: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(9)
    for turn in range(releases):
        scale = 10 ** (turn % 16)
        cells = torch.randint(-scale, scale + 1, spec.shape, generator=generator)
        if turn % 3 == 0:
            cells = cells.abs()
        release = Release(spec, cells)
        fpr, tpr, thresholds = FederatedROC.from_release(release, method=method, **switches).compute()
        precision, recall, _ = FederatedPrecisionRecallCurve.from_release(release, method=method, **switches).compute()
        for rate in (fpr, tpr, precision, recall):
            assert bool(((rate >= 0) & (rate <= 1)).all())
        assert bool((fpr.diff() >= 0).all() and (tpr.diff() >= 0).all() and (recall.diff() <= 0).all())
        assert bool((thresholds.diff() <= 0).all())


def test_casts_leave_private_counts_alone() -> None:
    metric: Any = FederatedROC(privacy=CentralDP(1.0))
    for _ in range(8):
        metric.update(torch.full((10_000,), 0.25), torch.ones(10_000, dtype=torch.bool))
    metric = metric.set_dtype(torch.half).half().to(torch.float16)
    assert metric.counts.dtype == torch.int64
    assert metric.counts.sum() == 80_000
