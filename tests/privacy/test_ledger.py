"""Laws of the ledger: nothing is spent twice, nothing is forgotten, nothing goes beyond the budget."""

from __future__ import annotations

import copy
import math
import os
import pickle
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchmetrics_fed.privacy.journal import Journal

from tests.light import LightProcess
from torchmetrics_fed.errors import (
    BudgetExceededError,
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    LedgerError,
    LedgerFileError,
)
from torchmetrics_fed.privacy.composition import compose_pld
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger

Open = Callable[..., PrivacyLedger]

VERSION_1 = (
    b'{"format":"torchmetrics-fed ledger","version":1}\n'
    b'{"data":"validation","round":"1","epsilon":0.1,"delta":0.0,"mechanism":"polya",'
    b'"time":"2025-11-16T03:00:00+00:00","sum":"31d6d9c335fa96cf"}\n'
    b'{"data":"val#torn\n'
    b'{"data":"\\u00e4","round":"two","epsilon":1.0,"delta":1e-06,"mechanism":"",'
    b'"time":"2025-11-16T03:00:01+00:00","sum":"3bce27a45995cfb1"}\n'
)


@pytest.fixture(params=["memory", "file"])
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    path: dict[str, Any] = {} if request.param == "memory" else {"path": tmp_path / "ledger.jsonl"}
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
def test_the_same_release_with_other_amounts_is_refused(open_ledger: Open, amounts: tuple[float, float]) -> None:
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


def test_beyond_the_budget_both_numbers_are_told_and_nothing_is_spent(open_ledger: Open) -> None:
    ledger = open_ledger(budget=1.0)
    ledger.spend("val", 1, 0.8)
    with pytest.raises(BudgetExceededError, match=r"this release needs epsilon 0\.5, 0\.2 of 1\.0 is left") as error:
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


@pytest.mark.parametrize(("epsilon", "times", "budget"), [(0.1, 100, 10.0), (0.01, 300, 3.0), (1e-3, 70, 0.07)])
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
def test_bad_arguments_are_named_and_nothing_is_spent(open_ledger: Open, arguments: dict[str, Any]) -> None:
    ledger = open_ledger(budget=1.0)
    with pytest.raises(InputError, match=f"`{next(iter(arguments))}`"):
        ledger.spend(**{"data": "val", "round": 1, "epsilon": 0.1, **arguments})
    assert len(ledger) == 0


