"""Laws of the ledger: nothing is spent twice, nothing is forgotten, nothing goes beyond the budget."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.light import LightProcess
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
)
from torchmetrics_fed.privacy.budget import LedgerEntry, compose_pld
from torchmetrics_fed.privacy.law import Law
from torchmetrics_fed.privacy.ledger import PrivacyLedger

Open = Callable[..., PrivacyLedger]


@pytest.fixture(params=["memory", "file"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    path: dict[str, Any] = {} if request.param == "memory" else {"path": tmp_path / "ledger"}
    return lambda **arguments: PrivacyLedger(**path, **arguments)


def test_the_same_release_is_spent_once(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    first = ledger.spend("val", 1, 0.4, mechanism="polya")
    again = [ledger.spend("val", round, 0.4) for round in (1, "1", np.int64(1))]
    assert again == [first] * 3
    assert list(ledger) == [first]
    assert ledger.spent() == (0.4, 0.0)
    assert (first.data, first.round, first.mechanism) == ("val", "1", "polya")


def test_the_same_release_writes_nothing(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    ledger.spend("val", 1, 0.4)
    before = (tmp_path / "ledger").read_bytes()
    ledger.spend("val", 1, 0.4)
    PrivacyLedger(path=tmp_path / "ledger").spend("val", 1, 0.4)
    assert (tmp_path / "ledger").read_bytes() == before


def test_other_data_or_round_is_another_release(open_ledger: Open) -> None:
    ledger = open_ledger()
    for data, round in (("val", 1), ("val", 2), ("test", 1), ("val", "01")):
        ledger.spend(data, round, 0.1)
    assert len(ledger) == 4


@pytest.mark.parametrize("amounts", [(0.5, 0.0), (0.4, 1e-9), (math.nextafter(0.4, 1), 0.0)])
def test_the_same_release_with_other_amounts_is_refused(
    open_ledger: Open, amounts: tuple[float, float]
) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 0.4)
    with pytest.raises(LedgerConflictError, match=r"epsilon 0\.4, delta 0\.0.*now got epsilon"):
        ledger.spend("val", 1, *amounts)
    assert ledger.spent() == (0.4, 0.0)


def test_a_draw_that_must_be_the_first_can_say_so(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 0.4, exist_ok=False)
    with pytest.raises(LedgerConflictError, match="round of its own"):
        ledger.spend("val", 1, 0.4, exist_ok=False)
    assert len(ledger) == 1


def test_beyond_the_budget_both_numbers_are_named_and_nothing_is_spent(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.spend("val", 1, 0.8)
    with pytest.raises(
        BudgetExceededError, match=r"this release needs epsilon 0\.5, 0\.2 of 1\.0 is left"
    ) as error:
        ledger.spend("val", 2, 0.5)
    assert isinstance(error.value, FederatedMetricError)
    assert isinstance(error.value, RuntimeError)
    assert (len(ledger), ledger.remaining) == (1, 0.2)
    ledger.spend("val", 2, 0.2)
    assert ledger.remaining == 0.0
    ledger.spend("val", 1, 0.8)  # what is entered stays free


def test_deltas_have_a_budget_too(open_ledger: Open) -> None:
    ledger = open_ledger(budget=10.0, delta=1e-6)
    ledger.spend("val", 1, 0.5, 7e-7)
    with pytest.raises(BudgetExceededError, match=r"needs delta 5e-07, 3e-07 of 1e-06 is left"):
        ledger.spend("val", 2, 0.5, 5e-7)
    ledger.spend("val", 2, 0.5, 3e-7)
    assert ledger.spent() == (1.0, 1e-6)


@pytest.mark.parametrize(
    ("epsilon", "times", "budget"), [(0.1, 100, 10.0), (0.01, 300, 3.0), (1e-3, 70, 0.07)]
)
def test_sums_are_exact(epsilon: float, times: int, budget: float) -> None:
    ledger = PrivacyLedger(budget)
    for round in range(times):
        ledger.spend("val", round, epsilon)
    assert ledger.spent().epsilon == budget
    assert ledger.remaining == 0.0
    with pytest.raises(BudgetExceededError):
        ledger.spend("val", "more", 1e-300)


def test_without_a_budget_nothing_is_refused(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.spend("val", 1, 1e9, 0.9)
    assert ledger.remaining == math.inf


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"epsilon": True},
        {"epsilon": None},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"delta": math.nan},
        {"data": ""},
        {"data": b"val"},
        {"round": ""},
        {"round": 1.0},
        {"round": True},
        {"round": None},
        {"mechanism": None},
    ],
)
def test_bad_arguments_are_named_and_nothing_is_spent(
    open_ledger: Open, arguments: dict[str, Any]
) -> None:
    ledger = open_ledger(budget=1.0)
    with pytest.raises(InputError, match=f"`{next(iter(arguments))}`"):
        ledger.spend(**{"data": "val", "round": 1, "epsilon": 0.1, **arguments})
    assert len(ledger) == 0


@pytest.mark.parametrize(
    "arguments", [{"budget": 0.0}, {"budget": math.inf}, {"delta": 1.0}, {"composition": "rdp"}]
)
def test_bad_ledgers_are_refused(open_ledger: Open, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`{next(iter(arguments))}`"):
        open_ledger(**arguments)


def test_delta_is_a_question_for_pld_only() -> None:
    with pytest.raises(InputError, match="`delta`"):
        PrivacyLedger().spent(delta=1e-6)


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


@pytest.mark.parametrize("name", ["data", "round", "mechanism"])
def test_a_name_that_is_no_text_is_refused(open_ledger: Open, name: str) -> None:
    arguments: dict[str, Any] = {"data": "val", "round": 1, "epsilon": 0.1, name: "\ud800"}
    with pytest.raises(InputError, match=f"`{name}`"):
        open_ledger().spend(**arguments)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(5e-324, 5e-324), (1.7976931348623157e308, 0.0), (3.0, -0.0), (1 / 3, math.nextafter(1, 0))],
)
def test_amounts_survive_the_file_to_the_last_bit(
    tmp_path: Path, epsilon: float, delta: float
) -> None:
    PrivacyLedger(path=tmp_path / "ledger").spend("val", 1, epsilon, delta)
    (entry,) = PrivacyLedger(path=tmp_path / "ledger")
    assert entry.amounts == (epsilon, delta)


@pytest.mark.parametrize("epsilon", [Fraction(1, 10**400), 10**400], ids=["tiny", "huge"])
def test_an_amount_that_no_float_holds_is_refused(open_ledger: Open, epsilon: Any) -> None:
    ledger = open_ledger(budget=1.0)
    with pytest.raises(InputError, match="`epsilon`"):
        ledger.spend("val", 1, epsilon)
    assert len(ledger) == 0


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


# Copies and files


def test_copies_are_the_ledger_itself(open_ledger: Open) -> None:
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
    other = pickle.loads(data)
    assert (other.budget, other.path, other.delta) == (1.0, str(tmp_path / "ledger"), 1e-5)
    assert list(other) == list(ledger)
    with pytest.raises(BudgetExceededError):
        other.spend("val", 2, 0.5)
    other.spend("val", 2, 0.25)
    assert len(ledger) == 2
    (tmp_path / "ledger").unlink()
    with pytest.raises(LedgerFileError, match="forgotten"):
        pickle.loads(data)
    assert not (tmp_path / "ledger").exists()


def test_what_was_spent_survives_a_resume(tmp_path: Path) -> None:
    first = PrivacyLedger(1.0, tmp_path / "ledger")
    entries = [first.spend("val", round, 0.25, mechanism="polya") for round in range(3)]
    second = PrivacyLedger(1.0, tmp_path / "ledger")
    assert list(second) == entries
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0\.5, 0\.25 of 1\.0 is left"):
        second.spend("val", 3, 0.5)
    assert PrivacyLedger(0.5, tmp_path / "ledger", change_budget=True).remaining == 0.0
    assert (
        PrivacyLedger(2.0, tmp_path / "ledger", change_budget=True).spend("val", 3, 0.5).epsilon
        == 0.5
    )
    assert len(first) == 4


# Files that are not what was written


def foreign(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as tables:
        tables.executescript(script)
    return path


FOREIGN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "newline": lambda path: path.write_bytes(b"\n"),
    "text": lambda path: path.write_bytes(b"epsilon\n1.0\n"),
    "zeros": lambda path: path.write_bytes(b"\0" * 8192),
    "journal of an older version": lambda path: path.write_bytes(
        b'{"format":"torchmetrics-fed ledger","version":1}\n'
    ),
    "SQLite without tables": lambda path: foreign(path, "PRAGMA user_version=1"),
    "SQLite of another program": lambda path: foreign(
        path, "CREATE TABLE entries (number INTEGER PRIMARY KEY)"
    ),
    "another program's about": lambda path: foreign(
        path, "CREATE TABLE about (format, version); INSERT INTO about VALUES ('photos', 1)"
    ),
    "a later version": lambda path: foreign(
        path,
        "CREATE TABLE about (format, version); INSERT INTO about VALUES ('torchmetrics-fed store', 99)",
    ),
    "an earlier version": lambda path: (
        PrivacyLedger(path=path),
        foreign(path, "UPDATE about SET version = 1"),
    ),
    "a store without records": lambda path: (
        PrivacyLedger(path=path),
        foreign(path, "DROP TABLE records"),
    ),
    "a store without an end": lambda path: (
        PrivacyLedger(path=path),
        foreign(path, "DROP TABLE head"),
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger"
    FOREIGN[kind](path)
    content = path.read_bytes()
    expected = "Cannot use the ledger file"
    if "version" in kind and "journal" not in kind:
        expected = r"its format is version \d+, and this package reads version 2"
    with pytest.raises(LedgerFileError, match=expected):
        PrivacyLedger(1.0, path).charge(
            LedgerEntry("val", "1", 0.1, spec="a", client="b"), b"query", 1.0
        )
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", ["missing/ledger", ".", "/dev/null", "dangling"])
def test_a_path_that_cannot_keep_anything_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LedgerFileError, match="Cannot use the ledger file"):
        PrivacyLedger(path=tmp_path / path).spend("val", 1, 0.1)
    assert not (tmp_path / "nowhere").exists()


NO_PERMISSION = """
import os
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import LedgerFileError
path, mode = sys.argv[1], int(sys.argv[2], 8)
opened = PrivacyLedger(path=path)
opened.spend("val", 1, 0.1)
os.chmod(path, mode)
if os.getuid() == 0:
    os.chown(path, 65534, 65534)
    os.setuid(65534)  # root may read everything
