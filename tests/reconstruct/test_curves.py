"""Bands of curves: rates at any point, jumps of tied scores, and the ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import FederatedROC
from torchmetrics_fed.reconstruct.uncertainty.curves import (
    RATES,
    precision_at,
    precision_points,
    roc_points,
    tpr_at,
)
from torchmetrics_fed.reconstruct.uncertainty.plausible import plausible_counts

COUNTS = np.array([[[3.0, 1.0], [1.0, 3.0]]])
"""Negatives and positives on two cells."""


def test_a_roc_curve_is_read_between_its_points() -> None:
    assert tpr_at(COUNTS, np.array([0.0, 0.125, 0.25, 1.0]))[0] == pytest.approx(
        [0.0, 0.375, 0.75, 1.0]
    )


def test_precision_is_flat_in_tied_cells_and_follows_counts_in_others() -> None:
    recalls = np.array([0.375, 0.75, 0.875])
    tied = precision_at(COUNTS, np.array([True, True]), recalls)[0]
    assert tied == pytest.approx([0.75, 0.75, 0.5])
    even = precision_at(COUNTS, np.array([False, False]), recalls)[0]
    assert even == pytest.approx([0.75, 0.75, 3.5 / 6.0])


@pytest.mark.parametrize("values", [3, 4_000])
def test_bands_are_ordered_from_0_to_1_and_hold_the_estimate(values: int) -> None:
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    scores = (torch.randn(4_000, generator=generator) + target).sigmoid()
    metric = FederatedROC()
    metric.update((scores * values).round() / values, target)
    plausible = plausible_counts(metric.release())
    roc = roc_points(plausible, 0, 0.95)
    pr = precision_points(plausible, 0, 0.95)
    for points in (roc, pr):
        assert points.x[0] == 0.0
        assert points.x[-1] == 1.0
        assert (np.diff(points.x) > 0).all()
        assert (points.low <= points.high).all()
        assert (points.low >= 0).all()
        assert (points.high <= 1).all()
    tpr = tpr_at(plausible.estimate, RATES)[0]
    assert (roc.low[1:] <= tpr[1:] + 1e-9).all()
    assert (tpr[1:-1] <= roc.high[1:-1] + 1e-9).all()
    precision = precision_at(plausible.estimate, plausible.tied[0], pr.x)[0]
    inner = slice(1, -1)
    assert (pr.low[inner] <= precision[inner] + 1e-9).all()
    assert (precision[inner] <= pr.high[inner] + 1e-9).all()
