"""Threat 12: overflow, half precision, negative noisy counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    Query,
    Release,
    ScoreGrid,
    Spec,
    paper,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct import Aligned, Reconstruction
from torchmetrics_fed.release.sum import Sum

SPEC = Spec("binary", 1, ScoreGrid(bins=64), CentralDP(1.0))
QUERIES = [Query(Tree((8, 8))), Query(Tree.binary(64)), Query(Tree((4,), (0, 1, 5, 60, 64)))]


@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query.tree.branching))
@pytest.mark.parametrize(
    ("reading", "releases"),
    [
        (Aligned, 320),
        pytest.param(Aligned, 2_500, marks=pytest.mark.audit),
        pytest.param(partial(paper.Quantiles, 16), 100, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("switches", [True, False], ids=["default", "raw"])
def test_any_release_gives_a_curve(
    query: Query, reading: Callable[..., Reconstruction], releases: int, switches: bool
) -> None:
    reconstruction = reading(non_negative=switches, least_squares=switches)
    generator = torch.Generator().manual_seed(9)
    for turn in range(releases):
        scale = 10 ** (turn % 16)
        cells = torch.randint(-scale, scale + 1, SPEC.shape(query), generator=generator)
        if turn % 3 == 0:
            cells = cells.abs()
        release = Release((Sum(SPEC, query, cells),))
        roc = FederatedROC.from_release(release, reconstruction=reconstruction)
        fpr, tpr, thresholds = roc.compute()
        pr = FederatedPrecisionRecallCurve.from_release(release, reconstruction=reconstruction)
        precision, recall, _ = pr.compute()
        for rate in (fpr, tpr, precision, recall):
            assert bool(((rate >= 0) & (rate <= 1)).all())
        assert bool((fpr.diff() >= 0).all())
        assert bool((tpr.diff() >= 0).all())
        assert bool((recall.diff() <= 0).all())
        assert bool((thresholds.diff() <= 0).all())


@pytest.mark.filterwarnings("ignore:No (positive|negative) examples")
def test_counts_beyond_the_smooth_model_give_a_curve() -> None:
    """Cells of 1e15, as a liar can send them, make the model's equations singular."""
    cells = torch.tensor(
        [
            [-763735399203851, 465815857982208, -305318198096071, -258169097816498],
            [444365521270444, 92042492507224, 959907169698918, 665448658297890],
        ]
    )
    release = Release((Sum(SPEC, QUERIES[2], cells[None]),))
    fpr, tpr, _ = FederatedROC.from_release(release).compute()
    assert bool((fpr.diff() >= 0).all())
    assert bool((tpr.diff() >= 0).all())


def test_casts_leave_private_counts_alone() -> None:
    metric: Any = FederatedROC(privacy=CentralDP(1.0))
    for _ in range(8):
        metric.update(torch.full((10_000,), 0.25), torch.ones(10_000, dtype=torch.bool))
    metric = metric.set_dtype(torch.half).half().to(torch.float16)
    assert metric.counts.dtype == torch.int64
    assert metric.counts.sum() == 80_000
