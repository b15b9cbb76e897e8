"""Tails: monotone, from 0 to 1, whatever the counts and however they are read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.reconstruct import Aligned, Reconstruction
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative

RECONSTRUCTIONS: list[Reconstruction] = [
    Aligned(),
    Quantiles(16, interpolation="pchip"),
    Quantiles(16, interpolation="linear"),
]


@pytest.mark.parametrize("reconstruction", RECONSTRUCTIONS, ids=str)
@given(leaf=st.lists(st.integers(0, 10**12), min_size=3, max_size=40))
@settings(max_examples=40, deadline=None)
def test_tails_rise_from_0_to_1(reconstruction: Reconstruction, leaf: list[int]) -> None:
    edges = torch.linspace(-2, 3, len(leaf) + 1, dtype=torch.float64)
    tails = reconstruction.tails([torch.tensor([leaf])], edges)
    assert tails.thresholds[0] == 3
    assert tails.thresholds[-1] == -2
    assert bool((tails.thresholds.diff() <= 0).all())
    assert bool(tails.tail.isfinite().all())
    assert tails.tail[0, 0] == 0
    assert tails.tail[0, -1] == float(sum(leaf) > 0)
    assert bool((tails.tail.diff() >= -1e-12).all())


@given(leaf=st.lists(st.integers(-1_000, 1_000), min_size=3, max_size=40))
@settings(max_examples=100, deadline=None)
def test_aligned_tails_rise_within_0_and_1_though_counts_are_negative(leaf: list[int]) -> None:
    edges = torch.linspace(0, 1, len(leaf) + 1, dtype=torch.float64)
    tail = Aligned().tails([torch.tensor([leaf])], edges).tail
    assert bool((tail.diff() >= 0).all())
    assert bool(((tail >= 0) & (tail <= 1)).all())


@pytest.mark.parametrize("reconstruction", RECONSTRUCTIONS, ids=str)
def test_constant_scores_are_a_step(reconstruction: Reconstruction) -> None:
    leaf = torch.zeros(64, dtype=torch.int64)
    leaf[10] = 1000
    tails = reconstruction.tails([leaf[None]], torch.linspace(0, 1, 65, dtype=torch.float64))
    assert bool((tails.tail[0, tails.thresholds > 11 / 64] == 0).all())
    # The paper's first quantile is the lowest edge: its tail may fall by one quantile before.
    least = 1 - 1 / 15 - 1e-12
    if reconstruction == Aligned():
        least = 1.0
    assert bool((tails.tail[0, tails.thresholds < 10 / 64] >= least).all())


def test_aligned_tails_are_the_fractions_of_counts_above_each_edge() -> None:
    leaf = torch.tensor([[3, 1, 0, 4]])
    tails = Aligned().tails([leaf], torch.linspace(0, 1, 5, dtype=torch.float64))
    assert tails.thresholds.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert tails.tail.tolist() == [[0.0, 0.5, 0.5, 0.625, 1.0]]
    assert tails.total.tolist() == [8.0]


@pytest.mark.parametrize("is_consistent", [False, True])
@pytest.mark.parametrize("is_non_negative", [False, True])
def test_noisy_levels_are_made_consistent_and_non_negative_if_asked_for(
    is_consistent: bool, is_non_negative: bool
) -> None:
    metric = FederatedROC(quantiles=16, grid="even", privacy=CentralDP(0.1), plan="paper")
    metric.update(torch.rand(200), torch.randint(0, 2, (200,)))
    release = metric.release()
    expected = release.levels
    if is_consistent:
        expected = least_squares(expected)
    if is_non_negative:
        expected = non_negative(expected)
    reconstruction = Aligned(least_squares=is_consistent, non_negative=is_non_negative)
    levels = reconstruction.levels(release)
    assert all(map(torch.equal, levels, expected))


def test_exact_levels_are_read_as_they_are() -> None:
    metric = FederatedROC(quantiles=16)
    metric.update(torch.rand(200), torch.randint(0, 2, (200,)))
    release = metric.release()
    (level,) = Aligned().levels(release)
    assert torch.equal(level, metric.counts)
