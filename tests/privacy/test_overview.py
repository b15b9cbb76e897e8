"""The text of a ledger has its budgets, every release, the laws of the noise, and what is left."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tests.privacy.ledgers import ENTRY, OpenLedger
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.ledger import PrivacyLedger


def test_the_text_has_every_budget_every_release_and_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(1.0, path).spend("validation", 1, 0.5, 1e-9, "polya")
    ledger = PrivacyLedger(2.0, path, change_budget=True)
    ledger.spend("test", 1, 0.7)
    lines = ledger.report().splitlines()
    budget = "Budget: epsilon 1 at delta 1e-06, composed by addition, recorded 20"
    assert lines[0] == f"Privacy ledger {path}"[:215]
    assert lines[1].startswith(budget)
    assert lines[2].startswith("Changed to: epsilon 2 at delta 1e-06")
    spent = "Spent: epsilon 1.2, delta 1e-09, by 2 releases."
    assert lines[3] == f"{spent} Left: epsilon 0.8, or 1 release like the last."
    assert lines[6].split()[3:] == ["validation", "1", "0.5", "1e-09", "polya", "0.5"]
    assert lines[7].split()[3:] == ["test", "1", "0.7", "0", "1.2"]
    assert lines[8] == ""
    assert lines[-1] == f"SHA-256 of all records: {ledger.digest()}"


def test_columns_are_aligned_whatever_the_names() -> None:
    ledger = PrivacyLedger()
    ledger.spend("validation", 1, 0.5)
    ledger.spend("a\n2  forged", "x" * 100, 0.7)
    lines = ledger.report().splitlines()
    titles, first, second = lines[4:7]
    assert r"a\n2  forged" in second
    assert "x" * 37 + "..." in second
    assert titles.index("epsilon") == first.index("0.5") == second.index("0.7")


def test_every_answered_query_has_a_row_with_its_law() -> None:
    ledger = PrivacyLedger()
    pilot_law = Law("polya", Fraction(1, 24), shifts=((1, 3),), shares=7)
    placed_law = Law("skellam", Fraction(3001, 512), shifts=((1, 3), (2, 5)), shares=1)
    ledger.charge(ENTRY, b"pilot", 0.25, law=pilot_law)
    ledger.charge(ENTRY, b"placed", 0.75, law=placed_law)
    rows = [line.split() for line in ledger.report().splitlines()]
    assert ["1", "0.25", "polya", "0.0416667", "1x3", "7"] in rows
    assert ["1", "0.75", "skellam", "5.86133", "1x3", "2x5", "1"] in rows


def test_a_report_without_laws_has_no_table_of_them() -> None:
    ledger = PrivacyLedger()
    ledger.spend("val", 1, 0.5)
    assert "Noise in the answers" not in ledger.report()


def test_the_digest_of_an_entry_stays_and_that_of_the_ledger_goes_on(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(budget=1.0)
    entry = ledger.spend("val", 1, 0.1)
    digest = ledger.digest(entry)
    assert len(digest) == 64
    assert ledger.digest() == digest
    ledger.spend("val", 2, 0.1)
    assert ledger.digest(entry) == digest
    assert ledger.digest() != digest


def test_the_text_of_an_empty_ledger_says_so() -> None:
    text = PrivacyLedger().report()
    assert "Budget: none" in text
    assert text.endswith("SHA-256 of all records: there are none")
