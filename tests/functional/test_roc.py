"""ROC against torchmetrics with the edges as thresholds, and scikit-learn on pooled scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import roc_curve
from torch import Tensor
from torchmetrics.classification import BinaryROC
from torchmetrics.functional.classification import binary_logauc

from tests.functional.scores import Scored, rounded
from tests.grids import even
from torchmetrics_fed import InputError, Reconstruction, ScoreGrid, paper
from torchmetrics_fed.functional import (
    area_error_roc,
    count,
    log_auc,
    roc,
    roc_from_counts,
    roc_from_quantiles,
)
from torchmetrics_fed.reconstruct import Aligned
from torchmetrics_fed.typing import GridName

FINE = pytest.mark.parametrize(
    "grid",
    [ScoreGrid.two_sided(64), ScoreGrid.even(64)],
    ids=lambda grid: grid.kind,
)


@FINE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_aligned_is_torchmetrics_at_every_edge_below_1(
    scored: Scored,
    dtype: torch.dtype,
    grid: ScoreGrid,
) -> None:
    scores = scored[0].to(dtype)
    target = scored[1]
    special = [0.0, 1.0, 1.0, 0.5, 0.25, 2.0**-20, 1 - 2.0**-20, 2.0**-38, 1 - 2.0**-38]
    scores[: len(special)] = torch.tensor(special, dtype=dtype)
    # without this torchmetrics compares in float32, where the edges nearest to 1 are 1
    reference = BinaryROC(thresholds=grid.edges).set_dtype(torch.float64)
    reference.update(scores.double(), target)
    fpr, tpr, thresholds = reference.compute()
    curve = roc(scores, target, grid=grid)
    assert torch.equal(curve.thresholds, thresholds)
    below = thresholds < 1
    assert torch.allclose(curve.fpr[below], fpr[below], rtol=0, atol=1e-12)
    assert torch.allclose(curve.tpr[below], tpr[below], rtol=0, atol=1e-12)


@FINE
@pytest.mark.parametrize("sharpness", [1, 6])
def test_aligned_is_scikit_learns_pooled_curve_at_every_edge_below_1(
    scored: Scored,
    sharpness: float,
    grid: ScoreGrid,
) -> None:
    scores = (sharpness * scored[0].logit()).sigmoid()
    target = scored[1]
    fpr, tpr, thresholds = map(torch.from_numpy, roc_curve(target, scores, drop_intermediate=False))
    curve = roc(scores, target, grid=grid)
    assert torch.equal(curve.thresholds.flip(0), grid.edges)
    below = curve.thresholds < 1
    # the last of scikit-learn's thresholds (decreasing) that is at or above the edge
    at = torch.searchsorted(-thresholds, -curve.thresholds[below], right=True) - 1
    assert torch.allclose(curve.fpr[below], fpr[at], rtol=0, atol=1e-12)
    assert torch.allclose(curve.tpr[below], tpr[at], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("grid", "reconstruction"),
    [("two_sided", Aligned()), ("even", paper.Quantiles(1024))],
)
def test_curves_run_from_0_0_to_1_1(
    scored: Scored,
    grid: GridName,
    reconstruction: Reconstruction,
) -> None:
    fpr, tpr, thresholds = roc(*scored, grid=grid, reconstruction=reconstruction)
    assert [end.item() for end in (fpr[0], tpr[0], fpr[-1], tpr[-1])] == [0, 0, 1, 1]
    assert (thresholds.diff() <= 0).all()
    assert (fpr.diff() >= 0).all()
    assert (tpr.diff() >= 0).all()


def test_quantiles_from_the_tree_come_close_to_exact_ones(scored: Scored) -> None:
    exact = roc_curve(*reversed(scored))
    from_exact = roc_from_quantiles(paper.exact_quantiles(*scored, 256))
    from_tree = roc(*scored, quantiles=256, grid="even", reconstruction=paper.Quantiles(256))
    assert area_error_roc(from_exact, exact) < 0.002
    assert area_error_roc(from_tree, exact) < 0.002


def test_counts_may_have_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 2, 16)) + 1
    curves = roc_from_counts(even(leaf))
    for index in range(3):
        assert torch.equal(curves.tpr[index], roc_from_counts(even(leaf[index])).tpr)


@pytest.mark.parametrize(("label", "warning"), [(0, "No positive"), (1, "No negative")])
def test_a_missing_class_is_warned_of_and_its_rate_is_0(
    label: int,
    warning: str,
) -> None:
    with pytest.warns(UserWarning, match=warning):
        curve = roc(torch.rand(50), torch.full((50,), label))
    assert (curve[1 - label] == 0).all()
    assert curve[label][-1] == 1


def test_known_support_makes_ties_exact() -> None:
    """Scores of 5 nearest neighbours: with an edge between any two values the curve is exact."""
    target = torch.randint(0, 2, (3_000,), generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(3)
    votes = torch.binomial(torch.full((3_000,), 5.0), 0.3 + 0.4 * target, generator=generator)
    scores = votes / 5
    grid = ScoreGrid.from_edges([-0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1])
    curve = roc(scores, target, grid=grid)
    assert area_error_roc(curve, roc_curve(target, scores)) < 1e-12


# torchmetrics 1.6 copies a tensor in a way that torch warns of
COPY_WARNING = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")


@COPY_WARNING
@pytest.mark.parametrize("fpr_range", [(0.001, 0.1), (0.01, 1.0), (0.2, 0.3)])
def test_the_log_area_is_torchmetrics(scored: Scored, fpr_range: tuple[float, float]) -> None:
    """With a curve at 4,096 thresholds in place of one at every score."""
    expected = binary_logauc(*scored, fpr_range=fpr_range).item()
    assert log_auc(count(*scored), fpr_range).item() == pytest.approx(expected, abs=1e-3)


@COPY_WARNING
def test_the_log_area_of_the_same_curve_is_torchmetrics(
    scored: Scored, grid: ScoreGrid, binned: Tensor
) -> None:
    expected = binary_logauc(binned, scored[1]).item()
    assert log_auc(count(*scored, grid=grid)).item() == pytest.approx(expected, abs=1e-6)


def test_log_areas_of_classes_and_their_averages(stacked: Tensor) -> None:
    areas = log_auc(even(stacked), (0.01, 1.0))
    assert areas.shape == (3, 4)
    assert torch.equal(areas[1, 2], log_auc(even(stacked[1, 2]), (0.01, 1.0)))
    classes = even(stacked[0])
    mean = log_auc(classes, (0.01, 1.0), average="macro")
    assert mean.item() == rounded(areas[0].mean().item())


@pytest.mark.parametrize("fpr_range", [(0.0, 0.1), (0.2, 0.1), (0.1, 1.5), 0.1])
def test_a_log_area_needs_two_rates(fpr_range: Any) -> None:
    with pytest.raises(InputError, match="`fpr_range`"):
        log_auc(even(torch.ones(2, 2)), fpr_range)


def test_the_log_area_without_a_class_is_0() -> None:
    with pytest.warns(UserWarning, match="No positive examples"):
        assert log_auc(even(torch.tensor([[1, 1], [0, 0]]))).item() == 0
