"""Threat 15: a crash between spending and releasing, and a damaged ledger. It never shows less than was spent."""

from __future__ import annotations

import _sqlite3
import ctypes
import gc
import os
import random
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest

from tests.light import LightProcess
from torchmetrics_fed.errors import LedgerConflictError, LedgerFileError
from torchmetrics_fed.privacy import ledger as ledger_module
from torchmetrics_fed.privacy import store as store_module
from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.ledger import PrivacyLedger

SESSION = LedgerEntry("val", "client", 0.2, spec="spec", client="client")

# Processes that are killed

# Forks once per step, and each child kills itself with SIGKILL before the step-th line of the ledger's code.
EVERY_STEP = """
import os, pathlib, signal
from torchmetrics_fed.privacy import ledger, store
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger

directory, start, call = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
files = {module.__file__ for module in (store, ledger)}
session = LedgerEntry("val", "client", 0.2, spec="spec", client="client")

def run(path, step):
    left = step
    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    if start == "existing":
        PrivacyLedger(path=path).spend("val", "before", 0.1)
    sys.settrace(trace)
    book = PrivacyLedger(path=path)
    if call == "spend":
        book.spend("val", "client", 0.2)
    else:
        book.charge(session, b"query", 1.0)
    sys.settrace(None)

for step in range(1, 10_000):
    path = directory / str(step)
    child = os.fork()
    if child == 0:
        run(path, step)
        os._exit(42)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42:
        print(step)
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
"""


@pytest.mark.parametrize("call", ["spend", "charge"])
@pytest.mark.parametrize("start", ["new", "existing"])
def test_killed_at_every_step(tmp_path: Path, start: str, call: str) -> None:
    (survived,) = map(int, LightProcess(EVERY_STEP, tmp_path, start, call).result())
    before = [] if start == "new" else ["before"]
    entered = 0
    for step in range(1, survived + 1):
        path = tmp_path / str(step)
        ledger = PrivacyLedger(path=path)
        rounds = [entry.round for entry in ledger]
        assert rounds in (before, [*before, "client"])
        assert step < survived or rounds[-1] == "client"  # acknowledged, so it must be there
        entered += len(rounds) > len(before)
        if call == "spend":
            ledger.spend("val", "client", 0.2)
        elif len(rounds) > len(before):  # the charge and what it was charged for are one
            with pytest.raises(LedgerConflictError, match="second draw"):
                ledger.charge(SESSION, b"query", 1.0)
        else:
            ledger.charge(SESSION, b"query", 1.0)
        ledger.spend("val", "after", 0.3)
        assert PrivacyLedger(path=path).spent().epsilon == (0.5 if start == "new" else 0.6)
    assert (
        survived > 60
    )  # the steps were real, and some of them were before the commit, some after it
    assert 2 <= entered < survived - 30


# A process that spends as fast as it can and writes down what was acknowledged, one after another on the same file. It
# is killed at a random moment; or stopped, and the file and its journal copied as the disk would show them.
ANY_MOMENT = """
import os, pathlib, random, shutil, signal, time
from torchmetrics_fed.privacy.ledger import LedgerEntry, PrivacyLedger
from torchmetrics_fed.errors import LedgerConflictError

directory, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
path, journal = directory / "ledger", directory / "ledger-journal"
image, image_journal = directory / "image", directory / "image-journal"
PrivacyLedger(path=path)
acknowledged, inside, moments = 0, 0, 40

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

def write(start, pipe):
    book = PrivacyLedger(path=path)
    for query in range(start, 1_000_000):
        book.charge(release(query // 2), bytes([query % 2]), 0.5, again=True)
        os.write(pipe, b".")

def begin(start):
    out, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        write(start, pipe)
    os.close(pipe)
    return child, out

child = 0
try:
    for moment in range(moments):
        if not child:
            child, out = begin(acknowledged)
            acknowledged += len(os.read(out, 1))  # it is under way
        time.sleep(random.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        if kind == "stop":
            shutil.copy(path, image)
            image_journal.unlink(missing_ok=True)
            if journal.exists():
                shutil.copy(journal, image_journal)
        else:
            child, image, image_journal = 0, path, journal
        os.set_blocking(out, False)
        try:
            acknowledged += len(os.read(out, 1_000_000))
        except BlockingIOError:
            pass
        os.set_blocking(out, True)
        inside += image_journal.exists()
        check(image)
        if kind == "stop":
            os.kill(child, signal.SIGCONT)
        else:
            os.close(out)
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

Step: TypeAlias = tuple[str, str, int, bytes]
"""What SQLite did to a file: ("write", file, offset, data), ("truncate", file, size, b""), ("sync", file, 0, b""),
("delete", file, whether the folder was synced, b"")."""


class Methods(ctypes.Structure):
    """``sqlite3_io_methods``, of version 3."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    ]


