"""Every metric declares the scalars of what it computes, so that trainers know what will be logged."""

from __future__ import annotations

import pytest
from torch import Tensor

import torchmetrics_fed.metrics
from torchmetrics_fed import FederatedMetric, FederatedModelComparison

KINDS = [
    kind
    for kind in map(vars(torchmetrics_fed.metrics).get, torchmetrics_fed.metrics.__all__)
    if isinstance(kind, type) and issubclass(kind, FederatedMetric) and kind.definition.name
    if kind is not FederatedModelComparison  # which takes two models' scores
]


def test_there_are_some() -> None:
    assert len(KINDS) >= 7


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.name)
def test_scalars_are_declared(kind: type[FederatedMetric], scored: tuple[Tensor, Tensor]) -> None:
    metric = kind()
    metric.update(*scored)
    result = metric.compute()
    assert isinstance(result, Tensor) == metric._is_scalar
    assert kind.definition.scalars == (() if isinstance(result, Tensor) else tuple(result.scalars))
