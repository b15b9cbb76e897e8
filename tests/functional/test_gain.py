"""PR-gain curves against their definition in counts, and their area against a walk along the curve."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import precision_score, recall_score
from torch import Tensor

from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.functional.tradeoffs import area_under_gain, precision_recall_gain_from_counts


def walked_area(leaf: Tensor) -> float:
    """The authors' rule, one point at a time in counts: enter at recall gain 0, then trapezoids."""
    n_negative, n_positive = leaf.double().sum(-1).tolist()
    ratio, entry = n_positive / n_negative, n_positive**2 / (n_positive + n_negative)
    area, fp, tp = 0.0, 0.0, 0.0
    for negative, positive in leaf.double().T.flip(0).tolist():
        start_fp, start_tp = fp, tp
        fp, tp = fp + negative, tp + positive
        if tp <= entry:
            continue
        if start_tp < entry:
            start_fp, start_tp = start_fp + negative * (entry - start_tp) / positive, entry
        gains = [
            (1 - ratio * false / true, 1 - ratio * (n_positive - true) / true)
            for false, true in ((start_fp, start_tp), (fp, tp))
        ]
        area += (gains[1][1] - gains[0][1]) * (gains[0][0] + gains[1][0]) / 2
    return area


def test_gains_are_those_of_scikit_learns_precision_and_recall(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, binned: Tensor
) -> None:
    target, pi = scored[1], scored[1].double().mean().item()
    curve = precision_recall_gain_from_counts(count(*scored, grid=grid))
    inside = 0
    for precision_gain, recall_gain, threshold in zip(
        *(values.tolist() for values in curve[:3]), strict=True
    ):
        selected = binned >= threshold
        precision, recall = (
            rate(target, selected, zero_division=0) for rate in (precision_score, recall_score)
        )
        if recall >= pi:
            inside += 1
            assert precision_gain == pytest.approx(
                max((precision - pi) / ((1 - pi) * precision), 0), abs=1e-12
            )
            assert recall_gain == pytest.approx((recall - pi) / ((1 - pi) * recall), abs=1e-12)
        else:
            assert recall_gain == 0
    assert 30 < inside < 64


def test_order_and_ends(scored: tuple[Tensor, Tensor]) -> None:
    precision_gain, recall_gain, thresholds, _ = precision_recall_gain_from_counts(
        count(*scored).leaf
    )
    assert len(precision_gain) == len(recall_gain) == len(thresholds)
    assert [end.item() for end in (precision_gain[0], recall_gain[0], recall_gain[-1])] == [0, 1, 0]
    assert bool((thresholds.diff() > 0).all() and (recall_gain.diff() <= 0).all())


@pytest.mark.parametrize("seed", range(20))
def test_area_is_the_walk_along_the_curve(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    leaf = torch.randint(0, 2 + seed, (2, 16), generator=generator)
    leaf[:, 3] += 1
    assert area_under_gain(leaf).item() == pytest.approx(walked_area(leaf), abs=1e-12)


def test_area_of_fair_scores(scored: tuple[Tensor, Tensor], grid: ScoreGrid) -> None:
    leaf = count(*scored, grid=grid).leaf
    assert area_under_gain(leaf).item() == pytest.approx(walked_area(leaf), abs=1e-12)
    curve = precision_recall_gain_from_counts(
        leaf
    )  # here no precision gain is negative, so nothing is cut off
    area = -torch.trapezoid(curve.precision_gain, curve.recall_gain)
    assert area.item() == pytest.approx(walked_area(leaf), abs=1e-12)


def test_the_authors_example() -> None:
    """The labels of the prg software's own example, one score each, and the area that its ``calc_auprg`` gives."""
    labels = torch.tensor(
        [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1]
    ).flip(0)
    leaf = torch.stack([1 - labels, labels])
    assert area_under_gain(leaf).item() == pytest.approx(0.43246210357423226, abs=1e-12)


@pytest.mark.parametrize(("n_negative", "n_positive"), [(1, 1), (9, 1), (1, 9), (1000, 3)])
def test_range_is_that_of_perfect_and_reversed(n_negative: int, n_positive: int) -> None:
    leaf = torch.tensor([[n_negative, 0], [0, n_positive]])
    assert area_under_gain(leaf).item() == 1
    assert area_under_gain(leaf.flip(-1)).item() == pytest.approx(
        -n_negative / (2 * n_positive), rel=1e-12
    )
    curve = precision_recall_gain_from_counts(leaf.flip(-1))
    assert bool((curve.precision_gain == 0).all())


def test_one_leaf_for_all_gains_nothing() -> None:
    """All that is known is the always-positive classifier: recall gain rises to 1 along precision gain 0."""
    assert area_under_gain(torch.tensor([[7, 0], [3, 0]])).item() == pytest.approx(0, abs=1e-12)


def test_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1)) + 1
    areas, curves = area_under_gain(leaf), precision_recall_gain_from_counts(leaf)
    assert areas.shape == (3, 4)
    assert curves.precision_gain.shape == curves.recall_gain.shape == (3, 4, 16)
    assert torch.equal(areas[1, 2], area_under_gain(leaf[1, 2]))
    assert torch.equal(
        curves.precision_gain[1, 2], precision_recall_gain_from_counts(leaf[1, 2]).precision_gain
    )


@pytest.mark.parametrize(
    "counts", [[[0, 0], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 1]]]
)
def test_without_a_class_it_warns_and_is_0(counts: list[list[int]]) -> None:
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        assert area_under_gain(torch.tensor(counts)).item() == 0
    with pytest.warns(UserWarning, match="No (positive|negative)"):
        curve = precision_recall_gain_from_counts(torch.tensor(counts))
    assert bool((curve.precision_gain == 0).all() and (curve.recall_gain == 0).all())
