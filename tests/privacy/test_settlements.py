"""A release that is broken off costs what was drawn where amounts add up, and the whole elsewhere."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.privacy.ledgers import OpenLedger, entry_of_round
from torchmetrics_fed.errors import LedgerConflictError, LedgerFileError
from torchmetrics_fed.privacy.budget import exact
from torchmetrics_fed.privacy.ledger import PrivacyLedger


def test_a_settled_release_costs_what_was_drawn(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.charge(entry_of_round(0), b"pilot", 3 / 64)
    assert ledger.remaining == 0.0
    ledger.settle(entry_of_round(0))
    assert ledger.spent().epsilon == 0.046875
    assert ledger.remaining == 0.953125
    assert len(ledger) == 1


def test_a_settled_release_is_over(open_ledger: OpenLedger) -> None:
    """Else a query could be answered at a price that was given back."""
    ledger = open_ledger(budget=1.0)
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.settle(entry_of_round(0))
    for entry in (entry_of_round(0), entry_of_round(0, 0.25)):
        for query in (b"pilot", b"placed"):
            with pytest.raises(LedgerConflictError, match="it was broken off"):
                ledger.charge(entry, query, 0.25)
        ledger.settle(entry)  # a second time changes nothing
    with pytest.raises(LedgerConflictError, match="at another price"):
        ledger.reserve(entry_of_round(0), seconds=60)
    assert ledger.spent().epsilon == 0.25


def test_a_release_whose_queries_were_all_answered_costs_the_whole(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.charge(entry_of_round(0), b"placed", 0.75)
    ledger.settle(entry_of_round(0))
    ledger.settle(entry_of_round(1))  # which was never charged
    assert ledger.spent().epsilon == 1.0


def test_a_release_by_hand_has_no_queries_and_stays_charged(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    entry = ledger.spend("val", 1, 0.5)
    ledger.settle(entry)
    assert ledger.spent().epsilon == 0.5


def test_where_amounts_must_be_fixed_beforehand_the_whole_stays_charged() -> None:
    pytest.importorskip("dp_accounting")
    ledger = PrivacyLedger(budget=1.0, composition="pld")
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.settle(entry_of_round(0))
    assert [entry.epsilon for entry in ledger] == [1.0]


def test_a_settlement_is_in_the_file(tmp_path: Path) -> None:
    ledger = PrivacyLedger(1.0, tmp_path / "ledger")
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.settle(entry_of_round(0))
    again = PrivacyLedger(path=tmp_path / "ledger")
    assert again.spent().epsilon == 0.25
    assert again.digest() == ledger.digest()


def test_a_file_whose_settlement_is_not_below_the_charge_is_refused(tmp_path: Path) -> None:
    ledger = PrivacyLedger(1.0, tmp_path / "ledger")
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    with ledger._transaction() as (tables, records):
        key = list(entry_of_round(0).key)
        records.entries[entry_of_round(0).key] = entry_of_round(0, 9.0)
        records.append(tables, {"settlement": key, "epsilon": 2.0})
    with pytest.raises(LedgerFileError, match="a settlement is below the charge"):
        PrivacyLedger(path=tmp_path / "ledger").spent()


@given(
    epsilon=st.floats(1e-6, 100.0),
    fraction=st.floats(1e-3, 1.0, exclude_max=True),
)
def test_a_settlement_is_never_below_what_was_drawn(epsilon: float, fraction: float) -> None:
    ledger = PrivacyLedger()
    entry = entry_of_round(0, epsilon)
    ledger.charge(entry, b"pilot", fraction)
    ledger.settle(entry)
    (settled,) = ledger
    drawn = Fraction(fraction) * exact(epsilon)
    assert drawn <= exact(settled.epsilon) <= min(drawn + Fraction(2, 10**12), exact(epsilon))
