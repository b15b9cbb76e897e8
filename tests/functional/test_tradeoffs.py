"""DET curves against scikit-learn, PR-gain curves against their definition in counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import det_curve, precision_score, recall_score
from torch import Tensor

from tests.functional.scores import Scored, rounded
from tests.grids import bin_of, even
from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.functional import (
    area_under_gain,
    det_from_counts,
    equal_error_rate,
    precision_recall_gain_from_counts,
)
from torchmetrics_fed.functional.curve import count

EMPTY_CLASSES = pytest.mark.parametrize(
    "counts",
    [[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]],
)


def test_det_is_scikit_learns_at_every_threshold_of_scikit_learn(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    curve = det_from_counts(count(*scored, grid=grid))
    fpr, fnr, thresholds = (torch.from_numpy(part.copy()) for part in det_curve(scored[1], binned))
    # the edge below each centre; the highest edge for infinity
    edge = bin_of(thresholds, grid) + thresholds.isinf()
    # the narrowest bins of a two-sided grid see errors of one kind only
    assert len(edge) > {"even": 60, "two_sided": 45}[grid.kind]
    assert torch.allclose(curve.fpr[edge], fpr, rtol=0, atol=1e-12)
    assert torch.allclose(curve.fnr[edge], fnr, rtol=0, atol=1e-12)
    # points that scikit-learn leaves out have no error of one kind
    left_out = torch.ones(65, dtype=torch.bool).index_fill(0, edge, False)
    assert (torch.minimum(curve.fpr, curve.fnr)[left_out] == 0).all()


def test_det_runs_from_1_0_to_0_1(scored: Scored) -> None:
    fpr, fnr, thresholds = det_from_counts(even(count(*scored).leaf))
    assert [end.item() for end in (fpr[0], fnr[0], fpr[-1], fnr[-1])] == [1, 0, 0, 1]
    assert (thresholds.diff() > 0).all()
    assert (fpr.diff() <= 0).all()
    assert (fnr.diff() >= 0).all()


def test_det_has_the_leading_axes_of_the_counts(stacked: Tensor) -> None:
    curves = det_from_counts(even(stacked))
    single = det_from_counts(even(stacked[1, 2]))
    assert curves.fpr.shape == curves.fnr.shape == (3, 4, 17)
    assert torch.equal(curves.fpr[1, 2], single.fpr)
    assert torch.equal(curves.fnr[1, 2], single.fnr)


def test_det_without_a_class_warns() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        assert det_from_counts(even(torch.tensor([[1, 2], [0, 0]]))).fnr.tolist() == [1, 1, 1]
    with pytest.warns(UserWarning, match="No negative"):
        assert det_from_counts(even(torch.tensor([[0, 0], [1, 0]]))).fpr.tolist() == [0, 0, 0]


def walked_area(leaf: Tensor) -> float:
    """The authors' rule, one point at a time in counts: enter at recall gain 0, then trapezoids."""
    negatives, positives = leaf.double().sum(-1).tolist()
    entry = positives**2 / (positives + negatives)

    def gains(fp: float, tp: float) -> tuple[float, float]:
        precision_gain = 1 - positives / negatives * fp / tp
        recall_gain = 1 - positives / negatives * (positives - tp) / tp
        return precision_gain, recall_gain

    area = 0.0
    fp = 0.0
    tp = 0.0
    for leaf_negatives, leaf_positives in leaf.double().T.flip(0).tolist():
        start_fp = fp
        start_tp = tp
        fp += leaf_negatives
        tp += leaf_positives
        if tp <= entry:
            continue
        if start_tp < entry:
            start_fp += leaf_negatives * (entry - start_tp) / leaf_positives
            start_tp = entry
        start_precision, start_recall = gains(start_fp, start_tp)
        precision, recall = gains(fp, tp)
        area += (recall - start_recall) * (start_precision + precision) / 2
    return area


