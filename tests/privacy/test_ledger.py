"""Entries and charges: a release is charged once, whole, before its first draw, and for good."""

from __future__ import annotations

import copy
import math
import os
import pickle
import warnings
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.privacy.ledgers import ENTRY, OpenLedger, recorded_answers
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
)
from torchmetrics_fed.privacy import CentralDP, Exact
from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.ledger import PrivacyLedger

# Entries by hand


def test_the_same_release_is_spent_once(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    entry = ledger.spend("val", 1, 0.4, mechanism="polya")
    for round in (1, "1", np.int64(1)):
        assert ledger.spend("val", round, 0.4) == entry
    assert list(ledger) == [entry]
    assert ledger.spent() == (0.4, 0.0)
    assert entry.data == "val"
    assert entry.round == "1"
    assert entry.mechanism == "polya"


def test_the_same_release_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path=path)
    ledger.spend("val", 1, 0.4)
    content = path.read_bytes()
    ledger.spend("val", 1, 0.4)
    PrivacyLedger(path=path).spend("val", 1, 0.4)
    assert path.read_bytes() == content


def test_other_data_or_another_round_is_another_release(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    for data, round in (("val", 1), ("val", 2), ("test", 1), ("val", "01")):
        ledger.spend(data, round, 0.1)
    assert len(ledger) == 4


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.5, 0.0),
        (0.4, 1e-9),
        (math.nextafter(0.4, 1), 0.0),
    ],
)
def test_the_same_release_at_another_price_is_refused(
    open_ledger: OpenLedger, epsilon: float, delta: float
) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 0.4)
    with pytest.raises(LedgerConflictError, match=r"epsilon 0\.4, delta 0\.0.*now got epsilon"):
        ledger.spend("val", 1, epsilon, delta)
    assert ledger.spent() == (0.4, 0.0)


def test_a_draw_that_must_be_the_first_can_say_so(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 0.4, exist_ok=False)
    with pytest.raises(LedgerConflictError, match="round of its own"):
        ledger.spend("val", 1, 0.4, exist_ok=False)
    assert len(ledger) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"epsilon": True},
        {"epsilon": None},
        {"epsilon": Fraction(1, 10**400)},
        {"epsilon": 10**400},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"delta": math.nan},
        {"data": ""},
        {"data": b"val"},
        {"data": "\ud800"},
        {"round": ""},
        {"round": 1.0},
        {"round": True},
        {"round": None},
        {"round": "\ud800"},
        {"mechanism": None},
        {"mechanism": "\ud800"},
    ],
    ids=lambda changes: ascii(changes)[:20],
)
def test_bad_arguments_are_named_and_nothing_is_spent(
    open_ledger: OpenLedger, changes: dict[str, Any]
) -> None:
    ledger = open_ledger(budget=1.0)
    (name,) = changes
    arguments = {"data": "val", "round": 1, "epsilon": 0.1, **changes}
    with pytest.raises(InputError, match=f"`{name}`"):
        ledger.spend(**arguments)
    assert len(ledger) == 0


def test_names_survive_the_file(tmp_path: Path) -> None:
    names = [
        "a\nb",
        "a\r\n",
        "\u2028",
        "'); DROP TABLE entries; --",
        "?",
        "\0",
        "a\0b",
        "ä€𝄞",
        " ",
        "x" * 10_000,
    ]
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    for name in names:
        ledger.spend(name, name, 0.1, mechanism=name)
    entries = list(PrivacyLedger(path=tmp_path / "ledger"))
    assert [entry.data for entry in entries] == names
    assert [entry.round for entry in entries] == names
    assert [entry.mechanism for entry in entries] == names


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (5e-324, 5e-324),
        (1.7976931348623157e308, 0.0),
        (3.0, -0.0),
        (1 / 3, math.nextafter(1, 0)),
    ],
)
def test_amounts_survive_the_file_to_the_last_bit(
    tmp_path: Path, epsilon: float, delta: float
) -> None:
    PrivacyLedger(path=tmp_path / "ledger").spend("val", 1, epsilon, delta)
    (entry,) = PrivacyLedger(path=tmp_path / "ledger")
    assert entry.amounts == (epsilon, delta, 0.0)


def test_entries_cannot_be_changed() -> None:
    entry = PrivacyLedger().spend("val", 1, 0.1)
    with pytest.raises(FrozenInstanceError):
        entry.epsilon = 0.0  # type: ignore[misc]
    assert entry == LedgerEntry("val", "1", 0.1, 0.0, "", entry.time)


def test_an_empty_ledger_is_true() -> None:
    assert PrivacyLedger()


def test_repr_tells_what_is_spent(tmp_path: Path) -> None:
    ledger = PrivacyLedger(budget=1.0, path=tmp_path / "ledger")
    ledger.spend("val", 1, 0.1)
    ledger.spend("val", 2, 0.2)
    assert repr(ledger).startswith("PrivacyLedger(epsilon 0.3 of 1.0 spent, 2 releases, path=")
    assert repr(PrivacyLedger()) == "PrivacyLedger(epsilon 0 spent, 0 releases)"
    os.truncate(tmp_path / "ledger", 10)
    assert "unreadable" in repr(ledger)