class Vfs(ctypes.Structure):
    """The beginning of ``sqlite3_vfs``."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
    ]


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_DELETE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT)
_WRITE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_SYNC = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)
_FAILED = 1034  # SQLITE_IOERR_FSYNC


@contextmanager
def watched(see: Callable[[Step], bool]) -> Iterator[None]:
    """Show ``see`` each step of SQLite on its files in this process before it is done; it fails where that is False.

    The library is the real one: its table of calls to the operating system is wrapped, as its own crash tests do.
    """
    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
    except (AttributeError, OSError):
        pytest.skip("this Python hides the SQLite that it is linked with")
    real_open, real_delete = _OPEN(vfs.open), _DELETE(vfs.delete)
    files: dict[
        int, tuple[str, Methods]
    ] = {}  # name, and the real methods, which differ between file and journal
    wrappers: dict[int, Methods] = {}

    def name_of(path: int) -> str:
        return os.path.basename(os.fsdecode(ctypes.string_at(path)))

    def opened(this: int, path: int | None, file: int, flags: int, out: int) -> int:
        code = int(real_open(this, path, file, flags, out))
        place = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(Methods)))
        if code == 0 and path:
            methods = place[0].contents
            address = ctypes.addressof(methods)
            if address not in wrappers:
                wrappers[address] = Methods.from_buffer_copy(methods)
                for field, call in calls.items():
                    setattr(wrappers[address], field, ctypes.cast(call, _POINTER))
            files[file] = name_of(path), methods
            place[0] = ctypes.pointer(wrappers[address])
        return code

    def deleted(this: int, path: int, folder: int) -> int:
        return (
            int(real_delete(this, path, folder))
            if see(("delete", name_of(path), folder, b""))
            else _FAILED
        )

    def written(file: int, data: int, size: int, offset: int) -> int:
        name, methods = files[file]
        done = see(("write", name, offset, ctypes.string_at(data, size)))
        return int(_WRITE(methods.write)(file, data, size, offset)) if done else _FAILED

    def truncated(file: int, size: int) -> int:
        name, methods = files[file]
        return (
            int(_TRUNCATE(methods.truncate)(file, size))
            if see(("truncate", name, size, b""))
            else _FAILED
        )

    def synced(file: int, flags: int) -> int:
        name, methods = files[file]
        return int(_SYNC(methods.sync)(file, flags)) if see(("sync", name, 0, b"")) else _FAILED

    calls: dict[str, Any] = {
        "write": _WRITE(written),
        "truncate": _TRUNCATE(truncated),
        "sync": _SYNC(synced),
    }
    open_call, delete_call = _OPEN(opened), _DELETE(deleted)
    before = vfs.open, vfs.delete
    vfs.open, vfs.delete = ctypes.cast(open_call, _POINTER), ctypes.cast(delete_call, _POINTER)
    try:
        yield
    finally:
        vfs.open, vfs.delete = before


class Disk:
    """Files of which each remembers what was synced and what was only written since.

    A sync keeps what was written to its file. A deletion is kept once its folder was synced.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self._kept = dict(files)
        self._pending: list[Step] = []

    def do(self, step: Step) -> None:
        kind, name, number, _ = step
        if kind == "sync" or (kind == "delete" and number):
            mine = [each for each in self._pending if each[1] == name]
            self._pending = [each for each in self._pending if each[1] != name]
            for each in [*mine, step]:
                _apply(self._kept, each)
        else:
            self._pending.append(step)

    def after_power_loss(self, generator: random.Random) -> dict[str, bytes]:
        """Return the files with any of what was not synced, one write torn."""
        files = dict(self._kept)
        share = generator.choice([0.0, 0.5, 1.0])
        survived = [step for step in self._pending if generator.random() < share]
        for place, (kind, name, number, data) in enumerate(survived):
            torn = (
                data[: generator.randrange(len(data) + 1)] if place == len(survived) - 1 else data
            )
            _apply(files, (kind, name, number, torn))
        return files


