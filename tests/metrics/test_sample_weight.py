"""Weights: an example of weight w counts as w examples do, and weightless metrics stay what they
were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torchmetrics import MetricCollection

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    InputError,
    ScoreGrid,
    federated_collection,
)

TASKS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {"num_classes": 4},
    "multilabel": {"num_labels": 4},
}


def drawn(task: str, examples: int = 600) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(examples, 4)
    if task == "binary":
        scores = torch.rand(examples, generator=generator)
    classes = 4 if task == "multiclass" else 2
    target = torch.randint(0, classes, (examples,), generator=generator)
    if task == "multilabel":
        target = torch.randint(0, 2, (examples, 4), generator=generator)
    return scores, target, torch.randint(0, 5, (examples,), generator=generator)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("grid", ["two_sided", "even", ScoreGrid.from_edges([0, 0.3, 1])], ids=str)
def test_a_weight_is_so_many_examples(task: Any, grid: Any) -> None:
    scores, target, weight = drawn(task)
    weighted, repeated = (FederatedROC(task, grid=grid, **TASKS[task]) for _ in range(2))
    weighted.update(scores, target, sample_weight=weight)
    repeated.update(scores.repeat_interleave(weight, 0), target.repeat_interleave(weight, 0))
    assert torch.equal(weighted.counts, repeated.counts)
    weighted.update(scores, target, sample_weight=torch.ones_like(weight, dtype=torch.int32))
    repeated.update(scores, target)
    assert torch.equal(weighted.counts, repeated.counts)


def test_areas_are_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(2)
    target = torch.randint(0, 2, (400,), generator=generator)
    scores = (torch.randn(400, generator=generator) + target).sigmoid()
    weight = torch.randint(0, 9, (400,), generator=generator)
    for metric, reference in (
        (FederatedAUROC(), roc_auc_score),
        (FederatedAveragePrecision(), average_precision_score),
    ):
        metric.update(scores, target, sample_weight=weight)
        truth = reference(target.numpy(), scores.numpy(), sample_weight=weight.numpy())
        assert metric.compute().item() == pytest.approx(truth, abs=2e-3)


def test_images_ignored_examples_and_collections() -> None:
    scores, target, weight = drawn("multiclass", 512)
    target[::5] = -1
    options: dict[str, Any] = {"num_classes": 4, "ignore_index": -1}
    flat = FederatedROC("multiclass", **options)
    image = FederatedROC("multiclass", **options)
    flat.update(scores, target, sample_weight=weight)
    image.update(
        scores.view(8, 8, 8, 4).movedim(-1, 1),
        target.view(8, 8, 8),
        sample_weight=weight.view(8, 8, 8),
    )
    assert torch.equal(flat.counts, image.counts)
    assert flat.counts[0].sum() == weight[target >= 0].sum()
    scores, target, weight = drawn("binary")
    collections: list[Any] = [
        federated_collection(),
        MetricCollection([FederatedROC(), FederatedAUROC()]),
    ]
    for collection in collections:
        collection.update(scores, target, sample_weight=weight)
        assert all(metric.counts.sum() == weight.sum() for metric in collection.values())


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        (torch.ones(600), r"\.round\(\)\.long\(\)"),
        (torch.ones(599, dtype=torch.int64), "shape"),
        ([1] * 600, "list"),
        (torch.full((600,), -1), "from 0 to"),
        (torch.full((600,), 2**40), "from 0 to"),
    ],
)
def test_other_weights_are_refused_and_change_nothing(weight: Any, named: str) -> None:
    scores, target, _ = drawn("binary")
    metric = FederatedROC()
    metric.update(scores, target)
    before = metric.counts.clone()
    with pytest.raises(InputError, match=named):
        metric.update(scores, target, sample_weight=weight)
    assert torch.equal(metric.counts, before)


def test_privacy_and_bands_refuse_weights_and_say_why() -> None:
    scores, target, weight = drawn("binary")
    with pytest.raises(InputError, match="protected w times less"):
        FederatedROC(privacy=CentralDP(1.0)).update(scores, target, sample_weight=weight)
    with pytest.raises(InputError, match="not how weights do"):
        FederatedROC(confidence=0.95).update(scores, target, sample_weight=weight)
