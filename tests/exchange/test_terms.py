"""Terms: two metrics pay as one if their releases reach the same ledger under the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchmetrics_fed import FederatedROC, InputError, LocalDP, PrivacyLedger
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
