"""A federated collection: metrics of the same data make one release, and spend once for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    federated_collection,
)
from torchmetrics_fed.errors import SpecMismatchError
from torchmetrics_fed.metrics.collection import KINDS, representative

NAMES = [kind.definition.name for kind in KINDS]


def test_all_metrics_read_one_release_that_is_charged_once(scored: tuple[Tensor, Tensor]) -> None:
    collection: Any = federated_collection(metrics=NAMES, privacy=CentralDP(1.0))
    collection.update(*scored)
    collection.compute()
    releases = {bytes(collection[name].release()) for name in NAMES}
    assert len(releases) == 1
    ledgers = [collection[name].ledger for name in NAMES]
    assert all(ledger is ledgers[0] for ledger in ledgers)
    assert [entry.epsilon for entry in ledgers[0]] == [1.0]


def test_a_metric_of_a_collection_computes_what_it_computes_alone(
    scored: tuple[Tensor, Tensor],
) -> None:
    collection: Any = federated_collection(metrics=NAMES)
    collection.update(*scored)
    values = collection.compute()
    assert list(values) == sorted(NAMES)
    metric = FederatedAUROC()
    metric.update(*scored)
    assert torch.equal(values["auroc"], metric.compute())


@pytest.mark.parametrize("metrics", [(), ("no such metric",), {"accuracy": BinaryAccuracy}])
def test_metrics_that_a_collection_does_not_know_are_refused(metrics: Any) -> None:
    with pytest.raises(InputError, match="argument `metrics`"):
        federated_collection(metrics=metrics)


def test_the_representative_is_a_metric_of_the_collection() -> None:
    metric = FederatedROC()
    assert representative(metric) is metric
    collection: Any = federated_collection()
    assert representative(collection) in list(collection.values(copy_state=False))


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (BinaryAccuracy(), InputError),
        (FederatedAUROC(privacy=CentralDP(1.0)), InputError),  # a ledger of its own
        (FederatedAUROC(privacy=CentralDP(2.0)), SpecMismatchError),
    ],
    ids=["another library", "another ledger", "another spec"],
)
def test_metrics_of_different_releases_have_no_representative(
    second: Any, error: type[Exception]
) -> None:
    first = FederatedROC(privacy=CentralDP(1.0))
    with pytest.raises(error):
        representative(MetricCollection({"first": first, "second": second}))
