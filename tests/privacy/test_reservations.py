"""A reservation keeps a part of the budget free while it is open, and costs nothing."""

from __future__ import annotations

import math
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.privacy.ledgers import OpenLedger, entry_of_round, race
from torchmetrics_fed.errors import (
    BudgetExceededError,
    InputError,
    LedgerConflictError,
    LedgerError,
)
from torchmetrics_fed.privacy.ledger import PrivacyLedger


def reserved_rounds(ledger: PrivacyLedger) -> list[int]:
    return [int(reservation.entry.round) for reservation in ledger.reservations]


def test_a_reservation_is_part_of_the_budget_and_costs_nothing(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=3.0)
    entries = [entry_of_round(round) for round in range(3)]
    for entry in entries:
        ledger.reserve(entry, seconds=600)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 1\.0, 0\.0 of 3\.0 is left"):
        ledger.reserve(entry_of_round(3), seconds=600)
    with pytest.raises(BudgetExceededError):
        ledger.charge(entry_of_round(3), b"pilot", 1.0)
    with pytest.raises(BudgetExceededError):
        ledger.spend("test", 1, 0.1)
    assert len(ledger) == 0
    assert ledger.remaining == 0.0
    assert ledger.spent().epsilon == 0.0
    assert [reservation.entry for reservation in ledger.reservations] == entries
    assert ledger.report().count("Reserved: epsilon 1, for data val, round ") == 3


def test_a_reservation_that_expires_leaves_its_part_to_others(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.reserve(entry_of_round(0), seconds=0.5)
    for round in (1, 2):
        ledger.reserve(entry_of_round(round), seconds=600)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(entry_of_round(3), seconds=600)
    end = ledger.reservations[0].until
    time.sleep(max(0.0, end - time.time()) + 0.01)
    ledger.reserve(entry_of_round(3), seconds=600)
    assert reserved_rounds(ledger) == [1, 2, 3]
    with pytest.raises(BudgetExceededError):  # after its reservation it is as any other release
        ledger.charge(entry_of_round(0), b"pilot", 1.0)
    assert len(ledger) == 0


def test_a_reserved_release_is_charged_when_the_budget_is_otherwise_full(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.reserve(entry_of_round(0), seconds=600)
    ledger.spend("val", "by hand", 1.0)
    ledger.reserve(entry_of_round(1), seconds=600)
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.charge(entry_of_round(0), b"placed", 0.75)
    assert reserved_rounds(ledger) == [1]
    assert ledger.spent().epsilon == 2.0
    assert ledger.remaining == 0.0


def test_a_release_that_was_charged_is_neither_given_back_nor_reserved(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.reserve(entry_of_round(0), seconds=600)
    ledger.charge(entry_of_round(0), b"pilot", 0.25)
    ledger.cancel(entry_of_round(0))
    assert ledger.spent().epsilon == 1.0
    ledger.reserve(entry_of_round(0), seconds=600)
    assert ledger.reservations == ()


def test_a_reservation_that_is_given_back_is_free_again(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.reserve(entry_of_round(0), seconds=600)
    ledger.cancel(entry_of_round(0))
    ledger.cancel(entry_of_round(0))  # there is nothing left to give back
    ledger.cancel(entry_of_round(7))
    assert ledger.reservations == ()
    assert ledger.remaining == 1.0
    ledger.charge(entry_of_round(1), b"pilot", 1.0)
    with pytest.raises(BudgetExceededError):
        ledger.charge(entry_of_round(0), b"pilot", 1.0)


def test_a_second_reservation_of_a_release_replaces_the_first(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    for seconds in (600, 60):
        ledger.reserve(entry_of_round(0), seconds=seconds)
    (reservation,) = ledger.reservations
    assert 0 < reservation.until - time.time() <= 60
    ledger.cancel(entry_of_round(0))
    assert ledger.reservations == ()


def test_a_round_that_another_client_has_charged_cannot_be_reserved(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.charge(entry_of_round(0), b"pilot", 1.0)
    for client in ("another", ""):
        with pytest.raises(LedgerConflictError, match="another client"):
            ledger.reserve(replace(entry_of_round(0), client=client), seconds=600)
    with pytest.raises(LedgerConflictError, match="another price"):
        ledger.reserve(entry_of_round(0, 0.5), seconds=600)
    assert ledger.reservations == ()


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e18, "60", None])
def test_bad_seconds_are_refused(open_ledger: OpenLedger, seconds: Any) -> None:
    ledger = open_ledger(budget=3.0)
    with pytest.raises(InputError, match="`seconds`"):
        ledger.reserve(entry_of_round(0), seconds=seconds)
    assert ledger.reservations == ()


def test_no_clock_makes_the_ledger_charge_more_than_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reservation expires, another takes its place, and the clock is put back: both are open."""
    ledger = PrivacyLedger(budget=1.0)
    clock = [1000.0]
    monkeypatch.setattr("torchmetrics_fed.privacy.ledger.time.time", lambda: clock[0])
    ledger.reserve(entry_of_round(0), seconds=10)
    clock[0] = 1010.0
    ledger.reserve(entry_of_round(1), seconds=1000)
    clock[0] = 1005.0
    assert len(ledger.reservations) == 2
    for round in (0, 1):
        with pytest.raises(BudgetExceededError):
            ledger.charge(entry_of_round(round), b"pilot", 1.0)
    clock[0] = 1010.0
    ledger.charge(entry_of_round(1), b"pilot", 1.0)
    assert ledger.spent().epsilon == 1.0


def test_a_ledger_in_memory_that_has_a_reservation_is_not_copied() -> None:
    ledger = PrivacyLedger()
    ledger.reserve(entry_of_round(0), seconds=600)
    with pytest.raises(LedgerError, match="`path`"):
        pickle.dumps(ledger)


RESERVE = """
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.errors import BudgetExceededError
path, rank = sys.argv[1:3]
print("ready", flush=True)
sys.stdin.readline()
ledger = PrivacyLedger(3.0, path)
for round in range(2):
    try:
        ledger.reserve(LedgerEntry("val", f"{rank}.{round}", 0.5, spec="spec"), seconds=600)
        print("reserved")
    except BudgetExceededError:
        print("refused")
"""


def test_processes_see_each_others_reservations(tmp_path: Path) -> None:
    words = race(RESERVE, tmp_path / "ledger")
    assert words.count("reserved") == 6
    assert words.count("refused") == 10
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert len(ledger.reservations) == 6
    assert ledger.remaining == 0.0
    assert len(ledger) == 0
    with pytest.raises(BudgetExceededError):
        ledger.spend("val", "another", 0.1)
    for reservation in ledger.reservations:
        ledger.charge(reservation.entry, b"query", 1.0)
    assert ledger.spent().epsilon == 3.0
