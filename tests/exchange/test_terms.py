"""Terms: two metrics pay as one if their releases reach the same ledger under the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmetrics_fed import (
    BudgetExceededError,
    CentralDP,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
    ReleaseError,
)
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.metrics import terms_of


def terms(ledger: PrivacyLedger | None = None, data: str = "data") -> Terms:
    return terms_of(FederatedROC(privacy=LocalDP(1.0), ledger=ledger, data=data))


def test_two_ledger_objects_on_one_file_are_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = terms(PrivacyLedger(budget=3.0, path=path))
    second = terms(PrivacyLedger(budget=3.0, path=path))
    assert first.pays_as(second)
    assert second.pays_as(first)


def test_two_ledgers_are_two_payers(tmp_path: Path) -> None:
    assert not terms().pays_as(terms())
    first = terms(PrivacyLedger(budget=3.0, path=tmp_path / "first"))
    second = terms(PrivacyLedger(budget=3.0, path=tmp_path / "second"))
    assert not first.pays_as(second)


def test_one_ledger_object_pays_under_one_name_only() -> None:
    ledger = PrivacyLedger()
    assert terms(ledger).pays_as(terms(ledger))
    assert not terms(ledger, "hospital A").pays_as(terms(ledger, "hospital B"))


def test_a_server_may_ask_only_where_a_limit_lasts(tmp_path: Path) -> None:
    terms(PrivacyLedger(budget=3.0, path=tmp_path / "ledger")).check_ledger()
    with pytest.raises(InputError):
        terms().check_ledger()
    terms_of(FederatedROC()).check_ledger()  # exact counts spend nothing


def run_terms(privacy: Privacy, ledger: PrivacyLedger | None = None) -> Terms:
    return terms_of(FederatedROC(privacy=privacy, ledger=ledger or PrivacyLedger()))


def test_a_run_within_the_budget_needs_no_remark() -> None:
    privacy = CentralDP.for_run(3.0, evaluations=50)
    assert run_terms(privacy, PrivacyLedger(3.0)).check_run(50) == ""
    assert run_terms(privacy).check_run(None) == ""
    assert terms_of(FederatedROC()).check_run(10_000) == ""


def test_a_run_beyond_the_budget_says_what_it_would_spend() -> None:
    remark = run_terms(CentralDP(1.0), PrivacyLedger(3.0)).check_run(40)
    assert "would spend epsilon 40 of 3: the budget ends after 3" in remark
    assert "no budget limits it" in run_terms(CentralDP(1.0)).check_run(40)
    longer = run_terms(CentralDP.for_run(3.0, evaluations=50)).check_run(60)
    assert "promises 3 for 50 evaluations" in longer


def test_a_run_without_a_single_evaluation_does_not_begin() -> None:
    with pytest.raises(BudgetExceededError, match="Cannot begin"):
        run_terms(CentralDP(4.0), PrivacyLedger(3.0)).check_run(1)
    with pytest.raises(ReleaseError, match="min_clients=5"):
        run_terms(DistributedDP(1.0, min_clients=5)).check_run(None, clients=4)
