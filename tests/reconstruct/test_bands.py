"""The pieces of a band: noise vectors with the law of the noise, and steps that hold any curve
between points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import CentralDP, DistributedDP, LocalDP, Privacy, Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct.uncertainty.areas import average_precision_area, roc_area
from torchmetrics_fed.reconstruct.uncertainty.bands import (
    Bounds,
    above,
    noise_tails,
    order_statistic,
    staircase,
)
from torchmetrics_fed.release import Sum

PRIVACY = [
    (CentralDP(1.0), 1),
    (LocalDP(1.0), 4),
    (DistributedDP(0.7, 3), 5),
    (CentralDP(1.0, mechanism="skellam", delta=1e-6), 1),
    (CentralDP(1.0, mechanism="discrete_gaussian", delta=1e-6), 1),
]


@pytest.mark.parametrize(("privacy", "shares"), PRIVACY)
def test_vectors_have_the_variance_that_is_there(privacy: Privacy, shares: int) -> None:
    spec, query = Spec("binary", 1, ScoreGrid(bins=256), privacy), Query(Tree.flat(8))
    total = Sum(spec, query, torch.zeros(spec.shape(query), dtype=torch.int64), shares)
    tails, spread = noise_tails(total)
    expected = total.noise_variance * np.arange(
        8, -1, -1
    )  # a flat tree's tail is the sum of its leaves
    assert np.allclose(spread[0], expected, rtol=0.1)
    assert np.allclose(spread[1], expected, rtol=0.1, atol=0.5 * total.noise_variance)
    assert tails.shape[-1] == 9


def test_steps_hold_any_rising_curve_through_the_points() -> None:
    generator = np.random.default_rng(1)
    for _ in range(50):
        x, y = (np.sort(np.r_[0, generator.random(30), 1]) for _ in range(2))
        chosen = np.sort(np.r_[0, generator.choice(np.arange(1, 31), 5, replace=False), 31])[::-1]
        off = 0.1 * generator.random((2, 2, 7)) * (np.abs(chosen - 15.5) < 15)
        bounds = [
            Bounds(v[chosen] - a, v[chosen] + b) for v, (a, b) in zip((x, y), off, strict=True)
        ]
        steps = staircase(bounds[0], bounds[1])
        left = np.clip(np.searchsorted(steps.x, x) - 1, 0, None)
        right = np.searchsorted(steps.x, x, side="right").clip(max=len(steps.x) - 1)
        assert (np.minimum(steps.low[left], steps.low[right]) <= y + 1e-12).all()
        assert (np.maximum(steps.high[left], steps.high[right]) >= y - 1e-12).all()


def test_areas_reach_what_any_order_makes_of_them() -> None:
    """Leaves of 3 and 2, 1 and 4 examples: negatives first, positives first, tied."""
    tails = above(np.array([[3.0, 1.0], [2.0, 4.0]]))
    auroc = roc_area(*tails)
    assert float(auroc.even) == pytest.approx((3 * 4 + (3 * 2 + 1 * 4) / 2) / 24)
    assert float(auroc.down.sum()) == pytest.approx((3 * 2 + 1 * 4) / 48)
    precision = average_precision_area(*tails)
    worst = np.mean([1 / 2, 2 / 3, 3 / 4, 4 / 5, 5 / 9, 6 / 10])
    tied = np.mean([4 / 5] * 4 + [6 / 10] * 2)
    best = np.mean([1, 1, 1, 1, 5 / 6, 6 / 7])
    low, high = (
        float(precision.even + side) for side in (-precision.down.sum(), precision.up.sum())
    )
    assert low <= worst <= tied <= best <= high + 1e-12
    for known in (
        precision.leaves,
        precision.leaves - precision.down / 2,
        precision.leaves + precision.up,
    ):
        down, up = precision.around(
            known
        )  # from what is known of the order, the same orders are within reach
        assert float((known - down).sum()) == pytest.approx(low)
        assert float((known + up).sum()) == pytest.approx(high)


def test_the_order_statistic_rounds_up() -> None:
    assert order_statistic(np.arange(1.0, 100.0), 0.95) == 95.0
    assert order_statistic(np.arange(1.0, 11.0), 0.99) == 10.0
