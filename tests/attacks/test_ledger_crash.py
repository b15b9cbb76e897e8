"""Threat 15: a crash between spending and releasing. The ledger never shows less than was spent."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.attacks.sqlite_disk import Disk, Step, watched
from tests.light import LightProcess
from torchmetrics_fed.errors import LedgerConflictError, LedgerFileError
from torchmetrics_fed.privacy import ledger as ledger_module
from torchmetrics_fed.privacy import store as store_module
from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.ledger import PrivacyLedger

ENTRY = LedgerEntry("val", "client", 0.2, spec="spec", client="client")

# Processes that are killed

# Forks once per step. Each child kills itself with SIGKILL before that line of the ledger's code.
EVERY_STEP = """
import os, pathlib, signal
from torchmetrics_fed.privacy import ledger, store
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger

directory = pathlib.Path(sys.argv[1])
start = sys.argv[2]
call = sys.argv[3]
files = {store.__file__, ledger.__file__}
entry = LedgerEntry("val", "client", 0.2, spec="spec", client="client")
steps_left = 0

def trace(frame, event, argument):
    global steps_left
    if frame.f_code.co_filename not in files:
        return None
    if event == "line":
        steps_left -= 1
        if steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

def run(path, step):
    global steps_left
    if start == "existing":
        PrivacyLedger(path=path).spend("val", "before", 0.1)
    steps_left = step
    sys.settrace(trace)
    book = PrivacyLedger(path=path)
    if call == "spend":
        book.spend("val", "client", 0.2)
    else:
        book.charge(entry, b"query", 1.0)
    sys.settrace(None)

for step in range(1, 10_000):
    child = os.fork()
    if child == 0:
        run(directory / str(step), step)
        os._exit(42)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42:
        print(step)
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
"""


@pytest.mark.parametrize("call", ["spend", "charge"])
@pytest.mark.parametrize(
    ("start", "before", "epsilon"),
    [
        ("new", [], 0.5),
        ("existing", ["before"], 0.6),
    ],
    ids=["new", "existing"],
)
def test_killed_at_every_step(
    tmp_path: Path, start: str, before: list[str], epsilon: float, call: str
) -> None:
    (last_step,) = map(int, LightProcess(EVERY_STEP, tmp_path, start, call).result())
    entered = 0
    for step in range(1, last_step + 1):
        path = tmp_path / str(step)
        ledger = PrivacyLedger(path=path)
        rounds = [entry.round for entry in ledger]
        assert rounds in (before, [*before, "client"])
        is_entered = len(rounds) > len(before)
        entered += is_entered
        if call == "spend":
            ledger.spend("val", "client", 0.2)
        elif is_entered:  # the charge and its query are recorded together
            with pytest.raises(LedgerConflictError, match="second draw"):
                ledger.charge(ENTRY, b"query", 1.0)
        else:
            ledger.charge(ENTRY, b"query", 1.0)
        ledger.spend("val", "after", 0.3)
        assert PrivacyLedger(path=path).spent().epsilon == epsilon
    assert is_entered  # the last call returned, so it must be there
    # The steps were real: some of them came before the commit, some after it.
    assert last_step > 60
    assert 2 <= entered < last_step - 30


# A process charges as fast as it can and writes down what was acknowledged, one after another on
# the same file. It is killed at a random moment; or it is stopped, and the file and its journal are
# copied as the disk would show them.
ANY_MOMENT = """
import os, pathlib, random, shutil, signal, time
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.errors import LedgerConflictError

directory = pathlib.Path(sys.argv[1])
kills = sys.argv[2] == "kill"
path = directory / "ledger"
journal = directory / "ledger-journal"
image = path if kills else directory / "image"
image_journal = journal if kills else directory / "image-journal"
PrivacyLedger(path=path)
acknowledged = 0
inside = 0

def release(number):
    return LedgerEntry("val", number, 0.1, spec="spec", client="client")

