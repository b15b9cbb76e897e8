"""Intervals and bands have the spread of the draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logit

from torchmetrics_fed.reconstruct.uncertainty import tuning
from torchmetrics_fed.reconstruct.uncertainty.spread import (
    FIRST_DRAW,
    band_ends,
    correlated_mean,
    curve_ends,
    interval_ends,
    weighted_mean,
)
from torchmetrics_fed.typing import Floats

DRAWS = 4_000


def values_of(centre: float, deviation: float) -> Floats:
    """The estimate, two alternatives that are the same, and normal draws."""
    draws = np.random.default_rng(0).normal(centre, deviation, (DRAWS, 1))
    return np.concatenate([np.full((FIRST_DRAW, 1), centre), draws])


def ends(values: Floats, value: float, size: float = 1e9) -> tuple[float, float]:
    low, high = interval_ends(
        values,
        np.array([value]),
        0.95,
        size=np.array([size]),
        is_lost=np.array([False]),
    )
    return float(low[0]), float(high[0])


def test_numbers_of_any_size_have_a_normal_interval() -> None:
    low, high = ends(values_of(5.0, 0.5), 5.1)
    assert (low + high) / 2 == pytest.approx(5.1)
    assert high - low == pytest.approx(2 * 1.96 * 0.5, rel=0.05)


def test_rates_have_an_interval_of_their_logits_that_stays_within_0_and_1() -> None:
    low, high = ends(np.clip(values_of(0.98, 0.008), 0, 0.999), 0.98)
    assert 0 < low < 0.98 < high < 1
    assert logit(high) - logit(0.98) == pytest.approx(logit(0.98) - logit(low))
    assert 0.98 - low > high - 0.98


def test_alternatives_widen_an_interval() -> None:
    values = values_of(0.5, 0.01)
    low, high = ends(values, 0.5)
    values[1] = 0.55
    wider_low, wider_high = ends(values, 0.5)
    assert wider_low < low < high < wider_high


def test_a_value_that_errors_raise_may_be_lower() -> None:
    values = values_of(0.03, 0.005)
    values[FIRST_DRAW:] += 0.02
    low, high = ends(np.abs(values), 0.03)
    assert low <= 0.01
    assert high < 0.06


def test_a_value_that_no_draw_moves_may_be_3_in_n_off() -> None:
    low, high = ends(np.ones((FIRST_DRAW + DRAWS, 1)), 1.0, size=100.0)
    assert low == pytest.approx(0.97, abs=1e-5)
    assert high == 1.0


def test_nothing_is_known_of_lost_values() -> None:
    low, high = interval_ends(
        values_of(0.5, 0.01),
        np.array([0.5]),
        0.95,
        size=np.array([10.0]),
        is_lost=np.array([True]),
    )
    assert (float(low[0]), float(high[0])) == (0.0, 1.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_band_holds_this_part_of_the_draws_as_a_whole(confidence: float) -> None:
    generator = np.random.default_rng(1)
    points = 20
    draws = 0.5 + 0.02 * generator.standard_normal((DRAWS, points))
    values = np.concatenate([np.full((FIRST_DRAW, points), 0.5), draws])
    for low, high in (
        curve_ends(values, values[0], confidence),
        band_ends(values, confidence, size=1e9, floor=np.zeros(points))[:2],
    ):
        held = ((draws >= low) & (draws <= high)).all(1).mean()
        assert held == pytest.approx(confidence, abs=0.02)


def test_a_mean_over_classes_varies_more_than_that_of_independent_ones() -> None:
    generator = np.random.default_rng(2)
    values = 5 + generator.standard_normal((FIRST_DRAW + DRAWS, 10))
    values[:FIRST_DRAW] = 5.0
    weights = np.ones_like(values)
    independent = weighted_mean(values, weights)[FIRST_DRAW:].var()
    correlated = correlated_mean(values, weights)[FIRST_DRAW:].var()
    assert independent == pytest.approx(0.1, rel=0.15)
    rho = tuning.CLASS_CORRELATION
    assert correlated == pytest.approx((1 - rho) * 0.1 + rho, rel=0.15)
    values[:, 0] = np.nan
    assert np.isfinite(weighted_mean(values, weights)).all()
