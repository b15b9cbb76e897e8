"""From leaves to bins: a leaf keeps its counts, ties are steps, and empty ends are cleared."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.reconstruct.leaves import (
    EndTies,
    are_tied,
    on_bins,
    with_ties,
    without_empty_ends,
)
from torchmetrics_fed.typing import Floats, Places

U = ScoreGrid.two_sided(64).coordinate
BINS = len(U) - 1


def placed(leaves: int, seed: int = 0) -> Places:
    """Edges of leaves at random places."""
    inner = np.random.default_rng(seed).choice(np.arange(1, BINS), leaves - 1, replace=False)
    return np.sort(np.r_[0, inner, BINS])


def in_leaves(counts: Floats, places: Places) -> Floats:
    """Return the sums of bins in each leaf."""
    return np.asarray(np.add.reduceat(counts, places[:-1], axis=1))


@given(
    leaf=st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0, 10_000.0, 1e9]), min_size=16, max_size=16),
    seed=st.integers(0, 1_000),
    lines=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_leaf_keeps_its_counts(leaf: list[float], seed: int, lines: bool) -> None:
    places = placed(8, seed)
    counts = np.reshape(leaf, (2, 8))
    bins = on_bins(counts, places, U, lines)
    assert bins.shape == (2, BINS)
    assert bool(np.isfinite(bins).all())
    assert bool((bins >= 0).all())
    sizes = np.maximum(counts.sum(1, keepdims=True), 1.0)
    assert (np.abs(in_leaves(bins, places) - counts) < 1e-7 * sizes).all()


@pytest.mark.parametrize("lines", [False, True])
def test_classes_in_one_ratio_keep_it_on_every_bin(lines: bool) -> None:
    """Both classes are spread alike, in the end leaves, too."""
    leaf = np.array([[900.0, 30, 5, 12, 70, 600]])
    negative, positive = on_bins(np.concatenate([leaf, 0.2 * leaf]), placed(6), U, lines)
    assert positive == pytest.approx(0.2 * negative, rel=1e-9, abs=1e-9)


def test_lines_at_ends_are_even_in_the_coordinate() -> None:
    leaf = np.array([[900.0, 30, 5, 12, 70, 600], [500.0, 10, 5, 60, 200, 900]])
    places = placed(6)
    first_leaf = slice(0, places[1])
    cubic = on_bins(leaf, places, U).mean(0) / np.diff(U)
    line = on_bins(leaf, places, U, lines_at_ends=True).mean(0) / np.diff(U)
    assert np.ptp(line[first_leaf]) < 0.5 * np.ptp(cubic[first_leaf])


@given(leaf=st.lists(st.integers(0, 10**6), min_size=24, max_size=24), seed=st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_a_tied_leaf_is_one_of_its_bins_and_other_leaves_stay(leaf: list[int], seed: int) -> None:
    counts = np.reshape(leaf, (2, 12)).astype(np.float64)
    places = placed(12, seed)
    smooth = on_bins(counts, places, U)
    bins = with_ties(smooth.copy(), counts, places, U)
    tied = are_tied(counts)
    for index, (first, after) in enumerate(pairwise(places)):
        leaf_bins = bins[:, first:after]
        if tied[index]:
            assert np.count_nonzero(leaf_bins.any(0)) <= 1
            assert leaf_bins.sum(1) == pytest.approx(counts[:, index])
        else:
            assert np.array_equal(leaf_bins, smooth[:, first:after])


def test_leaves_of_equal_mass_are_not_tied_and_a_spike_is() -> None:
    """20 leaves with noise of a tenth of their counts, and a spike in either class."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        leaf = np.maximum(100 + rng.laplace(0, 10 / np.sqrt(2), (2, 20)), 0)
        assert not are_tied(leaf).any()
        spike = int(rng.integers(20))
        leaf[rng.integers(2), spike] += 500
        assert np.flatnonzero(are_tied(leaf)).tolist() == [spike]


def test_a_leaf_that_stands_alone_is_tied_though_it_holds_little_more_than_its_part() -> None:
    leaf = np.full((2, 10), 100.0)
    leaf[:, [3, 5]] = 5.0
    assert np.flatnonzero(are_tied(leaf)).tolist() == [2, 4, 6]