def test_gains_are_those_of_scikit_learns_precision_and_recall(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    target = scored[1]
    pi = target.double().mean().item()
    curve = precision_recall_gain_from_counts(count(*scored, grid=grid))
    points = torch.stack([curve.precision_gain, curve.recall_gain, curve.thresholds], 1)
    inside = 0
    for precision_gain, recall_gain, threshold in points.tolist():
        selected = binned >= threshold
        precision = precision_score(target, selected, zero_division=0)
        recall = recall_score(target, selected, zero_division=0)
        if recall < pi:
            assert recall_gain == 0
            continue
        inside += 1
        expected = (precision - pi) / ((1 - pi) * precision)
        assert precision_gain == rounded(max(expected, 0))
        assert recall_gain == rounded((recall - pi) / ((1 - pi) * recall))
    assert 30 < inside < 64


def test_gains_run_from_recall_gain_1_to_0(scored: Scored) -> None:
    curve = precision_recall_gain_from_counts(even(count(*scored).leaf))
    assert len(curve.precision_gain) == len(curve.recall_gain) == len(curve.thresholds)
    assert curve.precision_gain[0] == 0
    assert curve.recall_gain[0] == 1
    assert curve.recall_gain[-1] == 0
    assert (curve.thresholds.diff() > 0).all()
    assert (curve.recall_gain.diff() <= 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_area_is_the_walk_along_the_curve(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    leaf = torch.randint(0, 2 + seed, (2, 16), generator=generator)
    leaf[:, 3] += 1
    assert area_under_gain(even(leaf)).item() == rounded(walked_area(leaf))


def test_the_area_of_fair_scores_is_that_under_the_curve(
    scored: Scored,
    grid: ScoreGrid,
) -> None:
    """No precision gain of these scores is negative, so the curve is not cut off."""
    leaf = count(*scored, grid=grid).leaf
    assert area_under_gain(even(leaf)).item() == rounded(walked_area(leaf))
    curve = precision_recall_gain_from_counts(even(leaf))
    area = -torch.trapezoid(curve.precision_gain, curve.recall_gain)
    assert area.item() == rounded(walked_area(leaf))


def test_the_area_of_the_authors_example() -> None:
    """The labels of the example of the prg software, one score each, and its ``calc_auprg``."""
    labels = torch.tensor(
        [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1]
    ).flip(0)
    leaf = torch.stack([1 - labels, labels])
    assert area_under_gain(even(leaf)).item() == rounded(0.43246210357423226)


@pytest.mark.parametrize(("negatives", "positives"), [(1, 1), (9, 1), (1, 9), (1000, 3)])
def test_the_range_of_the_area_is_that_of_perfect_and_reversed_scores(
    negatives: int,
    positives: int,
) -> None:
    leaf = torch.tensor([[negatives, 0], [0, positives]])
    assert area_under_gain(even(leaf)).item() == 1
    lowest = -negatives / (2 * positives)
    assert area_under_gain(even(leaf.flip(-1))).item() == pytest.approx(lowest, rel=1e-12)
    curve = precision_recall_gain_from_counts(even(leaf.flip(-1)))
    assert (curve.precision_gain == 0).all()


def test_all_examples_in_one_leaf_gain_nothing() -> None:
    """Only the always-positive classifier is known: recall gain rises along precision gain 0."""
    assert area_under_gain(even(torch.tensor([[7, 0], [3, 0]]))).item() == rounded(0)


def test_gains_have_the_leading_axes_of_the_counts(stacked: Tensor) -> None:
    curves = precision_recall_gain_from_counts(even(stacked))
    single = precision_recall_gain_from_counts(even(stacked[1, 2]))
    assert curves.area.shape == (3, 4)
    assert curves.precision_gain.shape == curves.recall_gain.shape == (3, 4, 16)
    assert torch.equal(curves.area[1, 2], single.area)
    assert torch.equal(curves.precision_gain[1, 2], single.precision_gain)


@EMPTY_CLASSES
def test_gains_without_a_class_warn_and_are_0(counts: list[list[int]]) -> None:
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        assert area_under_gain(even(torch.tensor(counts))).item() == 0
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        curve = precision_recall_gain_from_counts(even(torch.tensor(counts)))
    assert (curve.precision_gain == 0).all()
    assert (curve.recall_gain == 0).all()


def test_the_equal_error_rate_is_that_of_the_curve(scored: Scored) -> None:
    histograms = count(*scored)
    rate = equal_error_rate(histograms)
    assert rate.item() == rounded(det_from_counts(histograms).scalars["equal_error_rate"].item())


def test_the_equal_error_rate_is_near_torchmetrics(scored: Scored) -> None:
    """torchmetrics takes the nearest point of the curve, here it is between two points."""
    eer = pytest.importorskip("torchmetrics.functional.classification.eer")
    expected = eer.binary_eer(*scored).item()
    assert equal_error_rate(count(*scored)).item() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("average", [None, "micro", "macro"])
def test_equal_error_rates_of_classes_are_near_torchmetrics(average: Any) -> None:
    eer = pytest.importorskip("torchmetrics.functional.classification.eer")
    generator = torch.Generator().manual_seed(6)
    classes = torch.randint(0, 3, (3_000,), generator=generator)
    logits = torch.randn(3_000, 3, generator=generator) + torch.nn.functional.one_hot(classes, 3)
    preds = logits.softmax(1)
    histograms = count(preds, classes, "multiclass", num_classes=3)
    expected = eer.multiclass_eer(preds, classes, num_classes=3, average=average)
    rate = equal_error_rate(histograms, average=average).float()
    torch.testing.assert_close(rate, expected, rtol=0, atol=2e-3)
