"""The numbers that trainers log: means over classes, and for two models the comparison's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedModelComparison,
    FederatedROC,
    Release,
)
from torchmetrics_fed.comparison import compare_models
from torchmetrics_fed.report.scalars import release_scalars


def test_they_are_the_numbers_of_the_metrics(release: Release) -> None:
    assert release_scalars(release) == {
        "auroc": float(FederatedAUROC.from_release(release).compute()),
        "average_precision": float(FederatedAveragePrecision.from_release(release).compute()),
    }


def test_one_vs_one_counts_have_an_auroc_alone() -> None:
    metric = FederatedROC("multiclass", num_classes=3, multi_class="ovo")
    metric.update(torch.rand(90, 3), torch.arange(90) % 3)
    scalars = release_scalars(metric.release())
    assert scalars == {
        "auroc": pytest.approx(float(FederatedAUROC.from_release(metric.release()).compute()))
    }


def test_a_comparison_has_its_own(scored: tuple[Tensor, Tensor]) -> None:
    preds, target = scored
    metric = FederatedModelComparison()
    metric.update(preds, 1 - preds, target)
    release = metric.release()
    expected = compare_models(release).scalars
    assert release_scalars(release) == {name: float(value) for name, value in expected.items()}
