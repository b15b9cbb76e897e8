"""The paper's bounds: above measured errors, falling with Q, r, epsilon and n, as in its text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve as exact_precision_recall
from sklearn.metrics import roc_curve as exact_roc
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedPrecisionRecallCurve, FederatedROC, InputError
from torchmetrics_fed.functional import (
    area_error_pr,
    area_error_roc,
    precision_recall_curve,
    precision_recall_from_quantiles,
    roc,
    roc_from_quantiles,
)
from torchmetrics_fed.functional.curve import CurveOptions
from torchmetrics_fed.paper import Interpolation, Quantiles, exact_quantiles
from torchmetrics_fed.paper.bounds import (
    area_error_bound_pr,
    area_error_bound_private,
    area_error_bound_roc,
    area_error_bound_summed,
)
from torchmetrics_fed.reconstruct import Aligned

Scored = tuple[Tensor, Tensor]
"""Scores and labels."""

EXAMPLES = 20_000


def beta_scores(seed: int) -> Scored:
    """Return scores of two beta distributions and a random ratio of classes: no clumps, no ties."""
    generator = np.random.default_rng(seed)
    positives = generator.uniform(0.05, 0.8)
    target = (generator.random(EXAMPLES) < positives).astype(np.int64)
    a, b = generator.uniform(0.7, 4, (2, 2))
    scores = generator.beta(a[target], b[target])
    return torch.from_numpy(scores), torch.from_numpy(target)


def clumped_scores(seed: int) -> Scored:
    """Return scores in a few narrow clumps of uneven weight, different ones for each class."""
    generator = np.random.default_rng(seed)
    size = EXAMPLES // 2
    scores = []
    for _ in range(2):
        clumps = generator.integers(1, 8)
        width = 10 ** generator.uniform(-2.0, -0.5)
        weight = generator.dirichlet(np.full(clumps, 0.5))
        places = generator.random(clumps) * (1 - width)
        clump = generator.choice(clumps, size, p=weight)
        scores.append(places[clump] + width * generator.random(size))
    target = torch.arange(2).repeat_interleave(size)
    return torch.from_numpy(np.concatenate(scores)), target


def interlocked_scores(quantiles: int, examples: int = 2_000, width: float = 0.004) -> Scored:
    """Return clumps of as many examples as lie between two quantiles, without ties.

    Positives lie just above negatives. The quantile of the positives is the highest score of a
    clump, that of the negatives the lowest. So rates are known exactly at the ends of a clump, both
    estimates run along the diagonal, and the exact curve makes its whole step at once.
    """
    offsets = width * np.linspace(0, 1, examples + 1)[1:]
    clumps = np.linspace(0.05, 0.95, quantiles - 1)[:, None]
    negative = np.append(clumps - offsets, 1.0)
    positive = np.append(clumps + offsets, 0.0)
    target = torch.arange(2).repeat_interleave(len(positive))
    return torch.from_numpy(np.concatenate([negative, positive])), target


def ratio_of(target: Tensor) -> float:
    """Return r = n+ / n-."""
    return target.sum().item() / (1 - target).sum().item()


def roc_error(curve: Any, scored: Scored) -> float:
    preds, target = scored
    return area_error_roc(curve, exact_roc(target, preds))


def pr_error(curve: Any, scored: Scored) -> float:
    preds, target = scored
    return area_error_pr(curve, exact_precision_recall(target, preds))


@pytest.mark.parametrize("quantiles", [8, 32, 128])
@pytest.mark.parametrize("interpolation", ["linear", "pchip"])
def test_exact_quantiles_stay_below_theorems_4_2_and_4_3(
    quantiles: int, interpolation: Interpolation
) -> None:
    for seed in range(12):
        scored = beta_scores(seed)
        target = scored[1]
        positives = target.sum().item()
        scores = exact_quantiles(*scored, quantiles)
        roc_curve = roc_from_quantiles(scores, interpolation=interpolation)
        pr_curve = precision_recall_from_quantiles(
            scores, len(target) - positives, positives, interpolation=interpolation
        )
        assert roc_error(roc_curve, scored) < area_error_bound_roc(quantiles)
        pr_bound = area_error_bound_pr(quantiles, ratio_of(target))
        assert pr_error(pr_curve, scored) < pr_bound


@pytest.mark.parametrize("interpolation", ["linear", "pchip"])
@pytest.mark.parametrize("quantiles", [3, 5, 9, 17])
def test_clumps_exceed_the_papers_constant_but_not_the_strict_one(
    quantiles: int, interpolation: Interpolation
) -> None:
    scored = interlocked_scores(quantiles)
    preds = scored[0]
    assert len(preds.unique()) == len(preds)
    scores = exact_quantiles(*scored, quantiles)
    error = roc_error(roc_from_quantiles(scores, interpolation=interpolation), scored)
    assert error > 1.2 * area_error_bound_roc(quantiles)
    assert error < area_error_bound_roc(quantiles, strict=True)


def test_the_strict_bound_holds_for_random_clumps() -> None:
    for seed in range(60):
        scored = clumped_scores(seed)
        quantiles = 3 + seed % 7
        scores = exact_quantiles(*scored, quantiles)
        error = roc_error(roc_from_quantiles(scores, interpolation="linear"), scored)
        assert error < area_error_bound_roc(quantiles, strict=True)


def largest_bin(scored: Scored, bins: int) -> float:
    """Return the largest fraction of a class in one bin."""
    preds, target = scored
    fractions = []
    for label in (0, 1):
        scores = preds[target == label]
        counts, _ = np.histogram(scores, bins, (0, 1))
        fractions.append(counts.max() / len(scores))
    return float(max(fractions))


@pytest.mark.parametrize("make", [beta_scores, clumped_scores])
@pytest.mark.parametrize("quantiles", [16, 128, 1024])
def test_summed_histograms_stay_below_theorem_4_4(
    quantiles: int, make: Callable[[int], Scored]
) -> None:
    bins = 1 << (quantiles - 1).bit_length() + 2
    for seed in range(6):
        scored = make(seed)
        lipschitz = largest_bin(scored, bins) * bins
        bound = area_error_bound_summed(quantiles, ratio_of(scored[1]), lipschitz=lipschitz)
        for reconstruction in (Aligned(), Quantiles(quantiles)):
            options: CurveOptions = {
                "quantiles": quantiles,
                "grid": "even",
                "reconstruction": reconstruction,
            }
            assert roc_error(roc(*scored, **options), scored) <= bound.roc
            pr_curve = precision_recall_curve(*scored, **options)
            assert pr_error(pr_curve, scored) <= bound.precision_recall


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_private_histograms_stay_below_theorem_4_5_on_average(epsilon: float, seed: int) -> None:
    scored = beta_scores(seed)
    target = scored[1]
    n_pos = int(target.sum())
    metric = FederatedROC(quantiles=64, grid="even", privacy=CentralDP(epsilon), plan="paper")
    paper = Quantiles(64, non_negative=False)
    errors = []
    for _ in range(5):
        metric.reset()
        metric.update(*scored)
        release = metric.release()
        roc_metric = FederatedROC.from_release(release, reconstruction=paper)
        pr_metric = FederatedPrecisionRecallCurve.from_release(release, reconstruction=paper)
        errors.append(
            [
                roc_error(roc_metric.compute(), scored),
                pr_error(pr_metric.compute(), scored),
            ]
        )
    bound = area_error_bound_private(64, epsilon, n_pos, len(target) - n_pos, lipschitz=10.0)
    assert (np.mean(errors, 0) < bound).all()


QUANTILES = (2, 3, 16, 1024)
FALLING = {
    "roc, Q-": [area_error_bound_roc(q) for q in QUANTILES],
    "roc, Q+": [area_error_bound_roc(16, q) for q in QUANTILES],
    "roc, strict": [area_error_bound_roc(q, strict=True) for q in QUANTILES],
    "pr, Q": [area_error_bound_pr(q, 0.3) for q in (16, 64, 1024, 10**6)],
    "pr, r": [area_error_bound_pr(1024, r) for r in (0.003, 0.03, 0.3, 1.0)],
}
FALLING_PAIRS = {
    "summed, Q": [area_error_bound_summed(q, 0.3) for q in (16, 64, 1024)],
    "summed, Lipschitz": [
        area_error_bound_summed(64, 0.3, lipschitz=lipschitz) for lipschitz in (9.0, 3.0, 1.0)
    ],
    "private, epsilon": [area_error_bound_private(64, e, 5_000, 9_000) for e in (0.3, 1.0, 3.0)],
    "private, n": [area_error_bound_private(64, 1.0, n, 2 * n) for n in (5_000, 50_000, 500_000)],
}


def falls(values: list[float]) -> bool:
    return all(after < before <= 1 for before, after in pairwise(values))


@pytest.mark.parametrize("name", FALLING)
def test_bounds_fall_with_quantiles_and_ratio(name: str) -> None:
    assert falls(FALLING[name])


@pytest.mark.parametrize("name", FALLING_PAIRS)
def test_bounds_of_both_curves_fall_with_quantiles_epsilon_and_examples(name: str) -> None:
    assert falls([bound.roc for bound in FALLING_PAIRS[name]])
    assert falls([bound.precision_recall for bound in FALLING_PAIRS[name]])


def test_the_roc_bound_is_that_of_the_text() -> None:
    """A quarter of the positives' interval and three quarters of the negatives', if larger."""
    assert area_error_bound_roc(1025) == 1 / 1024
    assert area_error_bound_roc(5, 9) == pytest.approx(1 / 32 + 3 / 16)
    assert area_error_bound_roc(9, 5) == pytest.approx(1 / 8 + 1 / 16)


def test_the_pr_bound_is_that_of_the_text() -> None:
    alpha = 1e-3
    r = 0.1
    expected = 2 * alpha / r + alpha / r * np.log(r / alpha)
    assert area_error_bound_pr(2, r, alpha=alpha) == pytest.approx(expected)
    # r > 1 is the balanced case
    assert area_error_bound_pr(1025, 1.0) == area_error_bound_pr(1025, 7.0)
    # 2 alpha / r is all of the range
    assert area_error_bound_pr(2, 0.01, alpha=0.005) == 1


def test_the_summed_bound_is_that_of_the_text() -> None:
    """The height is the logarithm of Q, rounded up, plus 2."""
    binary = area_error_bound_summed(1024, 1.0)
    assert binary.roc == pytest.approx(1 / 1023 + 2 / 4096)
    quaternary = area_error_bound_summed(1025, 1.0, branching=4)
    assert quaternary.roc == pytest.approx(1 / 1024 + 2 / 4**8)


def test_the_private_bound_without_noise_is_the_summed_one() -> None:
    endless = area_error_bound_private(64, 1e12, 5_000, 9_000)
    assert endless == pytest.approx(area_error_bound_summed(64, 5 / 9))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: area_error_bound_roc(1),
            "`quantiles` to be an int of at least 2, both ends included, but got 1",
        ),
        (lambda: area_error_bound_roc(4, 0), "`quantiles` to be an int of at least 2"),
        (
            lambda: area_error_bound_pr(16, 0.0),
            "`ratio` to be a positive finite number but got 0.0",
        ),
        (
            lambda: area_error_bound_pr(16, 1.0, alpha=-1.0),
            "`alpha` to be a positive finite number but got -1.0",
        ),
        (
            lambda: area_error_bound_summed(16, 1.0, lipschitz=0.0),
            "`lipschitz` to be a positive finite number",
        ),
        (
            lambda: area_error_bound_summed(16, 1.0, branching=1),
            "`branching` to be an int of at least 2 but got 1",
        ),
        (
            lambda: area_error_bound_private(16, 0.0, 9, 9),
            "`epsilon` to be a positive finite number but got 0.0",
        ),
        (
            lambda: area_error_bound_private(16, 1.0, 9, 9, height=0),
            "`height` to be an int of at least 1 but got 0",
        ),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