def check(path):
    book = PrivacyLedger(path=path)
    rounds = [entry.round for entry in book]
    assert rounds == [str(number) for number in range(len(rounds))], rounds
    assert len(rounds) >= (acknowledged + 1) // 2, (rounds, acknowledged)  # two queries for each
    for query in range(max(0, acknowledged - 8), acknowledged):
        try:
            book.charge(release(query // 2), bytes([query % 2]), 0.5)
        except LedgerConflictError:
            continue
        raise AssertionError(f"query {query} of {acknowledged} was forgotten")

def charge_on(start, pipe):
    book = PrivacyLedger(path=path)
    for query in range(start, 1_000_000):
        book.charge(release(query // 2), bytes([query % 2]), 0.5, may_be_recorded=True)
        os.write(pipe, b".")

def begin(start):
    out, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        charge_on(start, pipe)
    os.close(pipe)
    return child, out

def copy_files():
    shutil.copy(path, image)
    image_journal.unlink(missing_ok=True)
    if journal.exists():
        shutil.copy(journal, image_journal)

def newly_acknowledged(out):
    os.set_blocking(out, False)
    try:
        return len(os.read(out, 1_000_000))
    except BlockingIOError:
        return 0
    finally:
        os.set_blocking(out, True)

child = 0
try:
    for moment in range(40):
        if not child:
            child, out = begin(acknowledged)
            acknowledged += len(os.read(out, 1))  # it is under way
        time.sleep(random.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL if kills else signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        if kills:
            child = 0
        else:
            copy_files()
        acknowledged += newly_acknowledged(out)
        inside += image_journal.exists()
        check(image)
        if kills:
            os.close(out)
        else:
            os.kill(child, signal.SIGCONT)
finally:
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
check(path)
print(inside, acknowledged)
"""


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_killed_or_copied_at_any_moment(tmp_path: Path, kind: str) -> None:
    inside, acknowledged = map(int, LightProcess(ANY_MOMENT, tmp_path, kind).result())
    assert inside >= 5  # moments inside a transaction, with a journal to roll back
    assert acknowledged >= 10


# Power loss

Event = Step | int
"""A step of SQLite, or the number of charges that were acknowledged so far."""


def write_files(path: Path, files: dict[str, bytes]) -> None:
    """Put a ledger and its journal in the place of others."""
    journal = path.with_name(f"{path.name}-journal")
    for name, place in (("ledger", path), ("ledger-journal", journal)):
        place.unlink(missing_ok=True)
        if name in files:
            place.write_bytes(files[name])


def has_forgotten(path: Path, acknowledged: int) -> bool:
    """Whether a ledger is damaged, or lost a charge that was acknowledged."""
    try:
        entries = len(PrivacyLedger(path=path))
    except LedgerFileError:
        return True
    return not acknowledged <= entries <= acknowledged + 1


def losses(path: Path, events: list[Event], files: dict[str, bytes]) -> int:
    """Lose power after each event, in several ways. Return how often the ledger has forgotten."""
    generator = random.Random(15)
    disk = Disk(files)
    acknowledged = 0
    lost = 0
    for event in events:
        if isinstance(event, int):
            acknowledged = event
        else:
            disk.do(event)
        for _ in range(4):
            write_files(path, disk.after_power_loss(generator))
            lost += has_forgotten(path, acknowledged)
    return lost


def without_sync(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, int) or event.kind != "sync"]


def without_sync_of_folders(events: list[Event]) -> list[Event]:
    changed: list[Event] = []
    for event in events:
        if isinstance(event, Step) and event.kind == "delete":
            event = event._replace(number=0)
        changed.append(event)
    return changed


def test_every_acknowledged_charge_outlives_a_loss_of_power(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    files = {"ledger": (tmp_path / "ledger").read_bytes()}
    events: list[Event] = []

    def record(step: Step) -> bool:
        events.append(step)
        return True

    with watched(record):
        for number in range(1, 4):
            entry = LedgerEntry("x" * 3000, str(number), 0.1, spec="spec", client="client")
            ledger.charge(entry, b"query", 1.0)
            events.append(number)
    kinds = {event.kind for event in events if isinstance(event, Step)}
    assert {"write", "sync", "delete"} <= kinds
    image = tmp_path / "image"
    assert losses(image, events, files) == 0
    # The power of this test: without syncs of files, or of folders, something is lost.
    assert losses(image, without_sync(events), files) > 0
    assert losses(image, without_sync_of_folders(events), files) > 0


def test_a_new_ledger_is_on_disk_before_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is synced too, or a power loss would forget its name and all its charges."""
    path = tmp_path / "ledger"
    disk = Disk({})
    files_at_link: dict[str, bytes] = {}
    synced_folders: list[int] = []
    real_link = os.link
    real_fsync = os.fsync

    def link(source: str, target: str) -> None:
        files_at_link.update(disk.after_power_loss(random.Random(0)))
        real_link(source, target)

    def fsync(fd: int) -> None:
        if path.exists():
            synced_folders.append(os.fstat(fd).st_ino)
        real_fsync(fd)

    def record(step: Step) -> bool:
        disk.do(step)
        return True

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fsync)
    with watched(record):
        PrivacyLedger(path=path)
    (content,) = files_at_link.values()  # one file, and no journal
    assert content == path.read_bytes()
    assert synced_folders == [tmp_path.stat().st_ino]


class FailingDisk:
    """Allows a number of steps. Then it fails, and goes on failing."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def __call__(self, step: Step) -> bool:
        self.steps_left -= 1
        return self.steps_left >= 0


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except LedgerFileError:
        return False
    return True


def test_a_disk_that_fails_at_any_step_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    journal = tmp_path / "ledger-journal"
    PrivacyLedger(path=path).spend("val", "before", 0.1)
    content = path.read_bytes()
    refused = 0
    for steps in range(1000):
        journal.unlink(missing_ok=True)
        path.write_bytes(content)
        ledger = PrivacyLedger(path=path)
        disk = FailingDisk(steps)
        with watched(disk):
            spent = succeeds(partial(ledger.spend, "val", 1, 0.1))
        rounds = [entry.round for entry in ledger]
        assert rounds in (["before"], ["before", "1"])
        if spent:
            assert rounds == ["before", "1"]
        if spent and disk.steps_left > 0:
            break
        refused += not spent
        ledger.spend("val", 1, 0.1)
        assert PrivacyLedger(path=path).spent().epsilon == 0.2
    assert refused > 10


FULL = """
import resource
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import LedgerFileError
ledger = PrivacyLedger(path=sys.argv[1])
ledger.spend("val", 1, 0.1)
for room in (0, 100, 600, 5_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        ledger.spend("val", 2, 0.1)
    except LedgerFileError as error:
        print("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(ledger) == 1
ledger.spend("val", 2, 0.1)
print(len(ledger))
"""


def test_a_full_disk_spends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    words = LightProcess(FULL, tmp_path / "ledger").result()
    assert words == [*["refused"] * 4, "2"]
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 2


# Interrupts


class Interrupt:
    """A trace function that raises KeyboardInterrupt before a line of the ledger's code."""

    files = (store_module.__file__, ledger_module.__file__)

    def __init__(self, line: int) -> None:
        self._lines_left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                raise KeyboardInterrupt
        return self


def charge_with_interrupt(ledger: PrivacyLedger, line: int) -> bool:
    """Charge a release, with an interrupt before a line. Return whether the charge returned."""
    tracer = sys.gettrace()
    sys.settrace(Interrupt(line))
    try:
        ledger.charge(ENTRY, b"query", 1.0)
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(tracer)
    return True


# An interrupt between the end of a block and its clean-up leaves a connection to the garbage
# collector, which closes it and, since Python 3.13, warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["memory", "file"])
def test_an_interrupt_at_any_line_is_not_forgotten(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interrupt between the end of a block and the release of its lock leaves the lock held: this
    # test has a lock of its own.
    monkeypatch.setattr(store_module, "_turn", threading.RLock())
    for line in range(1, 1000):
        ledger = PrivacyLedger(path=None if where == "memory" else tmp_path / f"{line}")
        ledger.spend("val", "before", 0.1)
        returned = charge_with_interrupt(ledger, line)
        rounds = [entry.round for entry in ledger]
        assert rounds in (["before"], ["before", "client"])
        if returned:
            assert rounds == ["before", "client"]
            break
        ledger.charge(ENTRY, b"query", 1.0, may_be_recorded=True)
        assert len(ledger) == 2
    assert line > 20
    gc.collect()  # here, and not in another test
