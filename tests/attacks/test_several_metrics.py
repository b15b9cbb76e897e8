"""Threat 3: several metrics each release the same data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.wrappers import BootStrapper, MetricTracker

from tests.attacks.naive import NaiveROC
from torchmetrics_fed import (
    CentralDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    PrivacyLedger,
    ReleaseError,
    federated_collection,
)

FOUR: dict[str, Any] = {
    "roc": FederatedROC,
    "roc_again": FederatedROC,
    "pr": FederatedPrecisionRecallCurve,
    "pr_again": FederatedPrecisionRecallCurve,
}


def fed(collection: Any, scored: tuple[Tensor, Tensor], habit: str) -> Any:
    for preds, target in zip(scored[0].chunk(3), scored[1].chunk(3), strict=True):
        getattr(collection, habit)(preds, target)
    return collection.compute()


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_four_curves_are_one_release(habit: str, scored: tuple[Tensor, Tensor]) -> None:
    ledger = PrivacyLedger()
    collection: Any = federated_collection(
        metrics=FOUR, privacy=CentralDP(1.0), ledger=ledger, quantiles=16
    )
    for epoch in (1, 2, 3):
        curves = fed(collection, scored, habit)
        assert len(ledger) == epoch
        assert torch.equal(curves["roc"].tpr, curves["roc_again"].tpr)
        # recall is the true positive rate of the very same release
        assert torch.equal(curves["pr"].recall.flip(0), curves["roc"].tpr)
        assert torch.equal(collection["pr_again"].compute().recall, curves["pr"].recall)
        collection.reset()


def unshared(ledger: PrivacyLedger) -> Any:
    """What torchmetrics' users write."""
    privacy = CentralDP(0.5)
    metrics: Any = {
        name: kind(privacy=privacy, ledger=ledger, quantiles=16) for name, kind in FOUR.items()
    }
    return MetricCollection(metrics)


@pytest.mark.parametrize("habit", ["update", "forward"])
def test_unshared_metrics_are_warned_of_and_each_show_in_the_ledger(
    habit: str, scored: tuple[Tensor, Tensor]
) -> None:
    ledger = PrivacyLedger()
    with pytest.warns(
        UserWarning, match="4 releases.*epsilon 2 in all.*`federated_collection`"
    ) as caught:
        fed(unshared(ledger), scored, habit)
    assert len(caught) == 1
    assert len(ledger) == 4


def test_the_warning_comes_before_anything_is_counted_or_spent(
    scored: tuple[Tensor, Tensor],
) -> None:
    ledger = PrivacyLedger()
    collection = unshared(ledger)
    with pytest.raises(UserWarning, match="4 releases"):  # warnings are errors here
        collection.update(*scored)
    assert len(ledger) == 0
    assert not any(metric.update_called or metric.counts.any() for metric in collection.values())


def test_metrics_that_count_by_themselves_or_share_are_not_warned_of(
    scored: tuple[Tensor, Tensor],
) -> None:
    exact = FederatedPrecisionRecallCurve(quantiles=16)
    collection: Any = MetricCollection(
        {"private": FederatedROC(quantiles=16, privacy=CentralDP(1.0)), "exact": exact}
    )
    fed(collection, scored, "update")
    several: Any = [FederatedROC(quantiles=16, privacy=CentralDP(1.0)) for _ in range(2)]
    for metric in several:  # two data sets, for all we know
        metric.update(*scored)


def test_the_naive_collection_draws_per_metric(scored: tuple[Tensor, Tensor]) -> None:
    collection: Any = MetricCollection({"one": NaiveROC(), "other": NaiveROC()})
    curves = fed(collection, scored, "update")
    assert not torch.equal(curves["one"].tpr, curves["other"].tpr)


def test_clones_with_a_prefix_and_trackers_have_rounds_of_their_own(
    scored: tuple[Tensor, Tensor],
) -> None:
    ledger = PrivacyLedger()
    collection: Any = federated_collection(privacy=CentralDP(1.0), ledger=ledger, quantiles=16)
    validation = collection.clone(prefix="val_")
    test = collection.clone(prefix="test_")
    validation_curves = fed(validation, scored, "update")
    test_curves = fed(test, scored, "update")
    assert len(ledger) == 2
    assert not torch.equal(validation_curves["val_roc"].tpr, test_curves["test_roc"].tpr)
    tracker: Any = MetricTracker(
        FederatedROC(quantiles=16, privacy=CentralDP(1.0), ledger=ledger), maximize=True
    )
    for _ in range(3):
        tracker.increment()
        tracker.update(*scored)
        tracker.compute()
    assert len(ledger) == 5


def test_a_collection_copied_with_data_shares_the_round(scored: tuple[Tensor, Tensor]) -> None:
    ledger = PrivacyLedger()
    collection: Any = federated_collection(privacy=CentralDP(1.0), ledger=ledger, quantiles=16)
    collection.update(*scored)
    collection.update(*scored)  # now only the leader of the compute group is updated
    twin = collection.clone()
    items = dict(collection.items())  # torchmetrics copies here, too
    first = twin.compute()
    assert torch.equal(collection.compute()["roc"].tpr, first["roc"].tpr)
    assert torch.equal(items["roc"].compute().tpr, first["roc"].tpr)
    assert len(ledger) == 1
    twin.reset()
    twin.update(*scored)
    twin.compute()
    assert len(ledger) == 2
    assert torch.equal(collection.compute()["roc"].tpr, first["roc"].tpr)


def test_wrappers_that_resample_are_refused() -> None:
    with pytest.raises(ReleaseError, match="resamples"):
        BootStrapper(FederatedROC(privacy=CentralDP(1.0)))
    BootStrapper(FederatedROC())


def test_what_was_spent_shows_in_the_repr(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(0.5), ledger=PrivacyLedger(budget=2.0))
    assert "epsilon 0 of 2.0 spent" in repr(metric)
    metric.update(*scored)
    metric.compute()
    assert "epsilon 0.5" in repr(metric)
    assert "of 2.0 spent, 1 release" in repr(metric)


def test_unknown_metrics_are_named() -> None:
    with pytest.raises(InputError, match="exact_match"):
        federated_collection(metrics=["exact_match"])
