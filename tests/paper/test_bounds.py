"""The paper's bounds: above what is measured on random data, falling with Q, r, epsilon and n, and as in its text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

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
    exact_quantiles,
    precision_recall_curve,
    precision_recall_from_quantiles,
    roc,
    roc_from_quantiles,
)
from torchmetrics_fed.functional.curve import CurveOptions
from torchmetrics_fed.paper.bounds import (
    area_error_bound_pr,
    area_error_bound_private,
    area_error_bound_roc,
    area_error_bound_summed,
)
from torchmetrics_fed.reconstruct import Method, Reconstruction

Scores = tuple[Tensor, Tensor]


def _beta(seed: int, examples: int = 20_000) -> Scores:
    """Scores of two beta distributions and a ratio of classes, all drawn: no clumps, no ties."""
    generator = np.random.default_rng(seed)
    target = (generator.random(examples) < generator.uniform(0.05, 0.8)).astype(np.int64)
    a, b = generator.uniform(0.7, 4, (2, 2))
    return torch.from_numpy(generator.beta(a[target], b[target])), torch.from_numpy(target)


def _clumps(seed: int, examples: int = 20_000) -> Scores:
    """Scores in a few narrow clumps of uneven weight, other ones for each class."""
    generator = np.random.default_rng(seed)
    scores = []
    for _ in range(2):
        clumps, width = generator.integers(1, 8), 10 ** generator.uniform(-2.0, -0.5)
        weight = generator.dirichlet(np.full(clumps, 0.5))
        at = generator.random(clumps)[generator.choice(clumps, examples // 2, p=weight)] * (
            1 - width
        )
        scores.append(at + width * generator.random(examples // 2))
    return torch.from_numpy(np.concatenate(scores)), torch.arange(2).repeat_interleave(
        examples // 2
    )


def _ratio(target: Tensor) -> float:
    return target.sum().item() / (1 - target).sum().item()


def _errors(roc_curve: Any, pr_curve: Any, scores: Scores) -> tuple[float, float]:
    preds, target = scores
    return (
        area_error_roc(roc_curve, exact_roc(target, preds)),
        area_error_pr(pr_curve, exact_precision_recall(target, preds)),
    )


@pytest.mark.parametrize("quantiles", [8, 32, 128])
@pytest.mark.parametrize("interpolation", ["linear", "pchip"])
def test_exact_quantiles_stay_below_theorems_4_2_and_4_3(
    quantiles: int, interpolation: Any
) -> None:
    for seed in range(12):
        scores = _beta(seed)
        chosen, positives = exact_quantiles(*scores, quantiles), scores[1].sum().item()
        measured = _errors(
            roc_from_quantiles(chosen, interpolation=interpolation),
            precision_recall_from_quantiles(
                chosen, len(scores[1]) - positives, positives, interpolation=interpolation
            ),
            scores,
        )
        assert measured[0] < area_error_bound_roc(quantiles)
        assert measured[1] < area_error_bound_pr(quantiles, _ratio(scores[1]))


def _interlocked(quantiles: int, examples: int = 2_000, width: float = 0.004) -> Scores:
    """Clumps of as many examples as are between two quantiles, positives just above negatives: no ties.

    The quantile of the positives is the highest score of a clump, that of the negatives the lowest. So rates are known
    exactly at the ends of a clump, both estimates run along the diagonal, and all that is true happens at once.
    """
    at = np.linspace(0, 1, examples + 1)[1:]
    clumps = np.linspace(0.05, 0.95, quantiles - 1)[:, None]
    negative, positive = np.append(clumps - width * at, 1.0), np.append(clumps + width * at, 0.0)
    target = torch.arange(2).repeat_interleave(len(positive))
    return torch.from_numpy(np.concatenate([negative, positive])), target


@pytest.mark.parametrize("interpolation", ["linear", "pchip"])
@pytest.mark.parametrize("quantiles", [3, 5, 9, 17])
def test_clumps_exceed_the_papers_constant_but_not_the_strict_one(
    quantiles: int, interpolation: Any
) -> None:
    preds, target = _interlocked(quantiles)
    assert len(preds.unique()) == len(preds)
    curve = roc_from_quantiles(
        exact_quantiles(preds, target, quantiles), interpolation=interpolation
    )
    error = area_error_roc(curve, exact_roc(target, preds))
    assert (
        1.2 * area_error_bound_roc(quantiles) < error < area_error_bound_roc(quantiles, strict=True)
    )


def test_the_strict_bound_holds_for_random_clumps() -> None:
    for seed in range(60):
        (preds, target), quantiles = _clumps(seed), 3 + seed % 7
        curve = roc_from_quantiles(
            exact_quantiles(preds, target, quantiles), interpolation="linear"
        )
        assert area_error_roc(curve, exact_roc(target, preds)) < area_error_bound_roc(
            quantiles, strict=True
        )


@pytest.mark.parametrize("scored", [_beta, _clumps])
@pytest.mark.parametrize("quantiles", [16, 128, 1024])
def test_summed_histograms_stay_below_theorem_4_4(
    quantiles: int, scored: Callable[[int], Scores]
) -> None:
    for seed in range(6):
        preds, target = scored(seed)
        bins = 1 << (quantiles - 1).bit_length() + 2
        fractions = [
            np.histogram(preds[target == label], bins, (0, 1))[0].max()
            / (target == label).sum().item()
            for label in (0, 1)
        ]
        bound = area_error_bound_summed(quantiles, _ratio(target), lipschitz=max(fractions) * bins)
        for method in get_args(Method):
            options: CurveOptions = {
                "quantiles": quantiles,
                "grid": "even",
                "reconstruction": Reconstruction(method),
            }
            curves = roc(preds, target, **options), precision_recall_curve(preds, target, **options)
            measured = _errors(*curves, (preds, target))
            assert measured[0] <= bound.roc
            assert measured[1] <= bound.precision_recall


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_private_histograms_stay_below_theorem_4_5_on_average(epsilon: float) -> None:
    for seed in range(3):
        preds, target = _beta(seed)
        n_pos = int(target.sum())
        metric = FederatedROC(quantiles=64, grid="even", privacy=CentralDP(epsilon), plan="paper")
        paper = Reconstruction("quantile", 64, non_negative=False)
        measured = []
        for _ in range(5):
            metric.reset()
            metric.update(preds, target)
            total = metric.release()
            first = FederatedROC.from_release(total, reconstruction=paper).compute()
            second = FederatedPrecisionRecallCurve.from_release(
                total, reconstruction=paper
            ).compute()
            measured.append(_errors(first, second, (preds, target)))
        bound = area_error_bound_private(64, epsilon, n_pos, len(target) - n_pos, lipschitz=10.0)
        assert (np.mean(measured, 0) < bound).all()


def test_bounds_fall_with_quantiles_ratio_epsilon_and_examples() -> None:
    falling = [
        [area_error_bound_roc(q) for q in (2, 3, 16, 1024)],
        [area_error_bound_roc(16, q) for q in (2, 3, 16, 1024)],
        [area_error_bound_roc(q, strict=True) for q in (2, 3, 16, 1024)],
        [area_error_bound_pr(q, 0.3) for q in (16, 64, 1024, 10**6)],
        [area_error_bound_pr(1024, r) for r in (0.003, 0.03, 0.3, 1.0)],
        *zip(*(area_error_bound_summed(q, 0.3) for q in (16, 64, 1024)), strict=True),
        *zip(
            *(area_error_bound_summed(64, 0.3, lipschitz=steep) for steep in (9.0, 3.0, 1.0)),
            strict=True,
        ),
        *zip(
            *(area_error_bound_private(64, e, 5_000, 9_000) for e in (0.3, 1.0, 3.0)), strict=True
        ),
        *zip(
            *(area_error_bound_private(64, 1.0, n, 2 * n) for n in (5_000, 50_000, 500_000)),
            strict=True,
        ),
    ]
    for values in falling:
        assert all(after < before <= 1 for before, after in pairwise(values)), values


def test_bounds_are_those_of_the_text() -> None:
    assert area_error_bound_roc(1025) == 1 / 1024
    assert area_error_bound_roc(5, 9) == pytest.approx(
        1 / 32 + 3 / 16
    )  # a quarter of 1/8, three of 1/4
    assert area_error_bound_roc(9, 5) == pytest.approx(1 / 8 + 1 / 16)
    assert area_error_bound_pr(1025, 1.0) == area_error_bound_pr(
        1025, 7.0
    )  # r > 1 is the balanced case
    alpha, r = 1e-3, 0.1
    assert area_error_bound_pr(2, r, alpha=alpha) == pytest.approx(
        2 * alpha / r + alpha / r * np.log(r / alpha)
    )
    assert area_error_bound_pr(2, 0.01, alpha=0.005) == 1  # 2 alpha / r is all of the range
    assert area_error_bound_summed(1024, 1.0).roc == pytest.approx(
        1 / 1023 + 2 / 4096
    )  # h = log2 Q + 2
    assert area_error_bound_summed(1025, 1.0, branching=4).roc == pytest.approx(1 / 1024 + 2 / 4**8)
    endless = area_error_bound_private(64, 1e12, 5_000, 9_000)
    assert endless == pytest.approx(area_error_bound_summed(64, 5 / 9))


@pytest.mark.parametrize(
    ("call", "named"),
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
def test_bad_arguments_are_named(call: Callable[[], object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()
