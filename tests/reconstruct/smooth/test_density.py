"""The smooth model: it follows smooth densities, and says where scores are not smooth."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from torchmetrics_fed.reconstruct.smooth.density import Fit, NoisyLeaves, agree, fit, together
from torchmetrics_fed.typing import Floats

LEAVES = 24
EDGES = np.arange(LEAVES + 1)
U: Floats = EDGES / LEAVES
VARIANCE = 30.0
SIZES = np.array([[8_000.0], [2_000.0]])

fit_pilot = partial(fit, cells=EDGES, x=U, mass=U, slope=3.0)
"""The fit of a pilot: each leaf is a cell, and the mass is even."""

fit_release = partial(fit_pilot, start=np.zeros((2, LEAVES)))
"""The same, where counts vary by sampling, too."""


def smooth(size: float = 1.0) -> Floats:
    """Return expected leaves of two classes with densities that have smooth logarithms."""
    middle = (U[1:] + U[:-1]) / 2
    logs = np.stack([np.sin(3 * middle) - 2 * middle, np.cos(2 * middle) + 2 * middle])
    densities = np.exp(logs)
    return np.asarray(size * SIZES * densities / densities.sum(1, keepdims=True))


def laplace(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> Floats:
    return np.asarray(rng.laplace(0, np.sqrt(variance / 2), shape))


def noisy(leaf: Floats, seed: int) -> NoisyLeaves:
    """Return a sample of expected leaves, with noise."""
    rng = np.random.default_rng(seed)
    sample = rng.poisson(leaf)
    return NoisyLeaves(EDGES, sample + laplace(rng, VARIANCE, leaf.shape), VARIANCE)


def test_smooth_leaves_are_fitted_better_than_they_are_known() -> None:
    """The model is nearer to the truth than the noisy leaves, of two classes at once."""
    truth = smooth()
    model_error = 0.0
    leaf_error = 0.0
    for seed in range(30):
        leaves = noisy(truth, seed)
        model = fit_pilot([leaves])
        assert model.holds
        assert model.leaves == pytest.approx(model.cells)
        model_error += float(((model.leaves - truth) ** 2).sum())
        leaf_error += float(((leaves.counts - truth) ** 2).sum())
    assert model_error < 0.8 * leaf_error


@pytest.mark.parametrize("rows", [[0], [1], [0, 1]])
def test_the_model_does_not_hold_for_ties(rows: list[int]) -> None:
    """Three ties in either class. A single one is a peak, as far as so few leaves can tell."""
    truth = smooth()
    for row in rows:
        truth[row, [3, 10, 17]] += 0.5 * truth[row].sum()
    assert not any(fit_pilot([noisy(truth, seed)]).holds for seed in range(10))


@pytest.mark.parametrize("place", [0, -1])
def test_scores_may_crowd_in_the_first_and_in_the_last_leaf_of_a_pilot(place: int) -> None:
    truth = smooth()
    truth[:, place] += 1.5 * truth.sum(1)
    for seed in range(5):
        model = fit_pilot([noisy(truth, seed)])
        assert model.holds
        assert model.leaves[:, place] == pytest.approx(truth[:, place], rel=0.1)


@pytest.mark.parametrize("fitted", [fit_pilot, fit_release], ids=["pilot", "release"])
def test_one_variance_for_all_leaves_is_the_same_as_equal_ones(fitted: partial[Fit]) -> None:
    leaves = noisy(smooth(), 1)
    variances = np.full(leaves.counts.shape, VARIANCE)
    expected = fitted([leaves]).cells
    assert np.array_equal(fitted([leaves._replace(variance=variances)]).cells, expected)


def test_two_observations_of_twice_the_variance_are_worth_one() -> None:
    leaves = noisy(smooth(), 2)
    half = leaves._replace(variance=2 * VARIANCE)
    expected = fit_pilot([leaves]).cells
    assert fit_pilot([half, half]).cells == pytest.approx(expected, rel=1e-6)


def test_an_observation_with_endless_noise_says_nothing() -> None:
    leaves = noisy(smooth(), 3)
    coarse = NoisyLeaves(EDGES[::4], np.full((2, LEAVES // 4), 1e5), 1e16)
    expected = fit_pilot([leaves]).cells
    assert fit_pilot([leaves, coarse]).cells == pytest.approx(expected, rel=1e-3)


def test_a_better_known_level_above_makes_the_fit_better() -> None:
    """Sums of four leaves with a sixteenth of the variance, as a weighted tree has them."""
    truth = smooth(0.05)
    sums = truth.reshape(2, -1, 4).sum(-1)
    error_of_leaves = 0.0
    error_of_levels = 0.0
    for seed in range(40):
        leaves = noisy(truth, seed)
        rng = np.random.default_rng(seed)
        noisy_sums = sums + laplace(rng, VARIANCE / 16, sums.shape)
        upper = NoisyLeaves(EDGES[::4], noisy_sums, VARIANCE / 16)
        error_of_leaves += ((fit_release([leaves]).cells - truth) ** 2).sum()
        error_of_levels += ((fit_release([leaves, upper]).cells - truth) ** 2).sum()
    assert error_of_levels < 0.6 * error_of_leaves


def test_counts_that_floats_cannot_weigh_against_the_prior_have_no_model() -> None:
    leaves = NoisyLeaves(EDGES, np.full((2, LEAVES), 1e300), 1e-300)
    with np.errstate(all="ignore"):
        assert not fit_pilot([leaves]).holds


def test_all_classes_together_are_the_sums_of_their_counts_and_of_their_noise() -> None:
    observations = []
    for seed in range(3):
        fine = noisy(smooth(), seed)
        coarse = noisy(smooth(), 10 + seed)._replace(variance=7.0)
        observations.append([fine, coarse])
    fine_sum, coarse_sum = together(observations)
    assert fine_sum.counts == pytest.approx(sum(fine.counts for fine, _ in observations))
    assert coarse_sum.counts == pytest.approx(sum(coarse.counts for _, coarse in observations))
    assert fine_sum.variance == 3 * VARIANCE
    assert coarse_sum.variance == 21.0


def test_counts_agree_with_the_expected_counts_they_were_drawn_from() -> None:
    """Noise and sampling are no disagreement, nor is a twentieth of large counts."""
    expected = smooth()
    for seed in range(300):
        assert agree(noisy(expected, seed).counts, expected, VARIANCE)
    large = smooth(1_000.0)
    assert agree(1.05 * large, large, VARIANCE)


def test_counts_do_not_agree_with_others() -> None:
    """The power of the test above: a class whose leaves are off by 60% up and down."""
    expected = smooth()
    wrong = expected.copy()
    wrong[1, ::2] *= 1.6
    wrong[1, 1::2] *= 0.4
    for seed in range(30):
        assert not agree(noisy(wrong, seed).counts, expected, VARIANCE)
