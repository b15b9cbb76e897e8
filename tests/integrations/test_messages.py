"""Bytes from clients and a release at the server, for trainers that only move bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    DuplicateClientError,
    FederatedROC,
    ImpossibleCountsError,
    LocalDP,
    PrivacyLedger,
    Release,
    ReleaseError,
    RoundMismatchError,
    SpecMismatchError,
    WireError,
    federated_collection,
)
from torchmetrics_fed.integrations.messages import from_messages, to_message

NAMES = ("ann", "ben", "cem")


def counted(scored: tuple[Tensor, Tensor], part: int, **options: Any) -> FederatedROC:
    metric = FederatedROC(quantiles=64, **options)
    metric.update(scored[0][part::3], scored[1][part::3])
    return metric


def sent(scored: tuple[Tensor, Tensor], round: str = "one", **options: Any) -> list[bytes]:
    return [to_message(counted(scored, part, **options), round, name) for part, name in enumerate(NAMES)]


def test_the_release_is_the_sum_and_the_curve_the_pooled_one(scored: tuple[Tensor, Tensor]) -> None:
    release = from_messages(iter(sent(scored)), FederatedROC(quantiles=64), "one")
    shares = [counted(scored, part).release("one", client=name) for part, name in enumerate(NAMES)]
    assert bytes(release) == bytes(Release.sum(shares))
    pooled = FederatedROC(quantiles=64)
    pooled.update(*scored)
    curve = FederatedROC.from_release(release).compute()
    assert all(torch.equal(a, b) for a, b in zip(curve, pooled.compute(), strict=True))


def test_a_spec_serves_as_well_as_a_metric(scored: tuple[Tensor, Tensor]) -> None:
    messages, metric = sent(scored), FederatedROC(quantiles=64)
    assert torch.equal(from_messages(messages, metric, "one").cells, from_messages(messages, metric.spec, "one").cells)


def test_a_collection_sends_one_share(scored: tuple[Tensor, Tensor]) -> None:
    ledger = PrivacyLedger()
    options: dict[str, Any] = {"quantiles": 64, "privacy": LocalDP(epsilon=1.0)}
    collection = federated_collection(metrics=["roc", "auroc"], ledger=ledger, **options)
    for part in (0, 1):
        collection.update(scored[0][part::3], scored[1][part::3])
    message = to_message(collection, "one", "ann")
    assert to_message(collection, "one", "ann") == message
    assert len(ledger) == 1
    exact = federated_collection(metrics=["roc", "auroc"], quantiles=64)
    for part in (0, 1):
        exact.update(scored[0][part::3], scored[1][part::3])
    total = from_messages([to_message(exact, "one", "ann")], exact, "one")
    assert total.leaf.sum() == sum(len(scored[0][part::3]) for part in (0, 1))


def test_a_trusted_aggregator_may_sum_noisy_shares(scored: tuple[Tensor, Tensor]) -> None:
    privacy = DistributedDP(epsilon=1.0, min_clients=3, trusted_aggregator=True)
    messages = sent(scored, privacy=privacy)
    metric = FederatedROC(quantiles=64, privacy=privacy)
    assert FederatedROC.from_release(from_messages(messages, metric, "one")).compute().tpr[-1] == 1
    too_few = from_messages(messages[:2], metric, "one")
    with pytest.raises(ReleaseError, match="min_clients=3"):
        FederatedROC.from_release(too_few).compute()


@pytest.mark.parametrize(
    "options",
    [{"privacy": DistributedDP(epsilon=1.0, min_clients=3)}, {"secure": True}, {"privacy": CentralDP(epsilon=1.0)}],
    ids=["distributed", "secure", "central"],
)
def test_what_must_not_travel_is_refused_before_it_is_drawn(
    options: dict[str, Any], scored: tuple[Tensor, Tensor]
) -> None:
    metric = counted(scored, 0, **options)
    with pytest.raises(ReleaseError, match=r"secure sum|CentralDP"):
        to_message(metric, "one", "ann")
    assert len(metric.ledger) == 0
    if metric.spec.hides_shares:
        with pytest.raises(ReleaseError, match="secure sum"):
            from_messages([], metric, "one")


def test_each_fault_has_its_error_and_its_place(scored: tuple[Tensor, Tensor]) -> None:
    metric, good = FederatedROC(quantiles=64), sent(scored)
    with pytest.raises(WireError, match="Message 1,"):
        from_messages([good[0], good[1][:-1]], metric, "one")
    with pytest.raises(SpecMismatchError, match=r"Message 0,.*bins"):
        from_messages(good, FederatedROC(quantiles=128), "one")
    with pytest.raises(RoundMismatchError, match="'two'"):
        from_messages([good[0], *sent(scored, "two")], metric, "one")
    with pytest.raises(DuplicateClientError, match="'ann'"):
        from_messages([*good, good[0]], metric, "one")
    with pytest.raises(ImpossibleCountsError, match="max_examples=10"):
        from_messages(good, metric, "one", max_examples=10)
    with pytest.raises(ReleaseError, match="at least one share"):
        from_messages([], metric, "one")
