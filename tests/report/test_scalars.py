"""The numbers that trainers log are those of the metrics."""

from __future__ import annotations

import torch

from tests.report.conftest import release_of
from torchmetrics_fed import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    Release,
)
from torchmetrics_fed.report.scalars import release_scalars


def test_scalars_are_those_of_the_metrics(release: Release) -> None:
    auroc = FederatedAUROC.from_release(release)
    average_precision = FederatedAveragePrecision.from_release(release)
    assert release_scalars(release) == {
        "auroc": float(auroc.compute()),
        "average_precision": float(average_precision.compute()),
    }


def test_one_versus_one_has_no_average_precision() -> None:
    metric = FederatedROC("multiclass", num_classes=3, multi_class="ovo", quantiles=64)
    metric.update(torch.rand(90, 3).softmax(-1), torch.arange(90) % 3)
    assert list(release_scalars(metric.release())) == ["auroc"]


def test_scalars_are_plain_floats() -> None:
    scalars = release_scalars(release_of("private multiclass"))
    for value in scalars.values():
        assert type(value) is float