for spend in (lambda: PrivacyLedger(path=path).spend("val", 2, 0.1), lambda: opened.spend("val", 2, 0.1)):
    try:
        spend()
    except LedgerFileError:
        print("refused")
"""


@pytest.mark.parametrize("mode", ["0", "200", "400"])
def test_a_file_without_permission_is_refused(mode: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # not below tmp_path, which only its owner may enter
        os.chmod(folder, 0o777)
        assert LightProcess(NO_PERMISSION, f"{folder}/ledger", mode).result() == ["refused"] * 2
        os.chmod(f"{folder}/ledger", 0o600)
        assert len(PrivacyLedger(path=f"{folder}/ledger")) == 1


def emptied(path: Path, old: Path) -> None:
    os.truncate(path, 0)


def shortened(path: Path, old: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced_by_a_new_one(path: Path, old: Path) -> None:
    PrivacyLedger(path=old.with_name("other"))
    old.with_name("other").replace(path)


def replaced_by_an_older_copy(path: Path, old: Path) -> None:
    old.replace(path)


def overwritten_by_an_older_copy(path: Path, old: Path) -> None:
    path.write_bytes(old.read_bytes())


def became_a_directory(path: Path, old: Path) -> None:
    path.unlink()
    path.mkdir()


def deleted(path: Path, old: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("spent_before", [0, 1])
@pytest.mark.parametrize(
    "forget",
    [
        emptied,
        shortened,
        replaced_by_a_new_one,
        replaced_by_an_older_copy,
        overwritten_by_an_older_copy,
        became_a_directory,
        deleted,
    ],
)
def test_a_file_that_forgets_is_refused_while_it_is_open(
    tmp_path: Path, forget: Callable[[Path, Path], None], spent_before: int, read: bool
) -> None:
    """A whole older copy that is put in place while nobody has it open cannot be noticed, and is not tested for."""
    path, old = tmp_path / "ledger", tmp_path / "old"
    ledger = PrivacyLedger(1.0, path)
    for round in range(spent_before):
        ledger.spend("val", f"before {round}", 0.1)
    shutil.copy(path, old)
    ledger.spend("val", 1, 0.8)
    if read:
        len(ledger)
    forget(path, old)
    entry = LedgerEntry("val", "2", 0.1, spec="a", client="b")
    for ask in (
        ledger.spent,
        lambda: len(ledger),
        lambda: ledger.spend("val", 2, 0.1),
        lambda: ledger.charge(entry, b"query", 1.0),
        lambda: ledger.spend("val", 2, 0.1),  # not only the first time
    ):
        with pytest.raises(LedgerFileError, match=r"Put|Give"):
            ask()


def test_an_older_copy_that_forgets_only_an_answer_is_refused_while_it_is_open(
    tmp_path: Path,
) -> None:
    path, old = tmp_path / "ledger", tmp_path / "old"
    ledger = PrivacyLedger(path=path)
    ledger.charge(ENTRY, b"pilot", 0.25)
    shutil.copy(path, old)
    ledger.charge(ENTRY, b"placed", 0.75)
    old.replace(path)
    with pytest.raises(LedgerError):  # the file forgot it; the noise must not be drawn again
        ledger.charge(ENTRY, b"placed", 0.75)


def test_a_deleted_file_whose_journal_is_left_is_not_a_new_ledger(tmp_path: Path) -> None:
    """A crash, and then someone deletes the file but not what is left of the transaction."""
    path, journal = tmp_path / "ledger", tmp_path / "ledger-journal"
    PrivacyLedger(1.0, path).spend("val", 1, 0.8)
    with closing(sqlite3.connect(path, isolation_level=None)) as tables:
        tables.execute(
            "PRAGMA cache_size=1"
        )  # so that changed pages, and their journal, go to the disk early
        tables.execute("BEGIN IMMEDIATE")
        tables.executemany(
            "INSERT INTO notes VALUES ('', ?, ?, 0)", [(str(i), b"x" * 3000) for i in range(50)]
        )
        left = journal.read_bytes()
        tables.execute("ROLLBACK")
    assert any(left[:28])
    path.unlink()
    journal.write_bytes(left)
    with pytest.raises(LedgerFileError):
        PrivacyLedger(1.0, path)


# Charges: one entry for a release, and what of it was answered

ENTRY = LedgerEntry("val", "1", 0.5, 1e-7, "polya", spec="5bec", client="5e55")


def answers(ledger: PrivacyLedger) -> list[tuple[int, str, float]]:
    """The number of the entry, query and fraction of every answer that the file holds."""
    assert ledger.path is not None
    with closing(sqlite3.connect(ledger.path)) as tables:
        records = [
            json.loads(body)
            for (body,) in tables.execute("SELECT body FROM records ORDER BY number")
        ]
    keys = [
        [record["entry"][name] for name in ("data", "round", "spec")]
        for record in records
        if "entry" in record
    ]
    given = [record for record in records if "answer" in record]
    return sorted((1 + keys.index(one["answer"]), one["query"], one["fraction"]) for one in given)


def test_a_release_of_two_queries_is_charged_once_and_whole_before_the_first(
    open_ledger: Open,
) -> None:
    ledger = open_ledger(budget=0.5)
    ledger.charge(ENTRY, b"pilot", 5 / 64)
    assert ledger.spent() == (0.5, 1e-7)
    ledger.charge(ENTRY, b"placed", 59 / 64)
    assert list(ledger) == [ENTRY]
    assert ledger.remaining == 0.0


def test_a_release_beyond_the_budget_is_refused_at_its_first_query(open_ledger: Open) -> None:
    ledger = open_ledger(budget=0.4)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 0\.5, 0\.4 of 0\.4 is left"):
        ledger.charge(ENTRY, b"pilot", 2**-10)
    assert len(ledger) == 0


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


def test_ranks_of_a_session_charge_the_same_query(open_ledger: Open) -> None:
    ledger = open_ledger(budget=0.5)
    for query, fraction in ((b"pilot", 0.25), (b"placed", 0.75)):
        for _ in range(3):
            ledger.charge(ENTRY, query, fraction, again=True)
    assert len(ledger) == 1
    with pytest.raises(LedgerConflictError, match="spend"):
        ledger.charge(ENTRY, b"third", 2**-10, again=True)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("query", [b"pilot", b"placed"])
def test_only_the_session_that_began_a_round_may_continue_it(
    open_ledger: Open, query: bytes, again: bool
) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 0.25)
    for session in ("another", ""):
        with pytest.raises(LedgerConflictError, match="another client"):
            ledger.charge(replace(ENTRY, client=session), query, 0.25, again=again)
    assert list(ledger) == [ENTRY]
    ledger.charge(ENTRY, b"placed", 0.75)


@pytest.mark.parametrize(
    "amounts", [{"epsilon": 0.25}, {"delta": 0.0}, {"epsilon": math.nextafter(0.5, 1)}]
)
def test_a_round_has_one_price(open_ledger: Open, amounts: dict[str, Any]) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 0.25)
    with pytest.raises(LedgerConflictError, match="another price"):
        ledger.charge(replace(ENTRY, **amounts), b"placed", 0.75)
    assert list(ledger) == [ENTRY]


@pytest.mark.parametrize(
    ("fractions", "beyond"),
    [
        ([], math.nextafter(1, 2)),
        ([1.0], 2**-10),
        ([0.25, 0.75], 2**-10),
        ([0.5], math.nextafter(0.5, 1)),
        ([1 / 64] * 63, math.nextafter(1 / 64, 1)),
    ],
)
def test_fractions_never_exceed_1(open_ledger: Open, fractions: list[float], beyond: float) -> None:
    ledger = open_ledger()
    for number, fraction in enumerate(fractions):
        ledger.charge(ENTRY, bytes([number]), fraction)
    with pytest.raises(LedgerConflictError, match="spend its epsilon once"):
        ledger.charge(ENTRY, b"beyond", beyond)
    assert len(ledger) == bool(fractions)


@pytest.mark.parametrize("fraction", [math.nan, math.inf, -math.inf, -0.25, 0.0])
def test_a_fraction_that_is_none_is_refused_and_nothing_is_charged(
    open_ledger: Open, fraction: float
) -> None:
    ledger = open_ledger()
    with pytest.raises(FederatedMetricError):
        ledger.charge(ENTRY, b"pilot", fraction)
    assert len(ledger) == 0


@pytest.mark.parametrize("other", [{"data": "test"}, {"round": "2"}, {"spec": "other"}])
def test_other_data_round_or_spec_is_another_release(
    open_ledger: Open, other: dict[str, Any]
) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.charge(ENTRY, b"pilot", 1.0)
    ledger.charge(replace(ENTRY, client="another", **other), b"pilot", 1.0)
    assert len(ledger) == 2
    assert ledger.remaining == 0.0


def test_a_release_entered_by_hand_is_not_one_of_a_session(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.charge(ENTRY, b"pilot", 1.0)
    ledger.spend(ENTRY.data, ENTRY.round, 0.5, 1e-7, exist_ok=False)
    assert len(ledger) == 2


def test_a_charge_that_raises_writes_nothing(tmp_path: Path) -> None:
    ledger = PrivacyLedger(0.6, tmp_path / "ledger")
    ledger.charge(ENTRY, b"pilot", 0.25)
    before = (tmp_path / "ledger").read_bytes()
    for entry, query, fraction in (
        (ENTRY, b"pilot", 0.25),
        (ENTRY, b"placed", 0.8),
        (replace(ENTRY, client="another"), b"placed", 0.75),
        (replace(ENTRY, epsilon=0.25), b"placed", 0.75),
        (replace(ENTRY, round="2"), b"pilot", 0.25),  # beyond the budget
        (replace(ENTRY, round="3", epsilon=0.1), b"pilot", 1.5),  # would be a new entry
    ):
        with pytest.raises(LedgerError):
            ledger.charge(entry, query, fraction)
        assert (tmp_path / "ledger").read_bytes() == before
    assert answers(ledger) == [(1, b"pilot".hex(), 0.25)]
    assert os.listdir(tmp_path) == ["ledger"]


# Laws of the noise

PILOT_LAW = Law("polya", Fraction(1, 24), shifts=((1, 3),), shares=7)
PLACED_LAW = Law("skellam", Fraction(3001, 512), shifts=((1, 3), (2, 5)), shares=1)


def test_an_entry_has_the_laws_of_its_answers_in_their_order(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    ledger.charge(ENTRY, b"pilot", 0.25, law=PILOT_LAW)
    assert [entry.laws for entry in ledger] == [(PILOT_LAW,)]
    ledger.charge(ENTRY, b"placed", 0.75, law=PLACED_LAW)
    ledger.charge(ENTRY, b"placed", 0.75, law=PILOT_LAW, again=True)  # of another rank
    by_hand = ledger.spend("val", 2, 0.5)
    for opened in (ledger, PrivacyLedger(path=tmp_path / "ledger")):
        entry, other = opened
        assert entry.laws == (PILOT_LAW, PLACED_LAW)
        assert [query.fraction for query in entry.queries] == [0.25, 0.75]
        assert other == by_hand
        assert other.laws == ()
    rows = [line.split() for line in ledger.report().splitlines()]
    assert ["1", "0.25", "polya", "0.0416667", "1x3", "7"] in rows
    assert ["1", "0.75", "skellam", "5.86133", "1x3", "2x5", "1"] in rows


def test_a_report_without_laws_has_no_table_of_them() -> None:
    ledger = PrivacyLedger()
    ledger.spend("val", 1, 0.5)
    assert "Noise in the answers" not in ledger.report()


# Reservations: of the budget, while they are open


def planned(round: int, epsilon: float = 1.0) -> LedgerEntry:
    return LedgerEntry("val", str(round), epsilon, spec="5bec", client="5e55")


def test_a_reservation_is_of_the_budget_and_costs_nothing(open_ledger: Open) -> None:
    ledger = open_ledger(budget=3.0)
    for round in range(3):
        ledger.reserve(planned(round), seconds=600)
    with pytest.raises(BudgetExceededError, match=r"needs epsilon 1\.0, 0\.0 of 3\.0 is left"):
        ledger.reserve(planned(3), seconds=600)
    with pytest.raises(BudgetExceededError):
        ledger.charge(planned(3), b"pilot", 1.0)
    with pytest.raises(BudgetExceededError):
        ledger.spend("test", 1, 0.1)
    assert (len(ledger), ledger.remaining, ledger.spent().epsilon) == (0, 0.0, 0.0)
    assert [reservation.entry for reservation in ledger.reservations] == [*map(planned, range(3))]
    assert ledger.report().count("Reserved: epsilon 1, for data val, round ") == 3


def test_a_reservation_that_expires_leaves_its_part_to_others(open_ledger: Open) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.reserve(planned(0), seconds=0.5)
    for round in (1, 2):
        ledger.reserve(planned(round), seconds=600)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(planned(3), seconds=600)
    (ends, *_) = [reservation.until for reservation in ledger.reservations]
    time.sleep(max(0.0, ends - time.time()) + 0.01)
    ledger.reserve(planned(3), seconds=600)
    assert [int(reservation.entry.round) for reservation in ledger.reservations] == [1, 2, 3]
    with pytest.raises(BudgetExceededError):  # it came too late, and is as any other release
        ledger.charge(planned(0), b"pilot", 1.0)
    assert len(ledger) == 0


def test_a_reserved_release_is_charged_when_the_budget_is_otherwise_full(
    open_ledger: Open,
) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.reserve(planned(0), seconds=600)
    ledger.spend("val", "by hand", 1.0)
    ledger.reserve(planned(1), seconds=600)
    ledger.charge(planned(0), b"pilot", 0.25)
    ledger.charge(planned(0), b"placed", 0.75)
    assert [int(reservation.entry.round) for reservation in ledger.reservations] == [1]
    assert (ledger.spent().epsilon, ledger.remaining) == (2.0, 0.0)
    ledger.cancel(planned(0))  # what was drawn is not given back
    assert ledger.spent().epsilon == 2.0
    ledger.reserve(planned(0), seconds=600)  # this session has paid for it
    assert len(ledger.reservations) == 1


def test_a_reservation_that_is_given_back_is_free_again(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.reserve(planned(0), seconds=600)
    ledger.cancel(planned(0))
    ledger.cancel(planned(0))  # there is nothing left to give back
    ledger.cancel(planned(7))
    assert (ledger.reservations, ledger.remaining) == ((), 1.0)
    ledger.charge(planned(1), b"pilot", 1.0)
    with pytest.raises(BudgetExceededError):
        ledger.charge(planned(0), b"pilot", 1.0)


def test_a_release_is_reserved_once_however_often_it_is_asked_for(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    for seconds in (600, 60):
        ledger.reserve(planned(0), seconds=seconds)
    (reservation,) = ledger.reservations
    assert 0 < reservation.until - time.time() <= 60
    ledger.cancel(planned(0))
    assert ledger.reservations == ()


def test_nobody_reserves_a_round_that_another_session_has_charged(open_ledger: Open) -> None:
    ledger = open_ledger(budget=3.0)
    ledger.charge(planned(0), b"pilot", 1.0)
    for session in ("another", ""):
        with pytest.raises(LedgerConflictError, match="another client"):
            ledger.reserve(replace(planned(0), client=session), seconds=600)
    with pytest.raises(LedgerConflictError, match="another price"):
        ledger.reserve(planned(0, 0.5), seconds=600)
    assert ledger.reservations == ()


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e18, "60", None])
def test_seconds_that_are_none_are_refused(open_ledger: Open, seconds: Any) -> None:
    ledger = open_ledger(budget=3.0)
    with pytest.raises(InputError, match="`seconds`"):
        ledger.reserve(planned(0), seconds=seconds)
    assert ledger.reservations == ()


def test_no_clock_makes_the_ledger_charge_more_than_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reservation expires, another takes its place, and the clock is put back: both are open."""
    ledger = PrivacyLedger(budget=1.0)
    clock = [1000.0]
    monkeypatch.setattr("torchmetrics_fed.privacy.ledger.time.time", lambda: clock[0])
    ledger.reserve(planned(0), seconds=10)
    clock[0] = 1010.0
    ledger.reserve(planned(1), seconds=1000)
    clock[0] = 1005.0
    assert len(ledger.reservations) == 2
    for round in (0, 1):
        with pytest.raises(BudgetExceededError):
            ledger.charge(planned(round), b"pilot", 1.0)
    clock[0] = 1010.0
    ledger.charge(planned(1), b"pilot", 1.0)
    assert ledger.spent().epsilon == 1.0


