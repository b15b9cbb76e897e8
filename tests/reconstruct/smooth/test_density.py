"""The smooth model: it is what it was given where that is smooth, and says where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves, agree, fit, together
from torchmetrics_fed.typing import Floats

LEAVES = 24
EDGES = np.arange(LEAVES + 1)
U: Floats = EDGES / LEAVES
VARIANCE = 30.0


def smooth(size: float = 1.0) -> Floats:
    """Expected leaves of two classes with densities that have smooth logarithms."""
    middle = (U[1:] + U[:-1]) / 2
    logs = np.stack([np.sin(3 * middle) - 2 * middle, np.cos(2 * middle) + 2 * middle])
    return np.asarray(
        size * np.array([[8_000.0], [2_000.0]]) * np.exp(logs) / np.exp(logs).sum(1, keepdims=True)
    )


def noisy(leaf: Floats, seed: int) -> NoisyLeaves:
    rng = np.random.default_rng(seed)
    return NoisyLeaves(
        EDGES, rng.poisson(leaf) + rng.laplace(0, np.sqrt(VARIANCE / 2), leaf.shape), VARIANCE
    )


def test_smooth_leaves_are_fitted_better_than_they_are_known() -> None:
    """The model holds, and is nearer to the truth than the noisy leaves it was fitted to: of two classes at once."""
    truth, ours, theirs = smooth(), 0.0, 0.0
    for seed in range(30):
        answer = noisy(truth, seed)
        model = fit([answer], EDGES, U, U, 3.0)
        assert model.holds
        assert model.bins == pytest.approx(model.cells)
        ours += float(((model.bins - truth) ** 2).sum())
        theirs += float(((answer.counts - truth) ** 2).sum())
    assert ours < 0.8 * theirs


@pytest.mark.parametrize("rows", [[0], [1], [0, 1]])
def test_ties_are_what_the_model_does_not_know(rows: list[int]) -> None:
    """Three in either class. One that outweighs all others is a peak, as far as so few leaves can tell."""
    truth = smooth()
    for row in rows:
        truth[row, [3, 10, 17]] += 0.5 * truth[row].sum()
    assert not any(fit([noisy(truth, seed)], EDGES, U, U, 3.0).holds for seed in range(10))


@pytest.mark.parametrize("place", [0, -1])
def test_scores_may_crowd_in_the_first_and_in_the_last_leaf_of_a_pilot(place: int) -> None:
    truth = smooth()
    truth[:, place] += 1.5 * truth.sum(1)
    for seed in range(5):
        model = fit([noisy(truth, seed)], EDGES, U, U, 3.0)
        assert model.holds
        assert model.bins[:, place] == pytest.approx(truth[:, place], rel=0.1)


def test_a_variance_of_each_leaf_is_one_of_all_where_it_is_the_same() -> None:
    one = noisy(smooth(), 1)
    each = one._replace(variance=np.full(one.counts.shape, VARIANCE))
    start = np.zeros((2, LEAVES))
    for begun in (None, start):
        first, second = (fit([known], EDGES, U, U, 3.0, begun).cells for known in (one, each))
        assert np.array_equal(first, second)


def test_two_answers_of_twice_the_variance_are_worth_one() -> None:
    one = noisy(smooth(), 2)
    half = one._replace(variance=2 * VARIANCE)
    assert fit([half, half], EDGES, U, U, 3.0).cells == pytest.approx(
        fit([one], EDGES, U, U, 3.0).cells, rel=1e-6
    )


def test_an_answer_with_endless_noise_says_nothing() -> None:
    one = noisy(smooth(), 3)
    coarse = NoisyLeaves(EDGES[::4], np.full((2, LEAVES // 4), 1e5), 1e16)
    assert fit([one, coarse], EDGES, U, U, 3.0).cells == pytest.approx(
        fit([one], EDGES, U, U, 3.0).cells, rel=1e-3
    )


def test_a_better_known_level_above_makes_the_fit_better() -> None:
    """Sums of four leaves with a sixteenth of the variance, as a weighted tree has them."""
    truth, errors = smooth(0.05), np.zeros(2)
    start = np.zeros((2, LEAVES))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        leaf = noisy(truth, seed)
        upper = truth.reshape(2, -1, 4).sum(-1)
        known = NoisyLeaves(
            EDGES[::4], upper + rng.laplace(0, np.sqrt(VARIANCE / 32), upper.shape), VARIANCE / 16
        )
        for index, answers in enumerate(([leaf], [leaf, known])):
            errors[index] += ((fit(answers, EDGES, U, U, 3.0, start).cells - truth) ** 2).sum()
    assert errors[1] < 0.6 * errors[0]


def test_all_classes_together_are_the_sums_of_their_counts_and_of_their_noise() -> None:
    answers = [
        [noisy(smooth(), seed), noisy(smooth(), 10 + seed)._replace(variance=7.0)]
        for seed in range(3)
    ]
    first, second = together(answers)
    assert first.counts == pytest.approx(np.sum([each[0].counts for each in answers], 0))
    assert second.counts == pytest.approx(np.sum([each[1].counts for each in answers], 0))
    assert (first.variance, second.variance) == (3 * VARIANCE, 21.0)


def test_counts_agree_with_what_they_were_drawn_from_and_with_nothing_else() -> None:
    """Noise and sampling are no disagreement, nor is a twentieth of large counts; a third of one class is."""
    small, large = smooth(), smooth(1_000.0)
    for seed in range(300):
        assert agree(noisy(small, seed).counts, small, VARIANCE)
    assert agree(1.05 * large, large, VARIANCE)
    wrong = small.copy()
    wrong[1, ::2] *= 1.6
    wrong[1, 1::2] *= 0.4
    assert not any(agree(noisy(wrong, seed).counts, small, VARIANCE) for seed in range(30))
