"""The oracle of the benchmarks is as good as a reader that knows the densities, and no better."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from benchmarks.hard_scores import HARD
from benchmarks.oracle import Oracle
from benchmarks.plans import PAPER, Curves
from torchmetrics_fed import CentralDP, FederatedROC, Release
from torchmetrics_fed.typing import Floats

EPSILON = 0.07
"""The noise of a leaf has about the variance of its Poisson count, so that both matter."""

LEAVES = 512

EXAMPLES = 400_000

RELEASES = 120
"""With these, a variance that is five percent off is more than 9.8 standard errors away."""

DEVIATIONS = 4.9
"""A normal variable is further from its mean with a probability of 1e-6."""


@cache
def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores that are spread differently in each class, and targets."""
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
    scores = torch.rand(EXAMPLES, generator=generator, dtype=torch.float64)
    return scores ** (1 - 0.3 * target), target


def release_of(metric: FederatedROC) -> Release:
    metric.reset()
    metric.update(*examples())
    return metric.release()


def oracle_and_metric() -> tuple[Oracle, FederatedROC]:
    oracle = Oracle(release_of(FederatedROC()), LEAVES, np.random.default_rng())
    return oracle, FederatedROC(privacy=CentralDP(EPSILON), plan=oracle.query)


def exact_leaf(oracle: Oracle) -> Floats:
    """Return the exact counts on the leaves, ``(2, leaves)``."""
    counts = release_of(FederatedROC()).leaf
    leaf: Floats = oracle.query.tree.leaf(counts)[0].double().numpy()
    return leaf


def test_leaves_hold_equal_mean_mass() -> None:
    oracle, metric = oracle_and_metric()
    leaf = exact_leaf(oracle)
    mass = (leaf / leaf.sum(1, keepdims=True)).mean(0)
    bins = release_of(FederatedROC()).leaf[0].double().numpy()
    largest_bin = (bins / bins.sum(1, keepdims=True)).mean(0).max()
    assert abs(mass - 1 / LEAVES).max() <= largest_bin
    assert release_of(metric).spent_fraction == 1


@pytest.mark.slow
def test_errors_of_leaves_have_the_variance_of_the_posterior() -> None:
    oracle, metric = oracle_and_metric()
    leaf = exact_leaf(oracle)
    squares = []
    for _ in range(RELEASES):
        release = release_of(metric)
        noise = release.last.noise_variance
        variance = leaf * noise / (leaf + noise)
        squares.append((oracle.leaf_counts(release) - leaf) ** 2 / variance)
    means = np.mean(squares, axis=(1, 2))
    standard_error = means.std(ddof=1) / np.sqrt(RELEASES)
    assert abs(means.mean() - 1) < DEVIATIONS * standard_error
    assert 2 * DEVIATIONS * standard_error < 0.05


def test_precision_of_ties_is_read_in_steps_for_the_paper_too() -> None:
    curves = Curves(HARD["kNN, 6 values"](np.random.default_rng(7)))
    errors = curves.errors(10.0, "paper", 2, quantiles=1024, reconstruction=PAPER)
    assert (errors[:, 1] < 0.02).all()  # 0.06 if it were read linearly
