"""The confusion matrix and operating points as metrics, exact and private."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    FederatedConfusionMatrix,
    FederatedPrecisionAtFixedRecall,
    FederatedRecallAtFixedPrecision,
    FederatedSensitivityAtSpecificity,
    FederatedSpecificityAtSensitivity,
    InputError,
)
from torchmetrics_fed import functional as F

plt = pytest.importorskip("matplotlib.pyplot")

Scored = tuple[Tensor, Tensor]

POINTS: dict[Any, Any] = {
    FederatedRecallAtFixedPrecision: F.recall_at_precision,
    FederatedPrecisionAtFixedRecall: F.precision_at_recall,
    FederatedSensitivityAtSpecificity: F.sensitivity_at_specificity,
    FederatedSpecificityAtSensitivity: F.specificity_at_sensitivity,
}
"""The functional twin of each operating point."""

EVERY_POINT = pytest.mark.parametrize("kind", POINTS, ids=lambda kind: kind.__name__)


def counted(metric: Any, scored: Scored) -> Any:
    metric.update(*scored)
    return metric


def test_the_confusion_matrix_is_that_of_the_function(scored: Scored) -> None:
    metric = counted(FederatedConfusionMatrix(threshold=0.25), scored)
    result = metric.compute()
    expected = F.confusion_at(F.count(*scored), 0.25)
    assert torch.equal(result.matrix, expected.matrix)
    assert result.matrix.dtype == torch.int64
    assert result.threshold.item() == 0.25
    assert pickle.loads(pickle.dumps(metric)).threshold == 0.25


def test_calls_of_classes_at_a_threshold_are_not_those_of_the_largest_score() -> None:
    generator = torch.Generator().manual_seed(1)
    classes = torch.randint(0, 4, (500,), generator=generator)
    preds = torch.randn(500, 4, generator=generator).softmax(1)
    metric = FederatedConfusionMatrix("multiclass", num_classes=4)
    metric.update(preds, classes)
    matrix = metric.compute().matrix
    assert matrix.shape == (4, 2, 2)
    assert torch.equal(matrix.sum((-1, -2)), torch.full((4,), 500))
    assert torch.equal(matrix[:, :, 1].sum(1), (preds >= 0.5).sum(0))
    micro = FederatedConfusionMatrix("multiclass", num_classes=4, average="micro")
    micro.update(preds, classes)
    assert torch.equal(micro.compute().matrix, matrix.sum(0))


def test_groups_have_a_matrix_each(scored: Scored) -> None:
    groups = torch.arange(len(scored[0])) % 3
    metric = FederatedConfusionMatrix(groups=["a", "b", "c"])
    metric.update(*scored, groups)
    parts = [part.matrix for part in metric.by_group().values()]
    assert torch.equal(torch.stack(parts).sum(0), metric.compute().matrix)


def test_a_private_matrix_is_near_the_exact_one(scored: Scored) -> None:
    private = counted(FederatedConfusionMatrix(privacy=CentralDP(epsilon=5.0)), scored).compute()
    exact = counted(FederatedConfusionMatrix(), scored).compute()
    assert (private.matrix - exact.matrix).abs().max() < 60
    assert private.scalars["accuracy"].item() == pytest.approx(
        exact.scalars["accuracy"].item(), abs=0.02
    )


def test_the_figure_of_the_metric_says_where_it_comes_from(scored: Scored) -> None:
    fig, ax = counted(FederatedConfusionMatrix(), scored).plot(label="model")
    assert "model: exact" in [text.get_text() for text in ax.texts]
    assert len(ax.get_images()) == 1
    plt.close(fig)


@EVERY_POINT
def test_an_operating_point_is_that_of_the_function(kind: Any, scored: Scored) -> None:
    for minimum in (0.0, 0.5, 0.9, 1.0):
        value, threshold = counted(kind(minimum), scored).compute()
        expected = POINTS[kind](F.count(*scored), minimum)
        assert torch.equal(value, expected.value)
        assert torch.equal(threshold, expected.threshold)
        alone = counted(kind(minimum, with_threshold=False), scored).compute()
        assert torch.equal(alone, expected.value)


@EVERY_POINT
def test_only_the_value_can_be_logged(kind: Any) -> None:
    assert not kind(0.5)._is_scalar
    assert kind(0.5, with_threshold=False)._is_scalar
    classes = {"task": "multiclass", "num_classes": 3, "with_threshold": False}
    assert not kind(0.5, average=None, **classes)._is_scalar
    assert kind(0.5, average="macro", **classes)._is_scalar


@EVERY_POINT
def test_thresholds_have_no_mean(kind: Any) -> None:
    with pytest.raises(InputError, match="with_threshold=False"):
        kind(0.5, "multiclass", num_classes=3, average="macro")


@EVERY_POINT
@pytest.mark.parametrize("minimum", [-0.1, 1.1, float("nan")])
def test_a_minimum_is_a_fraction(kind: Any, minimum: float) -> None:
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        kind(minimum)


@EVERY_POINT
def test_figures_show_the_threshold(kind: Any, scored: Scored) -> None:
    for with_threshold in (True, False):
        metric = counted(kind(0.5, with_threshold=with_threshold), scored)
        fig, ax = metric.plot()
        assert ax.get_xlabel() == "Threshold"
        plt.close(fig)
    point = counted(kind(0.5), scored).compute()
    fig, ax = kind(0.5).plot(point, label="given")
    assert ax.get_xlabel() == "Threshold"
    plt.close(fig)
    fig, ax = kind(0.5).plot([point.value, point.value])
    assert ax.get_xlabel() == "Step"
    plt.close(fig)
