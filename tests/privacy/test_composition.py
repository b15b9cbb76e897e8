"""Composition by privacy loss distributions (PLD): tighter than addition, and never too low."""

from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path

import pytest

from torchmetrics_fed.errors import BudgetExceededError, InputError
from torchmetrics_fed.privacy.budget import Amounts, compose_pld
from torchmetrics_fed.privacy.ledger import PrivacyLedger


def response_delta(epsilon: float, times: int, total: float) -> float:
    """Return the delta of several randomised responses at epsilon ``total``, exactly.

    Kairouz, Oh, Viswanath 2015, theorem 3.3.
    """
    truthful = 1 / (1 + math.exp(-epsilon))
    terms = []
    for lies in range(times + 1):
        truths = times - lies
        probability = math.comb(times, lies) * truthful**truths * (1 - truthful) ** lies
        loss = (truths - lies) * epsilon
        terms.append(probability * max(0.0, -math.expm1(total - loss)))
    return math.fsum(terms)


def worst_case(epsilon: float, times: int, delta: float) -> float:
    """Return the exact cost of several randomised responses at a delta, by bisection."""
    low = 0.0
    high = times * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        if response_delta(epsilon, times, middle) > delta:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.parametrize(
    ("epsilon", "times", "delta"),
    [
        (0.1, 100, 1e-6),
        (0.1, 100, 1e-9),
        (1.0, 5, 1e-6),
        (0.033, 300, 1e-5),
    ],
)
def test_pld_is_the_exact_worst_case_and_never_below(
    epsilon: float, times: int, delta: float
) -> None:
    pytest.importorskip("dp_accounting")
    composed = compose_pld([Amounts(epsilon)] * times, delta)
    exact = worst_case(epsilon, times, delta)
    assert exact - 1e-9 <= composed <= exact + 1e-4 * times


def test_a_hundred_evaluations_by_pld() -> None:
    pytest.importorskip("dp_accounting")
    ledger = PrivacyLedger()
    for round in range(100):
        ledger.spend("val", round, 0.1)
    assert ledger.spent() == (10.0, 0.0)
    assert ledger.spent(delta=1e-6, method="pld").epsilon == pytest.approx(4.78, abs=0.01)
    assert ledger.spent(delta=0.0, method="pld") == (10.0, 0.0)


@pytest.mark.parametrize(
    "amounts",
    [
        [Amounts(1e-6)] * 1000,
        [Amounts(0.3, 1e-8), Amounts(0.7, 1e-8)],
        [Amounts(30.0)] * 40,
        [Amounts(800.0)],
        [],
    ],
    ids=["tiny", "with delta", "large", "too large for a PLD", "none"],
)
def test_pld_never_costs_more_than_addition_if_both_hold(
    amounts: list[Amounts],
) -> None:
    pytest.importorskip("dp_accounting")
    total = sum(price.epsilon for price in amounts)
    assert compose_pld(amounts, 1e-6) <= total + 1e-9


@pytest.mark.parametrize("amounts", [[Amounts(0.1, 1e-6)] * 2, [Amounts(60.0, 1e-3)]])
def test_deltas_above_the_budgets_delta_cost_infinitely_much(
    amounts: list[Amounts],
) -> None:
    pytest.importorskip("dp_accounting")
    assert compose_pld(amounts, 1e-6) == math.inf


def spend_often(ledger: PrivacyLedger) -> None:
    for round in range(100):
        ledger.spend("val", round, 0.1)


def test_a_budget_by_pld_reaches_further_and_holds(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    ledger = PrivacyLedger(2.0, tmp_path / "ledger", 1e-6, composition="pld")
    message = r"this release needs epsilon 0\.1 .* of 2\.0 is left"
    with pytest.raises(BudgetExceededError, match=message):
        spend_often(ledger)
    assert 20 < len(ledger) < 100
    assert ledger.spent().epsilon <= 2.0 < ledger.spent(method="addition").epsilon
    assert worst_case(0.1, len(ledger) + 1, 1e-6) > 2.0
    assert pickle.loads(pickle.dumps(ledger)).composition == "pld"


def test_delta_is_a_question_for_pld_only() -> None:
    with pytest.raises(InputError, match="`delta`"):
        PrivacyLedger().spent(delta=1e-6)


def test_without_the_library_pld_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    ledger = PrivacyLedger()
    ledger.spend("val", 1, 0.1)
    with pytest.raises(ModuleNotFoundError, match="pip install dp-accounting"):
        ledger.spent(method="pld")
    with pytest.raises(ModuleNotFoundError, match="pip install dp-accounting"):
        PrivacyLedger(composition="pld")