# Charges: one entry for a release, and its answered queries


def test_a_release_of_two_queries_is_charged_once_and_whole_before_the_first(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=0.5)
    ledger.charge(ENTRY, b"pilot", 5 / 64)
    assert ledger.spent() == (0.5, 1e-7)
    ledger.charge(ENTRY, b"placed", 59 / 64)
    assert list(ledger) == [ENTRY]
    assert ledger.remaining == 0.0


@pytest.mark.parametrize("reopened", [False, True])
def test_a_query_is_answered_once(tmp_path: Path, reopened: bool) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    ledger.charge(ENTRY, b"pilot", 0.25)
    if reopened:
        ledger = PrivacyLedger(path=tmp_path / "ledger")
    for fraction in (0.25, 0.125):
        with pytest.raises(LedgerConflictError, match="average"):
            ledger.charge(ENTRY, b"pilot", fraction)
    ledger.charge(ENTRY, b"placed", 0.75)
    with pytest.raises(LedgerConflictError, match="average"):
        ledger.charge(ENTRY, b"pilot", 0.25)


def test_ranks_of_a_client_charge_the_same_query(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=0.5)
    for query, fraction in ((b"pilot", 0.25), (b"placed", 0.75)):
        for _ in range(3):
            ledger.charge(ENTRY, query, fraction, may_be_recorded=True)
    assert len(ledger) == 1
    with pytest.raises(LedgerConflictError, match="spend its epsilon once"):
        ledger.charge(ENTRY, b"third", 2**-10, may_be_recorded=True)


@pytest.mark.parametrize("is_rank", [False, True])
@pytest.mark.parametrize("query", [b"pilot", b"placed"])
def test_only_the_client_that_began_a_round_may_continue_it(
    open_ledger: OpenLedger, query: bytes, is_rank: bool
) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 0.25)
    for client in ("another", ""):
        with pytest.raises(LedgerConflictError, match="another client"):
            ledger.charge(replace(ENTRY, client=client), query, 0.25, may_be_recorded=is_rank)
    assert list(ledger) == [ENTRY]
    ledger.charge(ENTRY, b"placed", 0.75)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.25},
        {"delta": 0.0},
        {"epsilon": math.nextafter(0.5, 1)},
    ],
)
def test_a_round_has_one_price(open_ledger: OpenLedger, changes: dict[str, Any]) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 0.25)
    with pytest.raises(LedgerConflictError, match="another price"):
        ledger.charge(replace(ENTRY, **changes), b"placed", 0.75)
    assert list(ledger) == [ENTRY]


@pytest.mark.parametrize(
    ("fractions", "too_large"),
    [
        ([], math.nextafter(1, 2)),
        ([1.0], 2**-10),
        ([0.25, 0.75], 2**-10),
        ([0.5], math.nextafter(0.5, 1)),
        ([1 / 64] * 63, math.nextafter(1 / 64, 1)),
    ],
)
def test_fractions_never_exceed_1(
    open_ledger: OpenLedger, fractions: list[float], too_large: float
) -> None:
    ledger = open_ledger()
    for number, fraction in enumerate(fractions):
        ledger.charge(ENTRY, bytes([number]), fraction)
    with pytest.raises(LedgerConflictError, match="spend its epsilon once"):
        ledger.charge(ENTRY, b"beyond", too_large)
    assert len(ledger) == bool(fractions)


@pytest.mark.parametrize("fraction", [math.nan, math.inf, -math.inf, -0.25, 0.0])
def test_a_bad_fraction_is_refused_and_nothing_is_charged(
    open_ledger: OpenLedger, fraction: float
) -> None:
    ledger = open_ledger()
    with pytest.raises(FederatedMetricError):
        ledger.charge(ENTRY, b"pilot", fraction)
    assert len(ledger) == 0


@pytest.mark.parametrize("changes", [{"data": "test"}, {"round": "2"}, {"spec": "other"}])
def test_other_data_another_round_or_spec_is_another_release(
    open_ledger: OpenLedger, changes: dict[str, Any]
) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.charge(ENTRY, b"pilot", 1.0)
    ledger.charge(replace(ENTRY, client="another", **changes), b"pilot", 1.0)
    assert len(ledger) == 2
    assert ledger.remaining == 0.0


def test_a_release_entered_by_hand_is_not_one_of_a_client(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 1.0)
    ledger.spend(ENTRY.data, ENTRY.round, 0.5, 1e-7, exist_ok=False)
    assert len(ledger) == 2


