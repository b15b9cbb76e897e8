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
from torchmetrics.functional.classification import binary_precision_recall_curve, binary_roc

from tests.functional.scores import Scored, rounded
from torchmetrics_fed import InputError
from torchmetrics_fed.functional import area_error_pr, area_error_roc, roc
from torchmetrics_fed.functional import precision_recall_curve as precision_recall_curve_of
from torchmetrics_fed.typing import Floats


def test_areas_of_plain_figures() -> None:
    diagonal = ([0, 1], [0, 1])
    perfect = ([0, 0, 1], [0, 1, 1])
    assert area_error_roc(diagonal, perfect) == pytest.approx(0.5, abs=1e-15)
    bow = ([0.0, 0.5, 1.0], [0.0, 0.75, 1.0])
    assert area_error_roc(diagonal, bow) == pytest.approx(0.125, abs=1e-15)
    crossing = ([0.0, 0.5, 1.0], [0.5, 0.5, 0.5])
    assert area_error_roc(diagonal, crossing) == pytest.approx(0.25, abs=1e-15)


def test_against_nothing_it_is_auroc_and_average_precision(scored: Scored) -> None:
    scores, target = scored
    zero = ([0.0, 0.0], [0.0, 1.0])
    roc_area = area_error_roc(([0.0, 1.0], [0.0, 0.0]), roc_curve(target, scores))
    assert roc_area == rounded(roc_auc_score(target, scores))
    pr_area = area_error_pr(zero, precision_recall_curve(target, scores))
    assert pr_area == rounded(average_precision_score(target, scores))


def test_torchmetrics_and_scikit_learn_curves_serve_alike(scored: Scored) -> None:
    scores, target = scored
    curve = roc(scores, target, quantiles=16)
    with_torchmetrics = area_error_roc(curve, binary_roc(scores, target))
    with_scikit_learn = area_error_roc(curve, roc_curve(target, scores))
    assert with_torchmetrics == pytest.approx(with_scikit_learn, abs=1e-9)
    theirs = binary_precision_recall_curve(scores, target)
    exact = precision_recall_curve(target, scores)
    assert area_error_pr(theirs, exact, reading="step") == pytest.approx(0, abs=1e-6)


def test_tied_scores_are_read_as_steps_where_bins_tell_them_apart() -> None:
    """Five values, each in a bin among empty ones: read as binned, the curve is the exact one."""
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (3_000,), generator=generator)
    scores = (torch.randint(0, 3, (3_000,), generator=generator) + 2 * target) * 0.2 + 0.11
    curve = precision_recall_curve_of(scores, target)
    exact = precision_recall_curve(target, scores)
    assert area_error_pr(curve, exact, reading="binned") == pytest.approx(0, abs=1e-9)
    assert area_error_pr(curve, exact, reading="step") == pytest.approx(0, abs=1e-9)
    assert area_error_pr(curve, exact) > 0.01


def test_smooth_scores_are_read_as_binned_linearly(scored: Scored) -> None:
    """Bins with neighbours have no corners, however much recall each adds."""
    scores, target = scored
    exact = precision_recall_curve(target, scores)
    for quantiles in (8, 64, 1024):
        curve = precision_recall_curve_of(scores, target, quantiles=quantiles)
        linear = area_error_pr(curve, exact, "linear")
        step = area_error_pr(curve, exact, "step")
        binned = area_error_pr(curve, exact, "binned")
        assert binned == rounded(linear)
        assert quantiles > 64 or abs(step - linear) > 1e-4


def test_a_tie_among_smooth_scores_is_the_only_corner() -> None:
    """Many examples at one score, an empty gap around it: binned is nearest to the truth."""
    generator = torch.Generator().manual_seed(6)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    scores = 0.3 * torch.rand(4_000, generator=generator) + 0.2 * target
    scores[:1_500] = 0.7
    curve = precision_recall_curve_of(scores, target, quantiles=16)
    exact = precision_recall_curve(target, scores)
    linear = area_error_pr(curve, exact, "linear")
    step = area_error_pr(curve, exact, "step")
    assert area_error_pr(curve, exact, "binned") < min(linear, step)


def test_dense_sampling_converges_to_it(scored: Scored) -> None:
    scores, target = scored
    exact = roc_curve(target[:200], scores[:200])
    estimate = roc(scores[200:], target[200:], quantiles=8)
    at = (np.arange(2_000_000) + 0.5) / 2_000_000
    exact_tpr = np.interp(at, exact[0], exact[1])
    estimated_tpr = np.interp(at, estimate.fpr, estimate.tpr)
    sampled = np.abs(exact_tpr - estimated_tpr).mean()
    assert area_error_roc(estimate, exact) == pytest.approx(sampled, rel=1e-5)


def test_it_is_a_distance() -> None:
    generator = np.random.default_rng(1)

    def curve() -> tuple[Floats, Floats]:
        x = np.sort(np.r_[0, generator.random(9), 1])
        y = np.sort(np.r_[0, generator.random(9), 1])
        return x, y

    a = curve()
    b = curve()
    c = curve()
    assert area_error_roc(a, a) == 0
    assert area_error_roc(a, b) == pytest.approx(area_error_roc(b, a), abs=1e-15)
    assert area_error_roc(a, c) <= area_error_roc(a, b) + area_error_roc(b, c) + 1e-15


def test_what_is_not_a_curve_is_refused() -> None:
    with pytest.raises(InputError, match="one length"):
        area_error_roc((torch.zeros(3), torch.zeros(4)), ([0, 1], [0, 1]))
    with pytest.raises(InputError, match="reading"):
        area_error_pr(([0, 1], [1, 0]), ([0, 1], [1, 0]), reading="cubic")  # type: ignore[arg-type]