def noisy(leaf: Floats, variance: float, rng: np.random.Generator) -> Floats:
    return np.asarray(leaf + rng.laplace(0, np.sqrt(variance / 2), leaf.shape))


def separated(leaves: int, count: float) -> Floats:
    """Return negatives in the lower half of the leaves, positives in the upper half."""
    lower = np.where(np.arange(leaves) < leaves // 2, count, 0.0)
    return np.stack([lower, lower[::-1]])


def test_ends_that_hold_noise_only_are_cleared() -> None:
    """Nearly always all of the half, and never a leaf that holds examples."""
    rng = np.random.default_rng(5)
    truth = separated(16, 5_000.0)
    cleared = []
    for _ in range(200):
        leaf = noisy(truth, 50.0, rng)
        result = without_empty_ends(leaf, 50.0)
        assert np.array_equal(result[truth > 0], leaf[truth > 0])
        cleared.append(float((result[truth == 0] == 0).mean()))
    assert np.mean(cleared) > 0.9


@pytest.mark.parametrize("least", [200.0, 1_000.0])
def test_ends_that_hold_examples_stay(least: float) -> None:
    """Few examples in each leaf of the end, but more than noise alone shows."""
    rng = np.random.default_rng(6)
    truth = np.maximum(separated(16, 5_000.0), least)
    for _ in range(200):
        leaf = noisy(truth, 50.0, rng)
        assert np.array_equal(without_empty_ends(leaf, 50.0), leaf)


def test_the_ends_of_placed_leaves_are_opposite_ones() -> None:
    """A single class with an empty end counts only if leaves were not placed by both classes."""
    rng = np.random.default_rng(7)
    truth = separated(16, 5_000.0)
    truth[1] = 2_500.0
    leaf = noisy(truth, 50.0, rng)
    assert np.array_equal(without_empty_ends(leaf, 50.0), leaf)
    negative, positive = without_empty_ends(leaf, 50.0, placed=False)
    assert np.array_equal(positive, leaf[1])
    assert (negative[8:] == 0).sum() >= 6


@pytest.mark.parametrize("are_placed", [True, False])
def test_an_end_of_fewer_than_a_quarter_of_the_leaves_stays(are_placed: bool) -> None:
    leaf = np.full((2, 16), 5_000.0)
    leaf[0, -3:] = 3.0
    leaf[1, :3] = 3.0
    assert np.array_equal(without_empty_ends(leaf, 50.0, are_placed), leaf)


@pytest.mark.parametrize("are_placed", [True, False])
def test_a_class_that_is_lost_in_noise_stays(are_placed: bool) -> None:
    leaf = noisy(separated(16, 5.0), 50.0, np.random.default_rng(8))
    assert np.array_equal(without_empty_ends(leaf, 50.0, are_placed), leaf)


def test_an_empty_end_bin_says_nothing_of_its_neighbour() -> None:
    leaf = np.array([[0.0, 10.0, 10.0, 10.0, 0.0]] * 2)
    assert are_tied(leaf).tolist() == [False, True, False, True, False]
    assert not are_tied(leaf, EndTies(True, True)).any()


def test_only_end_bins_of_a_two_sided_grid_are_ties() -> None:
    grid = ScoreGrid.two_sided()
    assert EndTies.of(grid, np.array([0, 1, 9, 4095, 4096])) == (True, True)
    assert EndTies.of(grid, np.array([0, 2, 4095, 4096])) == (False, True)
    assert EndTies.of(ScoreGrid.even(), np.array([0, 1, 4095, 4096])) == (False, False)


def test_an_end_is_judged_by_the_noise_of_its_own_leaves() -> None:
    """The same counts are noise where the noise is large, and examples where it is small."""
    leaf = np.zeros((2, 16))
    leaf[0, :8] = 1e5
    leaf[1, 8:] = 1e5
    leaf[0, 8:] = 10.0
    leaf[1, :8] = 10.0
    loud = without_empty_ends(leaf, np.full((2, 1), 400.0))
    assert not loud[0, 8:].any()
    assert not loud[1, :8].any()
    variance = np.full((2, 16), 400.0)
    variance[0, 8:] = 1.0
    quiet = without_empty_ends(leaf, variance)
    assert np.array_equal(quiet[0, 8:], leaf[0, 8:])
