"""Laws of the randomness: exact probabilities, and no state that could be copied or seeded."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from torchmetrics_fed.privacy.draws import coins, random_words, uniform_below

ALPHA = 1e-6
"""Probability that a right law is rejected, in each test."""


def test_words_fill_all_64_bits() -> None:
    words = random_words(4096)
    assert words.shape == (4096,)
    assert words.dtype == np.uint64
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    for ones in bits.sum(axis=0):
        assert stats.binomtest(int(ones), 4096).pvalue > ALPHA / 64
    assert random_words(0).shape == (0,)


@pytest.mark.parametrize("bound", [2, 3, 10, 1000])
def test_uniform_below_is_uniform(bound: int) -> None:
    values = uniform_below(bound, 100_000)
    assert values.dtype == np.int64
    assert values.max() < bound
    assert stats.chisquare(np.bincount(values, minlength=bound)).pvalue > ALPHA


def test_uniform_below_is_uniform_when_a_quarter_of_the_words_is_refused() -> None:
    bound = 2**62 + 1
    thirds = np.bincount(uniform_below(bound, 99_999) // (bound // 3 + 1), minlength=3)
    assert stats.chisquare(thirds).pvalue > ALPHA


def test_uniform_below_takes_one_bound_per_draw() -> None:
    bounds = np.tile(np.array([1, 2, 7], dtype=np.int64), 20_000)
    ones, twos, sevens = uniform_below(bounds, bounds.size).reshape(-1, 3).T
    assert not ones.any()
    assert stats.chisquare(np.bincount(twos, minlength=2)).pvalue > ALPHA
    assert stats.chisquare(np.bincount(sevens, minlength=7)).pvalue > ALPHA


@pytest.mark.parametrize("bound", [0, -3, np.array([4, 0])])
def test_uniform_below_refuses_empty_ranges(bound: int | NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match=r"Expected `bound` to be at least 1, but got (0|-3)"):
        uniform_below(bound, 2)


@pytest.mark.parametrize("count", [200_000, 199_999])
def test_coins_are_fair(count: int) -> None:
    heads = coins(count)
    assert heads.shape == (count,)
    assert heads.dtype == np.bool_
    assert stats.binomtest(int(heads.sum()), count).pvalue > ALPHA
    assert stats.binomtest(int(heads.sum()), count, 0.5 * 0.95).pvalue < ALPHA
    agreeing = int((heads[1:] == heads[:-1]).sum())  # coins are independent
    assert stats.binomtest(agreeing, count - 1).pvalue > ALPHA


def test_few_coins_and_none() -> None:
    assert coins(0).shape == (0,)
    assert {coins(1).tolist()[0] for _ in range(64)} == {True, False}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_processes_draw_different_words() -> None:
    drawn = {random_words(4).tobytes()}  # the words of the parent must not come again in a child
    for _ in range(64):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, random_words(4).tobytes())
            os._exit(0)  # nothing of the test may run on in the child
        drawn.add(os.read(read, 32))
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
    assert len(drawn) == 65


def test_seeding_changes_nothing() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        drawn.append(random_words(4).tobytes())
    assert drawn[0] != drawn[1]