def test_a_charge_that_raises_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(0.6, path)
    ledger.charge(ENTRY, b"pilot", 0.25)
    content = path.read_bytes()
    charges = [
        (ENTRY, b"pilot", 0.25),
        (ENTRY, b"placed", 0.8),
        (replace(ENTRY, client="another"), b"placed", 0.75),
        (replace(ENTRY, epsilon=0.25), b"placed", 0.75),
        (replace(ENTRY, round="2"), b"pilot", 0.25),  # beyond the budget
        (replace(ENTRY, round="3", epsilon=0.1), b"pilot", 1.5),  # would be a new entry
    ]
    for entry, query, fraction in charges:
        with pytest.raises(LedgerError):
            ledger.charge(entry, query, fraction)
        assert path.read_bytes() == content
    assert recorded_answers(ledger) == [(1, b"pilot".hex(), 0.25)]
    assert os.listdir(tmp_path) == ["ledger"]


def test_an_entry_has_the_laws_of_its_replies_in_their_order(tmp_path: Path) -> None:
    pilot_law = Law("polya", Fraction(1, 24), shifts=((1, 3),), shares=7)
    placed_law = Law("skellam", Fraction(3001, 512), shifts=((1, 3), (2, 5)), shares=1)
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    ledger.charge(ENTRY, b"pilot", 0.25, law=pilot_law)
    assert [entry.laws for entry in ledger] == [(pilot_law,)]
    ledger.charge(ENTRY, b"placed", 0.75, law=placed_law)
    ledger.charge(ENTRY, b"placed", 0.75, law=pilot_law, may_be_recorded=True)  # of another rank
    by_hand = ledger.spend("val", 2, 0.5)
    for opened in (ledger, PrivacyLedger(path=tmp_path / "ledger")):
        first, second = opened
        assert first.laws == (pilot_law, placed_law)
        assert [query.fraction for query in first.queries] == [0.25, 0.75]
        assert second == by_hand
        assert second.laws == ()


# Copies and pickles


def test_copies_are_the_ledger_itself(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=1.0)
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy({"metrics": [ledger]})["metrics"][0] is ledger


def test_a_ledger_in_memory_does_not_pickle() -> None:
    with pytest.raises(LedgerError, match=r"PrivacyLedger\(path=\.\.\.\)"):
        pickle.dumps(PrivacyLedger(1.0))


def test_a_pickle_holds_the_path_and_reads_what_was_spent_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger(1.0, "ledger", 1e-5)
    data = pickle.dumps(ledger)
    ledger.spend("val", 1, 0.75)
    monkeypatch.chdir("/")
    unpickled = pickle.loads(data)
    assert unpickled.budget == 1.0
    assert unpickled.path == str(tmp_path / "ledger")
    assert unpickled.delta == 1e-5
    assert list(unpickled) == list(ledger)
    with pytest.raises(BudgetExceededError):
        unpickled.spend("val", 2, 0.5)
    unpickled.spend("val", 2, 0.25)
    assert len(ledger) == 2


def test_a_pickle_without_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    data = pickle.dumps(PrivacyLedger(1.0, path))
    path.unlink()
    with pytest.raises(LedgerFileError, match="forgotten"):
        pickle.loads(data)
    assert not path.exists()


def test_what_was_spent_survives_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = PrivacyLedger(1.0, path)
    entries = [first.spend("val", round, 0.25, mechanism="polya") for round in range(3)]
    second = PrivacyLedger(1.0, path)
    assert list(second) == entries
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0\.5, 0\.25 of 1\.0 is left"):
        second.spend("val", 3, 0.5)
    assert PrivacyLedger(0.5, path, change_budget=True).remaining == 0.0
    PrivacyLedger(2.0, path, change_budget=True).spend("val", 3, 0.5)
    assert len(first) == 4


def test_a_ledger_without_a_budget_warns_at_ten_and_at_every_doubling() -> None:
    ledger = PrivacyLedger()
    warned = []
    for round in range(45):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ledger.spend("val", round, 1.0)
        if caught:
            warned.append(round + 1)
            assert "no budget limits them" in str(caught[0].message)
    assert warned == [10, 20, 40]


def test_a_ledger_says_what_further_evaluations_would_cost() -> None:
    ledger = PrivacyLedger(3.0)
    ledger.spend("val", 1, 1.0)
    assert ledger.evaluations_left(CentralDP(0.5)) == 4
    assert ledger.forecast(CentralDP(1.0), 40).epsilon == 41.0
    assert ledger.evaluations_left(Exact()) is None
    assert PrivacyLedger().evaluations_left(CentralDP(0.5)) is None
    assert ledger.remaining == 2.0


def test_a_notebook_shows_every_release_of_a_ledger_and_no_name_breaks_out() -> None:
    ledger = PrivacyLedger(budget=3.0)
    ledger.spend("<script>alert(1)</script>", round=1, epsilon=0.5)
    ledger.spend("validation", round=2, epsilon=1.0)
    shown = ledger._repr_html_()
    assert "<script" not in shown
    assert shown.count("<tr>") == 3
    assert "epsilon 1.5" in shown