@pytest.mark.parametrize(
    "arguments",
    [{"budget": 0.0}, {"budget": math.inf}, {"delta": 1.0}, {"composition": "rdp"}],
)
def test_bad_ledgers_are_refused(open_ledger: Open, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`{next(iter(arguments))}`"):
        open_ledger(**arguments)


def test_delta_is_a_question_for_pld_only() -> None:
    with pytest.raises(InputError, match="`delta`"):
        PrivacyLedger().spent(delta=1e-6)


def test_names_survive_the_file(tmp_path: Path) -> None:
    names = ["a\nb", "a\r\n", "\u2028", '"},"sum":"', "#torn", "\0", "\ud800", "ä€𝄞", " ", "x" * 10_000]
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    for name in names:
        ledger.spend(name, name, 0.1, mechanism=name)
    entries = list(PrivacyLedger(path=tmp_path / "ledger"))
    assert [entry.data for entry in entries] == names
    assert [entry.round for entry in entries] == names
    assert [entry.mechanism for entry in entries] == names
    assert len((tmp_path / "ledger").read_bytes().splitlines()) == len(names) + 1


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
    assert PrivacyLedger(0.5, tmp_path / "ledger").remaining == 0.0  # the budget is the object's, not the file's
    assert PrivacyLedger(2.0, tmp_path / "ledger").spend("val", 3, 0.5).epsilon == 0.5
    assert len(first) == 4


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    PrivacyLedger(path=tmp_path / "ledger")
    assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o600


def test_a_file_of_version_1_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(VERSION_1)
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert list(ledger) == [
        LedgerEntry("validation", "1", 0.1, 0.0, "polya", "2025-11-16T03:00:00+00:00"),
        LedgerEntry("ä", "two", 1.0, 1e-6, "", "2025-11-16T03:00:01+00:00"),
    ]
    assert ledger.torn == 1


@pytest.mark.parametrize(
    "content", [b"\n", b"epsilon\n1.0\n", b'{"format":"torchmetrics-fed ledger","version":2}\n', b"\0" * 80]
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger").write_bytes(content)
    with pytest.raises(LedgerFileError, match=r"begin with the line .*version"):
        PrivacyLedger(path=tmp_path / "ledger")
    assert (tmp_path / "ledger").read_bytes() == content


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_whole_line_that_is_no_entry_is_refused_not_skipped(tmp_path: Path, end: bytes) -> None:
    later = Journal(str(tmp_path / "ledger"), dict)
    with later.locked(exclusive=True):
        later.commit({"data": "val", "round": "1", "rho": 0.5})
    (tmp_path / "ledger").write_bytes((tmp_path / "ledger").read_bytes().rstrip() + end)
    with pytest.raises(LedgerFileError, match="line 2 is another"):
        PrivacyLedger(path=tmp_path / "ledger")


@pytest.mark.parametrize("path", ["missing/ledger", ".", "/dev/null"])
def test_a_path_that_cannot_keep_anything_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(LedgerFileError, match="Expected the ledger file"):
        PrivacyLedger(path=tmp_path / path).spend("val", 1, 0.1)


@pytest.mark.parametrize("change", ["deleted", "replaced", "shortened", "rewritten"])
def test_a_file_that_forgets_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(1.0, path)
    ledger.spend("val", 1, 0.8)
    if change == "deleted":
        path.unlink()
    elif change == "replaced":
        PrivacyLedger(path=tmp_path / "other")
        (tmp_path / "other").replace(path)
    elif change == "shortened":
        os.truncate(path, path.stat().st_size - 1)
    else:
        path.write_bytes(path.read_bytes().replace(b"0.8", b"0.1"))
    for ask in (lambda: ledger.spend("val", 2, 0.1), lambda: ledger.spent(), lambda: len(ledger)):
        with pytest.raises(LedgerFileError, match=r"put the file back|Put the old file back"):
            ask()


def test_without_fcntl_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(LedgerFileError, match="without `path`"):
        PrivacyLedger(path=tmp_path / "ledger")
    PrivacyLedger().spend("val", 1, 0.1)


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


def race(path: Path, kind: str) -> list[str]:
    ranks = [LightProcess(RANK, path, rank, kind) for rank in range(8)]
    for process in ranks:
        process.wait_for("ready")
    with ThreadPoolExecutor(8) as pool:
        return [word for words in pool.map(lambda process: process.result("go\n"), ranks) for word in words]


def test_ranks_that_share_a_file_write_one_entry(tmp_path: Path) -> None:
    assert race(tmp_path / "ledger", "same") == ["spent"] * 48
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert [entry.round for entry in ledger] == [str(round) for round in range(6)]
    assert ledger.torn == 0


def test_processes_never_overspend(tmp_path: Path) -> None:
    words = race(tmp_path / "ledger", "different")
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert sorted(words) == ["refused"] * 28 + ["spent"] * 20
    assert (ledger.spent().epsilon, len(ledger), ledger.torn) == (2.0, 20, 0)


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


HANG = """
from torchmetrics_fed.privacy.durable import DurableFile
with DurableFile(sys.argv[1], create=False).locked(exclusive=True):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_hangs_with_the_lock_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    hanging = LightProcess(HANG, tmp_path / "ledger")
    hanging.wait_for("locked")
    monkeypatch.setattr("torchmetrics_fed.privacy.durable._LOCK_SECONDS", 0.2)
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
        with pytest.raises(LedgerFileError, match="it was replaced"):
            waiting.result()
    with pytest.raises(LedgerFileError):
        len(other)


# Composition by privacy loss distributions


def worst_case(epsilon: float, times: int, delta: float) -> float:
    """Kairouz, Oh, Viswanath 2015, theorem 3.3 by bisection: the exact cost of ``times`` randomised responses."""
    right = 1 / (1 + math.exp(-epsilon))

    def excess(total: float) -> float:
        losses = [(times - 2 * wrong) * epsilon for wrong in range(times + 1)]
        odds = [math.comb(times, k) * right ** (times - k) * (1 - right) ** k for k in range(times + 1)]
        return math.fsum(p * max(0.0, -math.expm1(total - loss)) for p, loss in zip(odds, losses, strict=True))

    low, high = 0.0, times * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("epsilon", "times", "delta"), [(0.1, 100, 1e-6), (0.1, 100, 1e-9), (1.0, 5, 1e-6), (0.033, 300, 1e-5)]
)
def test_pld_is_the_exact_worst_case_and_never_below(epsilon: float, times: int, delta: float) -> None:
    pytest.importorskip("dp_accounting")
    composed = compose_pld([(epsilon, 0.0)] * times, delta)
    assert worst_case(epsilon, times, delta) - 1e-9 <= composed <= worst_case(epsilon, times, delta) + 1e-4 * times


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
    for amounts in ([(1e-6, 0.0)] * 1000, [(0.3, 1e-8), (0.7, 1e-8)], [(30.0, 0.0)] * 40, [(800.0, 0.0)], []):
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

    with pytest.raises(BudgetExceededError, match=r"this release needs epsilon 0\.1 .* of 2\.0 is left"):
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
        with pytest.raises(ModuleNotFoundError, match=r"pip install torchmetrics-fed\[privacy\]"):
            ask()