def _apply(files: dict[str, bytes], step: Step) -> None:
    kind, name, number, data = step
    content = files.get(name, b"")
    if kind == "write":
        files[name] = content[:number].ljust(number, b"\0") + data + content[number + len(data) :]
    elif kind == "truncate":
        files[name] = content[:number].ljust(number, b"\0")
    elif kind == "delete":
        files.pop(name, None)


def forgotten(
    path: Path,
    steps: list[Step | int],
    files: dict[str, bytes],
    kept: Callable[[Step], Step | None],
) -> int:
    """Lose power at each step, several ways; return how often the ledger was damaged or lost what was acknowledged."""
    generator = random.Random(15)
    disk, acknowledged, lost = Disk(files), 0, 0
    journal = path.with_name(f"{path.name}-journal")
    for step in steps:
        if isinstance(step, int):
            acknowledged = step
        else:
            seen = kept(step)
            if seen is not None:
                disk.do(seen)
        for _ in range(4):
            left = disk.after_power_loss(generator)
            for name, place in (("ledger", path), ("ledger-journal", journal)):
                place.unlink(missing_ok=True)
                if name in left:
                    place.write_bytes(left[name])
            try:
                shown = len(PrivacyLedger(path=path))
                lost += not acknowledged <= shown <= acknowledged + 1
            except LedgerFileError:
                lost += 1
    return lost


def test_whatever_was_acknowledged_outlives_a_loss_of_power(tmp_path: Path) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    files = {"ledger": (tmp_path / "ledger").read_bytes()}
    steps: list[Step | int] = []

    def see(step: Step) -> bool:
        steps.append(step)
        return True

    with watched(see):
        for number in range(1, 4):
            ledger.charge(
                LedgerEntry("x" * 3000, str(number), 0.1, spec="spec", client="client"),
                b"query",
                1.0,
            )
            steps.append(number)
    image = tmp_path / "image"
    kinds = {step[0] for step in steps if not isinstance(step, int)}
    assert {"write", "sync", "delete"} <= kinds
    assert forgotten(image, steps, files, lambda step: step) == 0
    # Power of this test: a disk that does not sync loses something, and so does a folder that is not synced.
    assert forgotten(image, steps, files, lambda step: None if step[0] == "sync" else step) > 0
    assert (
        forgotten(
            image,
            steps,
            files,
            lambda step: (step[0], step[1], 0, b"") if step[0] == "delete" else step,
        )
        > 0
    )


