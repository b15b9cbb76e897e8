"""Threat 1: repeated compute redraws noise, and averaging takes it off."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.attacks.naive import NaiveROC
from torchmetrics_fed import CentralDP, FederatedROC, LocalDP, ReleaseError
from torchmetrics_fed.functional import ROCCurve

PRIVACY = [CentralDP(0.5), LocalDP(0.5), CentralDP(0.5, mechanism="skellam", delta=1e-6)]


def same(first: ROCCurve, second: ROCCurve) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def attack(metric: Any) -> int:
    """Number of different curves that 1,000 computes show, by every way of asking again."""
    curves = set()
    for turn in range(1_000):
        copied = (metric, copy.deepcopy(metric), metric.clone())[turn % 3]
        copied._computed = None
        curves.add(copied.compute().tpr.numpy().tobytes())
    return len(curves)


@pytest.mark.parametrize("privacy", PRIVACY, ids=["central", "local", "skellam"])
@pytest.mark.parametrize("cache", [True, False])
def test_a_thousand_computes_are_one_draw(
    privacy: Any, cache: bool, scored: tuple[Tensor, Tensor]
) -> None:
    metric = FederatedROC(quantiles=16, privacy=privacy, compute_with_cache=cache)
    metric.update(*scored)
    metric.compute()
    assert attack(metric) == 1
    assert len(metric.ledger) == 1


def test_the_naive_metric_draws_again(scored: tuple[Tensor, Tensor]) -> None:
    metric = NaiveROC(compute_with_cache=False)
    metric.update(*scored)
    assert attack(metric) > 900


def test_copies_that_hold_data_share_its_one_release(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(1.0))
    metric.update(*scored)
    twin: Any = metric.clone()
    assert same(twin.compute(), metric.compute())
    assert len(metric.ledger) == 1
    assert twin.ledger is metric.ledger


def test_a_copy_that_went_on_counting_is_refused(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(1.0))
    metric.update(*scored)
    twin: Any = metric.clone()
    twin.update(*scored)
    metric.compute()
    with pytest.raises(ReleaseError, match="counted something else since"):
        twin.compute()
    assert len(metric.ledger) == 1


def test_copies_made_before_data_release_their_own(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(1.0))
    twin: Any = metric.clone()
    for member in (metric, twin):
        member.update(*scored)
    assert not same(metric.compute(), twin.compute())
    assert len(metric.ledger) == len(twin.ledger) == 2


def test_no_data_is_added_after_the_release(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(1.0))
    metric.update(*scored)
    curve = metric.compute()
    for call in (metric.update, metric.forward):
        with pytest.raises(ReleaseError, match="reset"):
            call(*scored)
    with pytest.raises(ReleaseError, match="reset"):
        metric.merge_state(FederatedROC(quantiles=16, privacy=CentralDP(1.0)))
    assert same(metric.compute(), curve)
    metric.reset()
    metric.update(*scored)
    assert not same(metric.compute(), curve)
    assert len(metric.ledger) == 2


def test_identical_data_in_two_rounds_is_drawn_twice(scored: tuple[Tensor, Tensor]) -> None:
    """A release that is used again exactly when the data is the same would tell whether it
    changed."""
    metric = FederatedROC(quantiles=16, privacy=CentralDP(1.0))
    curves = []
    for _ in range(2):
        metric.update(*scored)
        curves.append(metric.compute())
        metric.reset()
    assert not same(*curves)
