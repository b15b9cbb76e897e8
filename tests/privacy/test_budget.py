"""A budget is never exceeded, sums of amounts are exact, and a file keeps its budget."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.privacy.ledgers import ENTRY, OpenLedger
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    LedgerConflictError,
)
from torchmetrics_fed.privacy.ledger import PrivacyLedger


def test_beyond_the_budget_both_numbers_are_named_and_nothing_is_spent(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.spend("val", 1, 0.8)
    message = r"this release needs epsilon 0\.5, 0\.2 of 1\.0 is left"
    with pytest.raises(BudgetExceededError, match=message) as error:
        ledger.spend("val", 2, 0.5)
    assert isinstance(error.value, FederatedMetricError)
    assert isinstance(error.value, RuntimeError)
    assert len(ledger) == 1
    assert ledger.remaining == 0.2
    ledger.spend("val", 2, 0.2)
    assert ledger.remaining == 0.0
    ledger.spend("val", 1, 0.8)  # a release that was charged costs nothing more


def test_a_release_beyond_the_budget_is_refused_at_its_first_query(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=0.4)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0\.5, 0\.4 of 0\.4 is left"):
        ledger.charge(ENTRY, b"pilot", 2**-10)
    assert len(ledger) == 0


def test_deltas_have_a_budget_too(open_ledger: OpenLedger) -> None:
    ledger = open_ledger(budget=10.0, delta=1e-6)
    ledger.spend("val", 1, 0.5, 7e-7)
    with pytest.raises(BudgetExceededError, match=r"needs delta 5e-07, 3e-07 of 1e-06 is left"):
        ledger.spend("val", 2, 0.5, 5e-7)
    ledger.spend("val", 2, 0.5, 3e-7)
    assert ledger.spent() == (1.0, 1e-6)


@pytest.mark.parametrize(
    ("epsilon", "times", "budget"),
    [
        (0.1, 100, 10.0),
        (0.01, 300, 3.0),
        (1e-3, 70, 0.07),
    ],
)
def test_sums_are_exact(epsilon: float, times: int, budget: float) -> None:
    ledger = PrivacyLedger(budget)
    for round in range(times):
        ledger.spend("val", round, epsilon)
    assert ledger.spent().epsilon == budget
    assert ledger.remaining == 0.0
    with pytest.raises(BudgetExceededError):
        ledger.spend("val", "more", 1e-300)


def test_without_a_budget_nothing_is_refused(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 1e9, 0.9)
    assert ledger.remaining == math.inf


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 0.0},
        {"budget": math.inf},
        {"delta": 1.0},
        {"composition": "rdp"},
    ],
)
def test_bad_budgets_are_refused(open_ledger: OpenLedger, arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InputError, match=f"`{name}`"):
        open_ledger(**arguments)


# The budget of a file


def test_a_file_keeps_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(3.0, path, 1e-5)
    ledgers = [
        PrivacyLedger(path=path),
        PrivacyLedger(3.0, path),
        PrivacyLedger(path=path, delta=1e-5),
    ]
    for ledger in ledgers:
        assert ledger.budget == 3.0
        assert ledger.delta == 1e-5
        assert ledger.composition == "addition"
    with pytest.raises(BudgetExceededError):
        PrivacyLedger(path=path).spend("val", 1, 3.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": 2.0},
        {"budget": 4.0},
        {"delta": 1e-5},
        {"composition": "pld"},
    ],
)
def test_a_budget_is_changed_on_purpose_only_and_for_every_open_ledger(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "ledger"
    opened_before = PrivacyLedger(3.0, path)
    content = path.read_bytes()
    message = r"recorded, epsilon 3 .*but got .*`change_budget=True`"
    with pytest.raises(LedgerConflictError, match=message):
        PrivacyLedger(path=path, **changes)
    assert path.read_bytes() == content
    changing = PrivacyLedger(path=path, **changes, change_budget=True)
    opened_before.spend("val", 1, 0.5)
    expected = {"budget": 3.0, "delta": 1e-6, "composition": "addition", **changes}
    for ledger in (changing, PrivacyLedger(path=path), opened_before):
        budget = {name: getattr(ledger, name) for name in expected}
        assert budget == expected


def test_a_lower_budget_binds_every_open_ledger(tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    PrivacyLedger(1.0, tmp_path / "ledger", change_budget=True)
    with pytest.raises(BudgetExceededError, match=r"1\.0 of 1\.0 is left"):
        ledger.spend("val", 1, 2.0)
    assert len(ledger) == 0


def test_a_file_without_a_budget_takes_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    unlimited = PrivacyLedger(path=path)
    unlimited.spend("val", 1, 0.75)
    content = path.read_bytes()
    assert PrivacyLedger(path=path).budget is None
    assert path.read_bytes() == content  # opening it writes nothing
    PrivacyLedger(1.0, path)
    with pytest.raises(BudgetExceededError, match=r"0\.25 of 1\.0 is left"):
        unlimited.spend("val", 2, 0.5)


def test_a_pickle_takes_the_budget_that_the_file_has_now(tmp_path: Path) -> None:
    data = pickle.dumps(PrivacyLedger(1.0, tmp_path / "ledger"))
    PrivacyLedger(2.0, tmp_path / "ledger", change_budget=True)
    assert pickle.loads(data).budget == 2.0


def test_threads_that_open_one_file_at_once_record_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: PrivacyLedger(1.0, path), range(32)))
    assert {ledger.budget for ledger in ledgers} == {1.0}
    report = ledgers[0].report()
    assert report.count("Budget:") == 1
    assert "Changed" not in report
