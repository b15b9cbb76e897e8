"""From leaves to bins: what a leaf holds stays in it, ties are steps, and what is empty is found to be."""

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
    return np.asarray(np.add.reduceat(counts, places[:-1], axis=1))


@given(
    leaf=st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0, 10_000.0, 1e9]), min_size=16, max_size=16),
    seed=st.integers(0, 1_000),
    lines=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_what_a_leaf_holds_stays_in_it(leaf: list[float], seed: int, lines: bool) -> None:
    places, counts = placed(8, seed), np.reshape(leaf, (2, 8))
    found = on_bins(counts, places, U, lines)
    assert found.shape == (2, BINS)
    assert bool(np.isfinite(found).all())
    assert bool((found >= 0).all())
    sizes = np.maximum(counts.sum(1, keepdims=True), 1.0)
    assert (in_leaves(found, places) - counts) / sizes == pytest.approx(np.zeros((2, 8)), abs=1e-7)


@pytest.mark.parametrize("lines", [False, True])
def test_classes_in_one_ratio_keep_it_on_every_bin(lines: bool) -> None:
    """Where both classes are spread alike there is nothing to tell, in the end leaves neither."""
    leaf = np.array([[900.0, 30, 5, 12, 70, 600]])
    found = on_bins(np.concatenate([leaf, 0.2 * leaf]), placed(6), U, lines)
    assert found[1] == pytest.approx(0.2 * found[0], rel=1e-9, abs=1e-9)


def test_lines_at_ends_are_even_in_the_coordinate() -> None:
    leaf, places = np.array([[900.0, 30, 5, 12, 70, 600], [500.0, 10, 5, 60, 200, 900]]), placed(6)
    cubic, line = (on_bins(leaf, places, U, lines).mean(0) / np.diff(U) for lines in (False, True))
    assert np.ptp(line[: places[1]]) < 0.5 * np.ptp(cubic[: places[1]])


@given(leaf=st.lists(st.integers(0, 10**6), min_size=24, max_size=24), seed=st.integers(0, 100))
@settings(max_examples=100, deadline=None)
def test_a_tied_leaf_is_one_bin_of_it_and_the_others_stay(leaf: list[int], seed: int) -> None:
    counts, places = np.reshape(leaf, (2, 12)).astype(np.float64), placed(12, seed)
    smooth = on_bins(counts, places, U)
    found, tied = with_ties(smooth.copy(), counts, places, U), are_tied(counts)
    for index, (first, after) in enumerate(pairwise(places)):
        if tied[index]:
            assert np.count_nonzero(found[:, first:after].any(0)) <= 1
            assert found[:, first:after].sum(1) == pytest.approx(counts[:, index])
        else:
            assert np.array_equal(found[:, first:after], smooth[:, first:after])


def test_leaves_of_equal_mass_are_not_tied_and_one_with_much_more_is() -> None:
    """Of 20 leaves with noise of a tenth of each, none; with a spike in either class, that leaf and no other."""
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


def separated(leaves: int, each: float) -> Floats:
    """Negatives in the lower half, positives in the upper one."""
    lower = np.where(np.arange(leaves) < leaves // 2, each, 0.0)
    return np.stack([lower, lower[::-1]])


def test_ends_that_hold_noise_only_are_empty() -> None:
    """Nearly always all of the half, and where not, still nothing of what the classes hold."""
    rng, cleared = np.random.default_rng(5), []
    truth = separated(16, 5_000.0)
    for _ in range(200):
        seen = noisy(truth, 50.0, rng)
        found = without_empty_ends(seen, 50.0)
        assert np.array_equal(found[truth > 0], seen[truth > 0])
        cleared.append(float((found[truth == 0] == 0).mean()))
    assert np.mean(cleared) > 0.9


@pytest.mark.parametrize("least", [200.0, 1_000.0])
def test_ends_that_hold_something_are_not(least: float) -> None:
    """Few examples in each leaf of the end, but more than noise makes of none."""
    rng, truth = np.random.default_rng(6), separated(16, 5_000.0)
    for _ in range(200):
        seen = noisy(np.maximum(truth, least), 50.0, rng)
        assert np.array_equal(without_empty_ends(seen, 50.0), seen)


def test_the_ends_of_placed_leaves_are_opposite_ones() -> None:
    """A class whose scores end early says nothing by itself where leaves were placed by both; without, it does."""
    rng = np.random.default_rng(7)
    truth = separated(16, 5_000.0)
    truth[1] = 2_500.0
    seen = noisy(truth, 50.0, rng)
    assert np.array_equal(without_empty_ends(seen, 50.0), seen)
    alone = without_empty_ends(seen, 50.0, placed=False)
    assert np.array_equal(alone[1], seen[1])
    assert (alone[0, 8:] == 0).sum() >= 6


def test_fewer_than_a_quarter_of_the_leaves_are_no_end() -> None:
    truth = np.full((2, 16), 5_000.0)
    truth[0, -3:], truth[1, :3] = 0.0, 0.0
    for placed_ in (True, False):
        assert np.array_equal(without_empty_ends(truth, 50.0, placed_), truth)


def test_of_a_class_that_is_lost_in_noise_nothing_is_empty() -> None:
    rng, truth = np.random.default_rng(8), separated(16, 5.0)
    for placed_ in (True, False):
        seen = noisy(truth, 50.0, rng)
        assert np.array_equal(without_empty_ends(seen, 50.0, placed_), seen)


def test_an_empty_end_bin_says_nothing_of_its_neighbour() -> None:
    leaf = np.array([[0.0, 10.0, 10.0, 10.0, 0.0]] * 2)
    assert are_tied(leaf).tolist() == [False, True, False, True, False]
    assert not are_tied(leaf, EndTies(True, True)).any()


def test_only_end_bins_of_a_two_sided_grid_are_ties() -> None:
    grid = ScoreGrid.two_sided()
    assert EndTies.of(grid, np.array([0, 1, 9, 4095, 4096])) == (True, True)
    assert EndTies.of(grid, np.array([0, 2, 4095, 4096])) == (False, True)
    assert EndTies.of(ScoreGrid.even(), np.array([0, 1, 4095, 4096])) == (False, False)
