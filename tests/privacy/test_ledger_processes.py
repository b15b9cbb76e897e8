"""Threads, processes and forks that share a ledger never overspend, nor charge a release twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.light import LightProcess
from tests.privacy.ledgers import OpenLedger, race, recorded_answers
from torchmetrics_fed.errors import BudgetExceededError
from torchmetrics_fed.privacy.ledger import PrivacyLedger


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """Threads are switched so often that they meet inside a spend."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def spend_often(ledgers: list[PrivacyLedger], thread: int) -> int:
    """Spend for releases of this thread and for shared ones; return how many of its own passed."""
    ledger = ledgers[thread % len(ledgers)]
    passed = 0
    for round in range(5):
        try:
            ledger.spend("own", f"{thread}.{round}", 0.1)
            passed += 1
        except BudgetExceededError:
            pass
        ledger.spend("shared", round % 2, 0.1)
    return passed


@pytest.mark.usefixtures("_frequent_switches")
@pytest.mark.parametrize("objects", [1, 4])
def test_threads_never_overspend_nor_double(open_ledger: OpenLedger, objects: int) -> None:
    ledger = open_ledger(budget=10.0)
    ledgers = [ledger]
    if ledger.path is not None:
        ledgers += [open_ledger(budget=10.0) for _ in range(objects - 1)]
    for round in (0, 1):
        ledger.spend("shared", round, 0.1)
    with ThreadPoolExecutor(32) as pool:
        passed = sum(pool.map(partial(spend_often, ledgers), range(32)))
    keys = [entry.key for entry in ledger]
    assert passed == 98
    assert len(keys) == len(set(keys)) == 100
    assert ledger.spent().epsilon == 10.0


SPEND = """
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import BudgetExceededError
path, rank, kind = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
ledger = PrivacyLedger(2.0, path)
for number in range(6):
    round = number if kind == "same" else f"{rank}.{number}"
    try:
        ledger.spend("val", round, 0.1, mechanism="m" * int(rank))
        print("spent")
    except BudgetExceededError:
        print("refused")
assert "torch" not in sys.modules
"""


def test_ranks_that_share_a_file_write_one_entry(tmp_path: Path) -> None:
    assert race(SPEND, tmp_path / "ledger", "same") == ["spent"] * 48
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert [entry.round for entry in ledger] == [str(round) for round in range(6)]


def test_processes_never_overspend(tmp_path: Path) -> None:
    words = race(SPEND, tmp_path / "ledger", "different")
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert words.count("spent") == 20
    assert words.count("refused") == 28
    assert ledger.spent().epsilon == 2.0
    assert len(ledger) == 20


CHARGE = """
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.errors import LedgerConflictError
path, rank, kind = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
ledger = PrivacyLedger(2.0, path)
client = rank if kind == "rebuilt" else "client"
for round in range(4):
    entry = LedgerEntry("val", round, 0.5, spec="spec", client=client)
    try:
        ledger.charge(entry, b"query", 1.0, may_be_recorded=kind == "ranks")
        print("drawn")
    except LedgerConflictError:
        print("refused")
"""


@pytest.mark.parametrize(("kind", "drawn"), [("ranks", 32), ("client", 4), ("rebuilt", 4)])
def test_processes_that_are_asked_the_same_draw_once(tmp_path: Path, kind: str, drawn: int) -> None:
    """All ranks of a client draw, for one sum. Of processes without a common rank, one draws."""
    words = race(CHARGE, tmp_path / "ledger", kind)
    assert words.count("drawn") == drawn
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    assert len(ledger) == 4
    assert len(recorded_answers(ledger)) == 4


FORK = """
import os
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import LedgerError
memory = PrivacyLedger()
file = PrivacyLedger(path=sys.argv[1])
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
begun = threading.Event()
end = threading.Event()
def write():
    with Store(sys.argv[1]).transaction():
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