def test_a_new_ledger_is_on_disk_before_it_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is synced too, or a power loss would forget the name, and all that was charged to it."""
    files: dict[str, bytes] = {}
    disk, link, fsync, folders = Disk({}), os.link, os.fsync, list[int]()

    def linked(source: str, target: str) -> None:
        files.update(disk.after_power_loss(random.Random(0)))
        link(source, target)

    def synced(fd: int) -> None:
        if (tmp_path / "ledger").exists():
            folders.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "fsync", synced)

    def see(step: Step) -> bool:
        disk.do(step)
        return True

    with watched(see):
        PrivacyLedger(path=tmp_path / "ledger")
    (content,) = files.values()  # one file, and no journal
    assert content == (tmp_path / "ledger").read_bytes()
    assert folders == [tmp_path.stat().st_ino]


def test_a_disk_that_fails_at_any_step_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(path=path).spend("val", "before", 0.1)
    before, refused = path.read_bytes(), 0
    for number in range(1000):
        (tmp_path / "ledger-journal").unlink(missing_ok=True)
        path.write_bytes(before)
        ledger, left = PrivacyLedger(path=path), number

        def see(step: Step) -> bool:
            nonlocal left
            left -= 1
            return left >= 0  # it fails, and goes on failing

        with watched(see):
            try:
                ledger.spend("val", 1, 0.1)
                done = True
            except LedgerFileError:
                done = False
        rounds = [entry.round for entry in ledger]
        assert rounds in (["before"], ["before", "1"])
        if done:
            assert rounds == ["before", "1"]
            if left > 0:
                break
        refused += not done
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
    assert LightProcess(FULL, tmp_path / "ledger").result() == ["refused"] * 4 + ["2"]
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 2


# Interrupts


# An interrupt between the end of a block and its clean-up leaves a connection to the garbage
# collector, which closes it and, since Python 3.13, warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["memory", "file"])
def test_an_interrupt_at_any_line_is_not_forgotten(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an interrupt between the end of a block and its lock's release leaves the lock held: one for this test alone
    monkeypatch.setattr(store_module, "_turn", threading.RLock())
    files = {store_module.__file__, ledger_module.__file__}
    for step in range(1, 1000):
        ledger = PrivacyLedger(path=None if where == "memory" else tmp_path / f"{step}")
        ledger.spend("val", "before", 0.1)
        left = step

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        tracer = sys.gettrace()
        sys.settrace(trace)
        try:
            ledger.charge(SESSION, b"query", 1.0)
            done = True
        except KeyboardInterrupt:
            done = False
        finally:
            sys.settrace(tracer)
        rounds = [entry.round for entry in ledger]
        assert rounds in (["before"], ["before", "client"])
        if done:
            assert rounds == ["before", "client"]
            break
        ledger.charge(SESSION, b"query", 1.0, again=True)
        assert len(ledger) == 2
    assert step > 20
    gc.collect()  # here, and not in another test


# Damage (attack 11): whatever is cut or changed, the file is refused, or nothing of it was lost


def written(path: Path, releases: int = 3) -> list[LedgerEntry]:
    """A ledger with releases of two queries."""
    ledger = PrivacyLedger(path=path)
    for number in range(releases):
        for query in (b"pilot", b"placed"):
            ledger.charge(
                LedgerEntry("val", str(number), 0.1, spec="spec", client="client"), query, 0.5
            )
    return list(ledger)


def is_refused(path: Path, entries: list[LedgerEntry], ledger: PrivacyLedger | None = None) -> bool:
    """Whether the file is refused; if it is not, it must hold all that was written."""
    try:
        ledger = PrivacyLedger(path=path) if ledger is None else ledger
        shown = list(ledger)
        assert shown == entries
        for entry in entries:
            for query in (b"pilot", b"placed"):
                with pytest.raises(LedgerConflictError, match="second draw"):
                    ledger.charge(entry, query, 2**-10)
    except LedgerFileError:
        return True
    return False


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("releases", [0, 3, 60])
def test_cut_anywhere(tmp_path: Path, releases: int, opened: bool) -> None:
    path = tmp_path / "ledger"
    entries = written(path, releases)
    content = path.read_bytes()
    page = 4096
    cuts = {0, 1, 15, 16, 17, 28, 31, 32, 99, 100, 101, 511, 512, 513}
    cuts |= {cut + near for cut in range(page, len(content) + 1, page) for near in (-1, 0, 1)}
    cuts |= set(range(len(content) - page, len(content), 61)) | set(range(0, len(content), 997))
    kept = []
    for cut in sorted(cut for cut in cuts if cut < len(content)):
        path.write_bytes(content)
        ledger = PrivacyLedger(path=path) if opened else None
        path.write_bytes(content[:cut])
        if not is_refused(path, entries, ledger):
            kept.append(cut)
        assert path.read_bytes() == content[:cut]  # and nothing repairs it
    assert all(
        cut > len(content) - page for cut in kept
    )  # at most the end of the last page, if it holds nothing


def test_every_changed_byte_of_an_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = written(path)
    content = path.read_bytes()
    with closing(sqlite3.connect(path)) as tables:
        chains = [chain.encode() for (chain,) in tables.execute("SELECT chain FROM records")]
    ends = [content.index(chain) + len(chain) for chain in chains]
    places = [place for end in ends for place in range(content.rindex(b'{"', 0, end), end)]
    assert len(places) > 3 * 80  # from the name of the data to the digest of the chain
    for place in places:
        for byte in {content[place] ^ 1, content[place] ^ 0x80, 0} - {content[place]}:
            changed = content[:place] + bytes([byte]) + content[place + 1 :]
            path.write_bytes(changed)
            assert is_refused(path, entries), (place, content[place], byte)
            assert path.read_bytes() == changed


def test_a_changed_byte_anywhere_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = written(path)
    content = path.read_bytes()
    places = [place for place in range(len(content)) if content[place] or place % 501 == 0]
    generator = random.Random(11)
    refused = 0
    for place in generator.sample(places, 700):
        byte = content[place] ^ (1 << generator.randrange(8))
        path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
        refused += is_refused(path, entries)
    assert refused > 100


def test_a_changed_byte_in_the_names_of_the_tables_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = written(path)
    content = path.read_bytes()
    for place in range(content.index(b"CREATE TABLE"), 4096, 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :])
        is_refused(path, entries)  # raises nothing else


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as tables:
        for statement in statements:
            assert tables.execute(statement).rowcount != 0


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "what",
    [
        "body = replace(body, '0.', '0.0')",
        "body = replace(body, 'val', 'other')",
        "body = body || ' '",
        "body = 'nothing'",
        "body = '{}'",
        "body = x'00ff'",
        "body = 1.5",
        "chain = 'c'",
        "chain = x'63'",
    ],
)
def test_a_changed_record_is_refused(tmp_path: Path, number: int, what: str) -> None:
    written(tmp_path / "ledger")
    change(tmp_path / "ledger", f"UPDATE records SET {what} WHERE number = {number}")
    with pytest.raises(LedgerFileError, match="not as it was written"):
        PrivacyLedger(path=tmp_path / "ledger")


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM records WHERE number = 1"],
        ["DELETE FROM records WHERE number = 2"],
        ["DELETE FROM records WHERE number = (SELECT max(number) FROM records)"],
        ["DELETE FROM records"],
        ["DELETE FROM records WHERE number = 1", "UPDATE records SET number = number - 1"],
        [
            "UPDATE records SET number = 99 WHERE number = 1",
            "UPDATE records SET number = 1 WHERE number = 2",
            "UPDATE records SET number = 2 WHERE number = 99",
        ],
        ["INSERT INTO records SELECT 1 + max(number), body, chain FROM records"],
        ["DELETE FROM head"],
        ["UPDATE head SET count = count - 1"],
        ["INSERT INTO head SELECT * FROM head"],
    ],
)
def test_a_row_that_is_dropped_doubled_moved_or_changed_is_refused(
    tmp_path: Path, statements: list[str]
) -> None:
    entries = written(tmp_path / "ledger")
    change(tmp_path / "ledger", *statements)
    assert is_refused(tmp_path / "ledger", entries)
