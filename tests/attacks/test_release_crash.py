"""Threat 15: a crash between spending and releasing. The books never show less than what may have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from torchmetrics_fed import BudgetExceededError, CentralDP, DistributedDP, FederatedROC, PrivacyLedger, Spec


class CrashError(Exception):
    pass


@pytest.fixture
def crashing_draw(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Noise that is drawn, after which the process fails to go on: once."""
    entries: list[int] = []
    draw = Spec.noisy_cells

    def crash(self: Spec, counts: Tensor) -> Tensor:
        drawn = draw(self, counts)
        if not entries:
            entries.append(1)
            raise CrashError
        return drawn

    monkeypatch.setattr(Spec, "noisy_cells", crash)
    return entries


@pytest.mark.usefixtures("crashing_draw")
@pytest.mark.parametrize("call", ["compute", "release"])
def test_a_failed_attempt_is_paid_for_and_the_next_is_a_new_charge(call: str, scored: Any, tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    privacy = CentralDP(0.5) if call == "compute" else DistributedDP(0.5, min_clients=3)
    metric = FederatedROC(quantiles=16, privacy=privacy, ledger=ledger)
    metric.update(*scored)
    with pytest.raises(CrashError):
        getattr(metric, call)()
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 1  # spent before it was drawn
    getattr(metric, call)()
    assert ledger.spent().epsilon == 1.0  # a second draw is a second charge, though the data is the same


def test_a_resumed_run_goes_on_where_the_file_ends(scored: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    for run in (1, 2):
        metric = FederatedROC(quantiles=16, privacy=CentralDP(0.4), ledger=PrivacyLedger(1.0, tmp_path / "ledger"))
        metric.update(*scored)
        metric.compute()
        assert len(metric.ledger) == run
    metric.reset()
    metric.update(*scored)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0.4, 0.2 of 1.0 is left"):
        metric.compute()
    assert metric.counts.sum() == 5_000


def test_nothing_is_drawn_beyond_the_budget(scored: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    metric = FederatedROC(quantiles=16, privacy=CentralDP(2.0), ledger=PrivacyLedger(1.0))
    metric.update(*scored)
    monkeypatch.setattr(Spec, "noisy_cells", lambda *_: pytest.fail("noise was drawn"))
    with pytest.raises(BudgetExceededError):
        metric.compute()
