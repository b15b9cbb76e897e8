"""Threat 15: a crash between charging and releasing. The ledger never shows less than what may
have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    Spec,
)
from torchmetrics_fed.errors import LedgerConflictError
from torchmetrics_fed.exchange import client as client_module


class CrashError(Exception):
    pass


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Noise whose ``number``-th draw is drawn, after which the process fails to go on."""
    draws = 0
    draw = client_module.noisy_cells

    def crash(self: Spec, query: Query, counts: Tensor) -> Tensor:
        nonlocal draws
        drawn = draw(self, query, counts)
        draws += 1
        if draws == number:
            raise CrashError
        return drawn

    monkeypatch.setattr(client_module, "noisy_cells", crash)


@pytest.mark.parametrize(
    ("call", "plan", "number"),
    [
        ("compute", "single", 1),
        ("compute", "adaptive", 1),
        ("compute", "adaptive", 2),
        ("share", "single", 1),
    ],
)
def test_a_failed_attempt_is_paid_for_and_the_next_is_a_new_charge(
    call: str, plan: Any, number: int, scored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    privacy = CentralDP(0.5) if call == "compute" else LocalDP(0.5)
    metric = FederatedROC(quantiles=64, privacy=privacy, ledger=ledger, plan=plan)
    metric.update(*scored)
    crash_at(monkeypatch, number)
    with pytest.raises(CrashError):
        getattr(metric, call)()
    # charged, whole, before it was drawn
    assert PrivacyLedger(path=tmp_path / "ledger").spent().epsilon == 0.5
    getattr(metric, call)()
    # a second draw is a second charge, though the data is the same
    assert ledger.spent().epsilon == 1.0


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_named_round_that_failed_is_not_drawn_again(
    rebuilt: bool, scored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client() -> FederatedROC:
        metric = FederatedROC(
            quantiles=16, privacy=LocalDP(0.5), ledger=PrivacyLedger(5.0, tmp_path / "ledger")
        )
        metric.update(*scored)
        return metric

    metric = client()
    crash_at(monkeypatch, 1)
    with pytest.raises(CrashError):
        metric.share(round="3")
    if rebuilt:
        metric = client()
    for _ in range(2):
        with pytest.raises(LedgerConflictError, match="A retry is a new round, charged again"):
            metric.share(round="3")
    assert metric.ledger.spent().epsilon == 0.5
    metric.share(round="3, again")
    assert metric.ledger.spent().epsilon == 1.0


def test_a_resumed_run_goes_on_where_the_file_ends(
    scored: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    for run in (1, 2):
        metric = FederatedROC(
            quantiles=16, privacy=CentralDP(0.4), ledger=PrivacyLedger(1.0, tmp_path / "ledger")
        )
        metric.update(*scored)
        metric.compute()
        assert len(metric.ledger) == run
    metric.reset()
    metric.update(*scored)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0.4, 0.2 of 1.0 is left"):
        metric.compute()
    assert metric.counts.sum() == 5_000


def test_nothing_is_drawn_beyond_the_budget(
    scored: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(2.0), ledger=PrivacyLedger(1.0))
    metric.update(*scored)
    monkeypatch.setattr(client_module, "noisy_cells", lambda *_: pytest.fail("noise was drawn"))
    with pytest.raises(BudgetExceededError):
        metric.compute()


def test_noise_that_one_rank_draws_for_all_goes_through_a_gather_function(
    scored: tuple[Tensor, Tensor],
) -> None:
    """Without a process group: it was charged before the first collective failed."""
    metric = FederatedROC(
        quantiles=16,
        privacy=CentralDP(1.0),
        dist_sync_fn=lambda tensor, group=None: [tensor] * 3,
        distributed_available_fn=lambda: True,
    )
    metric.update(*scored)
    assert metric.compute().tpr.isfinite().all()
    (entry,) = metric.ledger
    assert entry.epsilon == 1.0
    assert entry.time