def test_a_ledger_in_memory_that_has_a_reservation_is_not_copied() -> None:
    ledger = PrivacyLedger()
    ledger.reserve(planned(0), seconds=600)
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
    words = race(tmp_path / "ledger", "", RESERVE)
    assert sorted(words) == ["refused"] * 10 + ["reserved"] * 6
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert (len(ledger.reservations), ledger.remaining, len(ledger)) == (6, 0.0, 0)
    with pytest.raises(BudgetExceededError):
        ledger.spend("val", "another", 0.1)
    for reservation in ledger.reservations:
        ledger.charge(reservation.entry, b"query", 1.0)
    assert ledger.spent().epsilon == 3.0


# Threads and processes


@pytest.mark.parametrize("objects", [1, 4])
def test_threads_never_overspend_nor_double(open_ledger: Open, objects: int) -> None:
    ledgers = [open_ledger(budget=10.0)]
    if ledgers[0].path is not None:
        ledgers += [open_ledger(budget=10.0) for _ in range(objects - 1)]

    def hammer(thread: int) -> int:
        done = 0
        for round in range(5):
            try:
                ledgers[thread % len(ledgers)].spend("own", f"{thread}.{round}", 0.1)
                done += 1
            except BudgetExceededError:
                pass
            ledgers[thread % len(ledgers)].spend("shared", round % 2, 0.1)
        return done

    ledgers[0].spend("shared", 0, 0.1)
    ledgers[0].spend("shared", 1, 0.1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads do meet inside a spend
    try:
        with ThreadPoolExecutor(32) as pool:
            done = sum(pool.map(hammer, range(32)))
    finally:
        sys.setswitchinterval(interval)
    keys = [entry.key for entry in ledgers[0]]
    assert done == 98
    assert len(keys) == len(set(keys)) == 100
    assert ledgers[0].spent().epsilon == 10.0


RANK = """
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import BudgetExceededError
path, rank, kind = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
ledger = PrivacyLedger(2.0, path)
for round in range(6):
    try:
        ledger.spend("val", round if kind == "same" else f"{rank}.{round}", 0.1, mechanism="m" * int(rank))
        print("spent")
    except BudgetExceededError:
        print("refused")
assert "torch" not in sys.modules
"""


def race(path: Path, kind: str, program: str = RANK) -> list[str]:
    ranks = [LightProcess(program, path, rank, kind) for rank in range(8)]
    for process in ranks:
        process.wait_for("ready")
    with ThreadPoolExecutor(8) as pool:
        return [
            word
            for words in pool.map(lambda process: process.result("go\n"), ranks)
            for word in words
        ]


def test_ranks_that_share_a_file_write_one_entry(tmp_path: Path) -> None:
    assert race(tmp_path / "ledger", "same") == ["spent"] * 48
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert [entry.round for entry in ledger] == [str(round) for round in range(6)]


def test_processes_never_overspend(tmp_path: Path) -> None:
    words = race(tmp_path / "ledger", "different")
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert sorted(words) == ["refused"] * 28 + ["spent"] * 20
    assert (ledger.spent().epsilon, len(ledger)) == (2.0, 20)


CHARGE = """
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.errors import LedgerConflictError
path, rank, kind = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
ledger = PrivacyLedger(2.0, path)
for round in range(4):
    entry = LedgerEntry("val", round, 0.5, spec="spec", client=rank if kind == "rebuilt" else "client")
    try:
        ledger.charge(entry, b"query", 1.0, again=kind == "ranks")
        print("drawn")
    except LedgerConflictError:
        print("refused")
"""


@pytest.mark.parametrize(("kind", "drawn"), [("ranks", 32), ("client", 4), ("rebuilt", 4)])
def test_processes_that_are_asked_the_same_draw_once(tmp_path: Path, kind: str, drawn: int) -> None:
    """Ranks of one session all draw, for one sum. Of processes that do not know of each other, one does."""
    words = race(tmp_path / "ledger", kind, CHARGE)
    assert words.count("drawn") == drawn
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert (len(ledger), len(answers(ledger))) == (4, 4)


FORK = """
import os
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import LedgerError
memory, file = PrivacyLedger(), PrivacyLedger(path=sys.argv[1])
memory.spend("val", 0, 0.1)
child = os.fork()
if child == 0:
    try:
        memory.spend("val", 1, 0.1)
    except LedgerError as error:
        print("refused" if "path=" in str(error) else error, len(memory), flush=True)
    file.spend("val", 1, 0.1)
    os._exit(0)
os.waitpid(child, 0)
print(len(memory), len(file))
"""


def test_a_fork_of_a_ledger_in_memory_does_not_spend(tmp_path: Path) -> None:
    assert LightProcess(FORK, tmp_path / "ledger").result() == ["refused", "1", "1", "1"]


FORK_IN_A_SPEND = """
import os, signal, threading
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.privacy.store import Store
ledger = PrivacyLedger(path=sys.argv[1])
begun, end = threading.Event(), threading.Event()
def write():
    with ledger._store.transaction():
        begun.set()
        end.wait()
thread = threading.Thread(target=write)
thread.start()
begun.wait()
threading.Timer(0.5, end.set).start()
child = os.fork()
if child == 0:
    signal.alarm(5)
    ledger.spend("val", 1, 0.1)
    os._exit(0)
thread.join()
print(os.waitpid(child, 0)[1], len(ledger))
"""


def test_a_process_that_is_forked_while_a_thread_spends_can_spend(tmp_path: Path) -> None:
    assert LightProcess(FORK_IN_A_SPEND, tmp_path / "ledger").result() == ["0", "1"]


HANG = """
from torchmetrics_fed.privacy.store import Store
with Store(sys.argv[1]).transaction():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_hangs_with_the_lock_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    hanging = LightProcess(HANG, tmp_path / "ledger")
    hanging.wait_for("locked")
    monkeypatch.setattr("torchmetrics_fed.privacy.store._LOCK_SECONDS", 0.2)
    with pytest.raises(LedgerFileError, match=r"within 0\.2 s"):
        ledger.spend("val", 1, 0.1)
    hanging.result()
    assert len(ledger) == 0
    ledger.spend("val", 1, 0.1)


def test_a_file_replaced_while_a_spend_waits_for_its_lock_is_refused(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    other = PrivacyLedger(path=tmp_path / "other")
    hanging = LightProcess(HANG, tmp_path / "ledger")
    hanging.wait_for("locked")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ledger.spend, "val", 1, 0.1)
        time.sleep(0.1)
        (tmp_path / "other").replace(tmp_path / "ledger")
        hanging.result()
        with pytest.raises(LedgerFileError):
            waiting.result()
    with pytest.raises(LedgerFileError):
        len(other)


# Composition by privacy loss distributions


def worst_case(epsilon: float, times: int, delta: float) -> float:
    """Kairouz, Oh, Viswanath 2015, theorem 3.3 by bisection: the exact cost of ``times`` randomised responses."""
    right = 1 / (1 + math.exp(-epsilon))

    def excess(total: float) -> float:
        losses = [(times - 2 * wrong) * epsilon for wrong in range(times + 1)]
        odds = [
            math.comb(times, k) * right ** (times - k) * (1 - right) ** k for k in range(times + 1)
        ]
        return math.fsum(
            p * max(0.0, -math.expm1(total - loss)) for p, loss in zip(odds, losses, strict=True)
        )

    low, high = 0.0, times * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("epsilon", "times", "delta"),
    [(0.1, 100, 1e-6), (0.1, 100, 1e-9), (1.0, 5, 1e-6), (0.033, 300, 1e-5)],
)
def test_pld_is_the_exact_worst_case_and_never_below(
    epsilon: float, times: int, delta: float
) -> None:
    pytest.importorskip("dp_accounting")
    composed = compose_pld([(epsilon, 0.0)] * times, delta)
    assert (
        worst_case(epsilon, times, delta) - 1e-9
        <= composed
        <= worst_case(epsilon, times, delta) + 1e-4 * times
    )


def test_a_hundred_evaluations_by_pld() -> None:
    pytest.importorskip("dp_accounting")
    ledger = PrivacyLedger()
    for round in range(100):
        ledger.spend("val", round, 0.1)
    assert ledger.spent() == (10.0, 0.0)
    assert ledger.spent(delta=1e-6, method="pld").epsilon == pytest.approx(4.78, abs=0.01)
    assert ledger.spent(delta=0.0, method="pld") == (10.0, 0.0)


def test_pld_never_costs_more_than_addition_where_both_hold() -> None:
    pytest.importorskip("dp_accounting")
    for amounts in (
        [(1e-6, 0.0)] * 1000,
        [(0.3, 1e-8), (0.7, 1e-8)],
        [(30.0, 0.0)] * 40,
        [(800.0, 0.0)],
        [],
    ):
        total = sum(epsilon for epsilon, _ in amounts)
        assert compose_pld(amounts, 1e-6) <= total + 1e-9
    assert compose_pld([(0.1, 1e-6), (0.1, 1e-6)], 1e-6) == math.inf
    assert compose_pld([(60.0, 1e-3)], 1e-6) == math.inf


def test_a_budget_by_pld_reaches_further_and_holds(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    ledger = PrivacyLedger(2.0, tmp_path / "ledger", 1e-6, composition="pld")

    def spend_all() -> None:
        for round in range(100):
            ledger.spend("val", round, 0.1)

    with pytest.raises(
        BudgetExceededError, match=r"this release needs epsilon 0\.1 .* of 2\.0 is left"
    ):
        spend_all()
    assert 20 < len(ledger) < 100
    assert ledger.spent().epsilon <= 2.0 < ledger.spent(method="addition").epsilon
    assert worst_case(0.1, len(ledger) + 1, 1e-6) > 2.0
    assert pickle.loads(pickle.dumps(ledger)).composition == "pld"


def test_without_the_library_pld_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    ledger = PrivacyLedger()
    ledger.spend("val", 1, 0.1)
    for ask in (lambda: ledger.spent(method="pld"), lambda: PrivacyLedger(composition="pld")):
        with pytest.raises(ModuleNotFoundError, match="pip install dp-accounting"):
            ask()


# The budget of a file


def test_a_file_keeps_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(3.0, path, 1e-5)
    for ledger in (
        PrivacyLedger(path=path),
        PrivacyLedger(3.0, path),
        PrivacyLedger(path=path, delta=1e-5),
    ):
        assert (ledger.budget, ledger.delta, ledger.composition) == (3.0, 1e-5, "addition")
    with pytest.raises(BudgetExceededError):
        PrivacyLedger(path=path).spend("val", 1, 3.5)


@pytest.mark.parametrize(
    "other", [{"budget": 2.0}, {"budget": 4.0}, {"delta": 1e-5}, {"composition": "pld"}]
)
def test_another_budget_than_the_files_is_refused_unless_asked_for(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    path = tmp_path / "ledger"
    before = PrivacyLedger(3.0, path)
    content = path.read_bytes()
    with pytest.raises(
        LedgerConflictError, match=r"recorded, epsilon 3 .*but got .*`change_budget=True`"
    ):
        PrivacyLedger(path=path, **other)
    assert path.read_bytes() == content
    after = PrivacyLedger(path=path, **other, change_budget=True)
    expected = {"budget": 3.0, "delta": 1e-6, "composition": "addition", **other}
    for ledger in (after, PrivacyLedger(path=path)):
        assert {name: getattr(ledger, name) for name in expected} == expected
    before.spend("val", 1, 0.5)  # an object that was open is bound by it, too
    assert {name: getattr(before, name) for name in expected} == expected


def test_a_lower_budget_binds_those_who_had_the_file_open(tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    PrivacyLedger(1.0, tmp_path / "ledger", change_budget=True)
    with pytest.raises(BudgetExceededError, match=r"1\.0 of 1\.0 is left"):
        ledger.spend("val", 1, 2.0)
    assert len(ledger) == 0


def test_a_file_without_a_budget_takes_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    free = PrivacyLedger(path=path)
    free.spend("val", 1, 0.75)
    content = path.read_bytes()
    assert PrivacyLedger(path=path).budget is None
    assert path.read_bytes() == content  # to look at it writes nothing
    PrivacyLedger(1.0, path)
    with pytest.raises(BudgetExceededError, match=r"0\.25 of 1\.0 is left"):
        free.spend("val", 2, 0.5)


def test_a_pickle_takes_the_budget_that_the_file_has_now(tmp_path: Path) -> None:
    data = pickle.dumps(PrivacyLedger(1.0, tmp_path / "ledger"))
    PrivacyLedger(2.0, tmp_path / "ledger", change_budget=True)
    assert pickle.loads(data).budget == 2.0


def test_processes_that_open_one_file_at_once_record_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(lambda _: PrivacyLedger(1.0, path), range(32)))
    assert {ledger.budget for ledger in ledgers} == {1.0}
    assert ledgers[0].report().count("Budget:") == 1
    assert "Changed" not in ledgers[0].report()


# The table


def test_the_table_has_every_release_and_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(1.0, path)
    ledger.spend("validation", 1, 0.5, 1e-9, "polya")
    ledger = PrivacyLedger(2.0, path, change_budget=True)
    ledger.spend("a\n2  forged", "x" * 100, 0.7)
    lines = ledger.report().splitlines()
    assert lines[0] == f"Privacy ledger {path}"[:215]
    assert lines[1].startswith(
        "Budget: epsilon 1 at delta 1e-06, composed by addition, recorded 20"
    )
    assert lines[2].startswith("Changed to: epsilon 2 at delta 1e-06")
    assert lines[3] == "Spent: epsilon 1.2, delta 1e-09, by 2 releases. Left: epsilon 0.8."
    head, first, second = lines[5:8]
    assert first.split()[3:] == ["validation", "1", "0.5", "1e-09", "polya", "0.5"]
    assert r"a\n2  forged" in second
    assert "x" * 37 + "..." in second
    assert second.split()[-3:] == ["0.7", "0", "1.2"]
    assert lines[8] == ""
    assert lines[-1] == f"SHA-256 of all records: {ledger.digest()}"
    assert (
        len(
            {
                line.index(cell)
                for line, cell in ((head, "epsilon"), (first, "0.5"), (second, "0.7"))
            }
        )
        == 1
    )


def test_the_digest_of_an_entry_stays_and_that_of_the_ledger_goes_on(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    one = ledger.spend("val", 1, 0.1)
    first = ledger.digest(one)
    assert first == ledger.digest()
    ledger.spend("val", 2, 0.1)
    assert ledger.digest(one) == first != ledger.digest()
    assert len(first) == 64


def test_the_table_of_an_empty_ledger_says_so() -> None:
    text = PrivacyLedger().report()
    assert "Budget: none" in text
    assert text.endswith("SHA-256 of all records: there are none")
