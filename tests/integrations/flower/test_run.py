"""A run of many rounds: the server says what it would spend, and logs the trend."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from tests.integrations.flower.federation import (
    Make,
    charged,
    grid_of,
    ledgers,
    private,
    roc,
    start,
    strategy_of,
    warnings,
)
from torchmetrics_fed import DistributedDP
from torchmetrics_fed.functional import trend
from torchmetrics_fed.integrations.flower.run import planned_remark
from torchmetrics_fed.metrics import terms_of

ROUNDS = 4


def for_run(evaluations: int) -> Make:
    privacy = DistributedDP.for_run(6.0, evaluations=evaluations, min_clients=4)
    return partial(roc, privacy=privacy)


def test_the_trend_is_logged_beside_the_value(folder: Path, log: pytest.LogCaptureFixture) -> None:
    make = for_run(ROUNDS)
    strategy = strategy_of(make(), trend=True)
    result = start(strategy, grid_of(charged(make, folder)), rounds=ROUNDS)
    last = result.evaluate_metrics_clientapp[ROUNDS]
    smooth = trend(list(strategy.releases.values()))
    assert last["federated-auroc-trend"] == pytest.approx(smooth.value[-1].item())
    history = strategy.history.trend("federated-auroc")
    assert torch.allclose(history.upper, smooth.upper)
    assert "federated-average-precision-trend" in last
    assert "plans" not in warnings(log)
    assert [len(ledger) for ledger in ledgers(folder)] == [ROUNDS] * 5


def test_a_plan_beyond_the_setting_is_said_before_the_first_round(
    folder: Path, log: pytest.LogCaptureFixture
) -> None:
    make = for_run(2)
    start(strategy_of(make()), grid_of(charged(make, folder)), rounds=3)
    first = warnings(log).splitlines()[0]
    assert "plans 3 evaluations" in first
    assert "promises 6 for 2 evaluations" in first
    assert "refuses the rounds" in first


def test_rounds_without_a_run_are_added_up() -> None:
    terms = terms_of(private()())
    assert planned_remark(terms, 5) == ""
    assert "would spend epsilon 40" in planned_remark(terms, 20)
    assert planned_remark(terms_of(roc()), 1000) == ""
