"""Area Error: exact where the area is known, a distance, and what dense sampling converges to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)
from torch import Tensor
from torchmetrics.functional.classification import binary_precision_recall_curve, binary_roc

from torchmetrics_fed import InputError
from torchmetrics_fed.functional import area_error_pr, area_error_roc, roc
from torchmetrics_fed.functional import precision_recall_curve as precision_recall_curve_of


def test_areas_of_plain_figures() -> None:
    diagonal, perfect = ([0, 1], [0, 1]), ([0, 0, 1], [0, 1, 1])
    assert area_error_roc(diagonal, perfect) == pytest.approx(0.5, abs=1e-15)
    bow = ([0.0, 0.5, 1.0], [0.0, 0.75, 1.0])
    assert area_error_roc(diagonal, bow) == pytest.approx(0.125, abs=1e-15)
    crossing = ([0.0, 0.5, 1.0], [0.5, 0.5, 0.5])
    assert area_error_roc(diagonal, crossing) == pytest.approx(0.25, abs=1e-15)


def test_against_nothing_it_is_auroc_and_average_precision(scored: tuple[Tensor, Tensor]) -> None:
    scores, target = scored
    zero = ([0.0, 0.0], [0.0, 1.0])
    roc_area = area_error_roc(([0.0, 1.0], [0.0, 0.0]), roc_curve(target, scores))
    assert roc_area == pytest.approx(roc_auc_score(target, scores), abs=1e-12)
    pr_area = area_error_pr(zero, precision_recall_curve(target, scores))
    assert pr_area == pytest.approx(average_precision_score(target, scores), abs=1e-12)


def test_torchmetrics_and_scikit_learn_curves_serve_alike(scored: tuple[Tensor, Tensor]) -> None:
    scores, target = scored
    curve = roc(scores, target, quantiles=16)
    with_torchmetrics = area_error_roc(curve, binary_roc(scores, target))
    assert with_torchmetrics == pytest.approx(
        area_error_roc(curve, roc_curve(target, scores)), abs=1e-9
    )
    exact = binary_precision_recall_curve(scores, target)
    assert area_error_pr(
        exact, precision_recall_curve(target, scores), reading="step"
    ) == pytest.approx(0, abs=1e-6)


def test_tied_scores_are_read_as_steps_where_bins_tell_them_apart() -> None:
    """Five values, a bin each among empty ones: read as binned the curve is the exact one, and linearly it is not."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (3_000,), generator=generator)
    scores = (torch.randint(0, 3, (3_000,), generator=generator) + 2 * target) * 0.2 + 0.11
    curve, exact = precision_recall_curve_of(scores, target), precision_recall_curve(target, scores)
    assert area_error_pr(curve, exact, reading="binned") == pytest.approx(0, abs=1e-9)
    assert area_error_pr(curve, exact, reading="step") == pytest.approx(0, abs=1e-9)
    assert area_error_pr(curve, exact) > 0.01


def test_smooth_scores_are_read_as_binned_linearly(scored: tuple[Tensor, Tensor]) -> None:
    """Bins with neighbours have no corners, however much recall each of them adds; steps there are another curve."""
    scores, target = scored
    for quantiles in (8, 64, 1024):
        curve, exact = (
            precision_recall_curve_of(scores, target, quantiles=quantiles),
            precision_recall_curve(target, scores),
        )
        linear, step, binned = (
            area_error_pr(curve, exact, reading) for reading in ("linear", "step", "binned")
        )
        assert binned == pytest.approx(linear, abs=1e-12)
        assert quantiles > 64 or abs(step - linear) > 1e-4


def test_a_tie_among_smooth_scores_is_the_only_corner() -> None:
    """A fifth of all examples at one score, an empty gap around it: binned is nearer to the truth than either."""
    generator = torch.Generator().manual_seed(6)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    scores = 0.3 * torch.rand(4_000, generator=generator) + 0.2 * target
    scores[:1_500] = 0.7
    curve, exact = (
        precision_recall_curve_of(scores, target, quantiles=16),
        precision_recall_curve(target, scores),
    )
    linear, step, binned = (
        area_error_pr(curve, exact, reading) for reading in ("linear", "step", "binned")
    )
    assert binned < min(linear, step)


def test_dense_sampling_converges_to_it(scored: tuple[Tensor, Tensor]) -> None:
    scores, target = scored
    exact, estimate = (
        roc_curve(target[:200], scores[:200]),
        roc(scores[200:], target[200:], quantiles=8),
    )
    at = (np.arange(2_000_000) + 0.5) / 2_000_000
    sampled = np.abs(
        np.interp(at, exact[0], exact[1]) - np.interp(at, estimate[0], estimate[1])
    ).mean()
    assert area_error_roc(estimate, exact) == pytest.approx(sampled, rel=1e-5)


def test_it_is_a_distance() -> None:
    generator = np.random.default_rng(1)
    curves = [tuple(np.sort(np.r_[0, generator.random(9), 1]) for _ in range(2)) for _ in range(3)]
    a, b, c = curves
    assert area_error_roc(a, a) == 0
    assert area_error_roc(a, b) == pytest.approx(area_error_roc(b, a), abs=1e-15)
    assert area_error_roc(a, c) <= area_error_roc(a, b) + area_error_roc(b, c) + 1e-15


def test_what_is_not_a_curve_is_refused() -> None:
    with pytest.raises(InputError, match="one length"):
        area_error_roc((torch.zeros(3), torch.zeros(4)), ([0, 1], [0, 1]))
    with pytest.raises(InputError, match="reading"):
        area_error_pr(([0, 1], [1, 0]), ([0, 1], [1, 0]), reading="cubic")  # type: ignore[arg-type]
