"""Statistics of two models: areas of pairs, DeLong's interval, and a wider one with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from torchmetrics_fed import CentralDP, FederatedModelComparison
from torchmetrics_fed.comparison.statistics import Difference, area, difference, margins, tables_of
from torchmetrics_fed.typing import Floats

LEAVES = 8


def drawn_tables(positives: int = 3_000, negatives: int = 6_000, seed: int = 1) -> Floats:
    """Return tables of two correlated models, the second one better."""
    rng = np.random.default_rng(seed)
    tables = []
    for label, size in enumerate((negatives, positives)):
        first = rng.normal(size=size)
        second = 0.9 * first + math.sqrt(1 - 0.9**2) * rng.normal(size=size)
        scores = np.stack([first + 1.2 * label, second + 1.4 * label])
        leaf = np.clip(2 * scores + 3, 0, LEAVES - 1).astype(np.int64)
        table = np.zeros((LEAVES, LEAVES))
        np.add.at(table, (leaf[0], leaf[1]), 1)
        tables.append(table)
    return np.stack(tables)


def delong(tables: Floats) -> tuple[float, float]:
    """Return the difference and its variance, example by example as DeLong et al. wrote it down."""
    examples = []
    for table in tables.astype(np.int64):
        cells = np.argwhere(table > 0)
        examples.append(np.repeat(cells, table[table > 0], axis=0))
    negative, positive = examples
    moves_of_positives = np.zeros(len(positive))
    moves_of_negatives = np.zeros(len(negative))
    for model, sign in ((0, -1), (1, 1)):
        wins = np.sign(positive[:, None, model] - negative[None, :, model]) / 2 + 0.5
        moves_of_positives += sign * wins.mean(1)
        moves_of_negatives += sign * wins.mean(0)
    variance = moves_of_positives.var(ddof=1) / len(positive)
    variance += moves_of_negatives.var(ddof=1) / len(negative)
    return float(moves_of_positives.mean()), float(variance)


@given(leaves=st.lists(st.integers(0, 20), min_size=6, max_size=6))
@settings(max_examples=50, deadline=None)
def test_an_area_is_the_fraction_of_pairs_in_order(leaves: list[int]) -> None:
    """Pairs of one leaf count half, and without pairs the area is 0.5."""
    counts = np.reshape(leaves, (2, 3)).astype(np.float64)
    negative, positive = counts
    pairs = negative.sum() * positive.sum()
    wins = 0.0
    for low in range(3):
        for high in range(3):
            order = np.sign(high - low) / 2 + 0.5
            wins += negative[low] * positive[high] * order
    expected = 0.5
    if pairs:
        expected = wins / pairs
    assert area(counts) == pytest.approx(expected)


def test_without_noise_the_interval_is_delongs() -> None:
    tables = drawn_tables(300, 500)
    value, variance = delong(tables)
    result = difference(tables, confidence=0.9)
    reach = ndtri(0.95) * math.sqrt(variance)
    expected = Difference(value, value - reach, value + reach, variance)
    assert result == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("variance", [0.0, 4.0])
def test_swapped_models_have_the_opposite_difference(variance: float) -> None:
    tables = drawn_tables()
    result = difference(tables, variance)
    swapped = difference(tables.transpose(0, 2, 1), variance)
    assert swapped.value == pytest.approx(-result.value)
    assert swapped.low == pytest.approx(-result.high, abs=1e-3)


def test_noise_doubt_and_confidence_widen_the_interval() -> None:
    tables = drawn_tables()
    width = [
        result.high - result.low
        for result in (
            difference(tables, 1.0, confidence=0.8),
            difference(tables, 1.0),
            difference(tables, 10.0),
            difference(tables, 10.0, smooth=(False, True)),
            difference(tables, 10.0, smooth=(False, False)),
        )
    ]
    assert width == sorted(width)


def test_the_variance_of_noise_is_that_of_noisy_tables() -> None:
    """Beyond the variance of sampling, as 2,000 draws of noise show."""
    tables = drawn_tables()
    variance = 20.0
    rng = np.random.default_rng(3)
    values = []
    for _ in range(2_000):
        noise = rng.laplace(0, math.sqrt(variance / 2), tables.shape)
        values.append(difference(tables + noise, variance).value)
    result = difference(tables, variance)
    noise_variance = float(np.var(values))
    sampling_variance = difference(tables).variance
    assert result.variance == pytest.approx(noise_variance + sampling_variance, rel=0.3)


def test_a_class_that_noise_drowns_withholds_the_difference() -> None:
    result = difference(drawn_tables(positives=20), variance=100.0)
    assert math.isnan(result.value)
    assert result.low == -1
    assert result.high == 1


def test_exact_margins_are_the_counts_of_each_model() -> None:
    metric = FederatedModelComparison()
    first = torch.rand(100)
    second = torch.rand(100)
    metric.update(first, second, torch.randint(0, 2, (100,)))
    release = metric.release()
    tables = tables_of(release)
    rows, columns = margins(release)
    assert np.array_equal(rows.bins, tables.sum(2))
    assert np.array_equal(columns.bins, tables.sum(1))


def test_private_margins_have_the_area_of_each_model() -> None:
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (20_000,), generator=generator)
    noise = torch.randn(2, 20_000, generator=generator)
    first = (noise[0] + target).sigmoid()
    second = (noise[1] + 2 * target).sigmoid()
    metric = FederatedModelComparison(privacy=CentralDP(3.0))
    metric.update(first, second, target)
    for margin, distance in zip(margins(metric.release()), (1, 2), strict=True):
        assert margin.smooth
        exact = 0.5 * (1 + math.erf(distance / 2))
        assert area(margin.bins) == pytest.approx(exact, abs=0.02)
