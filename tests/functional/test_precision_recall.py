"""Precision-recall against torchmetrics with the edges as thresholds, and scikit-learn on binned scores."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics import precision_recall_curve as sklearn_curve
from torch import Tensor
from torchmetrics.classification import BinaryPrecisionRecallCurve

from tests.grids import grid_for
from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.functional import (
    Strategy,
    area_error_pr,
    exact_quantiles,
    precision_recall_curve,
    precision_recall_from_counts,
    precision_recall_from_quantiles,
)
from torchmetrics_fed.reconstruct import Method, Reconstruction

FINE = pytest.mark.parametrize(
    "grid", [ScoreGrid.two_sided(64), ScoreGrid.even(64)], ids=lambda grid: grid.kind
)


@FINE
def test_aligned_is_torchmetrics_at_every_edge_below_1(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid
) -> None:
    scores, target = scored
    # without this torchmetrics compares in float32, where the edges nearest to 1 are 1
    reference = BinaryPrecisionRecallCurve(thresholds=grid.edges[:-1]).set_dtype(torch.float64)
    reference.update(scores, target)
    precision, recall, thresholds = reference.compute()
    curve = precision_recall_curve(scores, target, grid=grid)
    assert torch.equal(curve.thresholds, thresholds)
    # where nothing is selected torchmetrics says NaN, and 1.6 said 0; the last point, at no threshold, is 1
    selects = torch.cat([thresholds <= scores.max(), torch.tensor([True])])
    assert torch.allclose(curve.precision[selects], precision[selects], rtol=0, atol=1e-12)
    assert bool((curve.precision[~selects] == 1).all())
    assert torch.allclose(curve.recall, recall, rtol=0, atol=1e-12)


@FINE
def test_average_precision_of_binned_scores_is_scikit_learns(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, binned: Tensor
) -> None:
    target = scored[1]
    precision, recall, _ = precision_recall_curve(*scored, grid=grid)
    area = -(recall.diff() * precision[:-1]).sum()
    assert area.item() == pytest.approx(average_precision_score(target, binned), abs=1e-12)


@pytest.mark.parametrize("method", ["aligned", "quantile"])
@pytest.mark.parametrize("strategy", ["separate", "combine"])
def test_order_and_ends_are_torchmetrics(
    scored: tuple[Tensor, Tensor], method: Method, strategy: Strategy
) -> None:
    precision, recall, thresholds = precision_recall_curve(
        *scored, grid=grid_for(method), reconstruction=Reconstruction(method), strategy=strategy
    )
    assert len(precision) == len(recall) == len(thresholds) + 1
    assert [end.item() for end in (precision[-1], recall[-1], recall[0])] == [1, 0, 1]
    assert precision[0].item() == pytest.approx(scored[1].double().mean().item())
    assert bool((thresholds.diff() >= 0).all())
    assert bool((recall.diff() <= 0).all())
    assert bool(((precision >= 0) & (precision <= 1)).all())


def test_both_strategies_are_one_where_the_edges_are_aligned(scored: tuple[Tensor, Tensor]) -> None:
    separate = precision_recall_curve(*scored)
    combined = precision_recall_curve(*scored, strategy="combine")
    assert torch.allclose(separate.precision, combined.precision, rtol=0, atol=1e-12)


def test_the_papers_strategies_and_exact_quantiles_come_close(
    scored: tuple[Tensor, Tensor],
) -> None:
    exact = sklearn_curve(*reversed(scored))
    n_positive = int(scored[1].sum())
    eq = precision_recall_from_quantiles(
        exact_quantiles(*scored, 256), 5_000 - n_positive, n_positive
    )
    assert area_error_pr(eq, exact) < 0.01
    for strategy in get_args(Strategy):
        curve = precision_recall_curve(
            *scored,
            quantiles=256,
            grid="even",
            reconstruction=Reconstruction("quantile"),
            strategy=strategy,
        )
        assert area_error_pr(curve, exact) < 0.02


def test_a_missing_class_is_warned_of_and_the_curve_stays_defined() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        curve = precision_recall_curve(torch.rand(50), torch.zeros(50, dtype=torch.bool))
    assert bool(curve.precision.isfinite().all())
    assert bool(
        (curve.recall == 1 - curve.precision).all()
    )  # 1, as torchmetrics has it, but for the end (1, 0)


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(InputError, match="strategy"):
        precision_recall_from_counts(torch.ones(2, 4), strategy="both")  # type: ignore[arg-type]
