"""Every metric declares the scalars of what it computes, so that trainers know what will be
logged."""

from __future__ import annotations

import pytest
from torch import Tensor

from torchmetrics_fed import FederatedMetric
from torchmetrics_fed.metrics.collection import KINDS


def test_there_are_some() -> None:
    assert len(KINDS) >= 7


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.name)
def test_scalars_are_declared(kind: type[FederatedMetric], scored: tuple[Tensor, Tensor]) -> None:
    metric = kind()
    metric.update(*scored)
    result = metric.compute()
    assert isinstance(result, Tensor) == metric._is_scalar
    names = ()
    if not isinstance(result, Tensor):
        names = tuple(result.scalars)
    assert kind.definition.scalars == names
