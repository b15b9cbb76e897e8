"""Precision-recall against torchmetrics at the edges, and scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics import precision_recall_curve as sklearn_curve
from torch import Tensor
from torchmetrics.classification import BinaryPrecisionRecallCurve

from tests.functional.scores import Scored
from torchmetrics_fed import InputError, Reconstruction, ScoreGrid, paper
from torchmetrics_fed.functional import (
    area_error_pr,
    precision_recall_curve,
    precision_recall_from_quantiles,
)
from torchmetrics_fed.reconstruct import Aligned
from torchmetrics_fed.typing import GridName

FINE = pytest.mark.parametrize(
    "grid",
    [ScoreGrid.two_sided(64), ScoreGrid.even(64)],
    ids=lambda grid: grid.kind,
)


@FINE
def test_aligned_is_torchmetrics_at_every_edge_below_1(
    scored: Scored,
    grid: ScoreGrid,
) -> None:
    scores, target = scored
    # without this torchmetrics compares in float32, where the edges nearest to 1 are 1
    reference = BinaryPrecisionRecallCurve(thresholds=grid.edges[:-1]).set_dtype(torch.float64)
    reference.update(scores, target)
    precision, recall, thresholds = reference.compute()
    curve = precision_recall_curve(scores, target, grid=grid)
    assert torch.equal(curve.thresholds, thresholds)
    # where no example is selected torchmetrics has NaN, torchmetrics 1.6 had 0
    selects = torch.cat([thresholds <= scores.max(), torch.tensor([True])])
    assert torch.allclose(curve.precision[selects], precision[selects], rtol=0, atol=1e-12)
    assert (curve.precision[~selects] == 1).all()
    assert torch.allclose(curve.recall, recall, rtol=0, atol=1e-12)


@FINE
def test_average_precision_of_binned_scores_is_scikit_learns(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    target = scored[1]
    precision, recall, _ = precision_recall_curve(*scored, grid=grid)
    area = -(recall.diff() * precision[:-1]).sum()
    assert area.item() == pytest.approx(average_precision_score(target, binned), abs=1e-12)


@pytest.mark.parametrize(
    ("grid", "reconstruction"),
    [
        ("two_sided", Aligned()),
        ("even", paper.Quantiles(1024)),
        ("even", paper.Quantiles(1024, strategy="combine")),
    ],
)
def test_order_and_ends_are_torchmetrics(
    scored: Scored,
    grid: GridName,
    reconstruction: Reconstruction,
) -> None:
    precision, recall, thresholds = precision_recall_curve(
        *scored, grid=grid, reconstruction=reconstruction
    )
    assert len(precision) == len(recall) == len(thresholds) + 1
    assert [end.item() for end in (precision[-1], recall[-1], recall[0])] == [1, 0, 1]
    assert precision[0].item() == pytest.approx(scored[1].double().mean().item())
    assert (thresholds.diff() >= 0).all()
    assert (recall.diff() <= 0).all()
    assert ((precision >= 0) & (precision <= 1)).all()


def test_the_papers_strategies_and_exact_quantiles_come_close(
    scored: Scored,
) -> None:
    exact = sklearn_curve(*reversed(scored))
    positives = int(scored[1].sum())
    quantiles = paper.exact_quantiles(*scored, 256)
    curve = precision_recall_from_quantiles(quantiles, 5_000 - positives, positives)
    assert area_error_pr(curve, exact) < 0.01
    for reconstruction in (paper.Quantiles(256), paper.Quantiles(256, strategy="combine")):
        curve = precision_recall_curve(
            *scored, quantiles=256, grid="even", reconstruction=reconstruction
        )
        assert area_error_pr(curve, exact) < 0.02


def test_a_missing_class_is_warned_of_and_the_curve_stays_defined() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        curve = precision_recall_curve(torch.rand(50), torch.zeros(50, dtype=torch.bool))
    assert curve.precision.isfinite().all()
    # recall is 1, as in torchmetrics, but for the end: precision 1, recall 0
    assert (curve.recall == 1 - curve.precision).all()


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(InputError, match="strategy"):
        paper.Quantiles(16, strategy="both")  # type: ignore[arg-type]
