"""Threat 15: a crash between spending and releasing, and a half-written ledger. It never shows less than was spent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.light import LightProcess
from torchmetrics_fed.errors import LedgerFileError
from torchmetrics_fed.privacy.ledger import PrivacyLedger

# Forks once per step, and each child kills itself with SIGKILL before the step-th line of the ledger's code. Writes go
# out seven bytes at a time, so that there are steps in the middle of a line; "acknowledged" is what spend returned for.
CRASH = """
import os, pathlib, signal
from torchmetrics_fed.privacy import durable, journal, ledger
from torchmetrics_fed.privacy.ledger import PrivacyLedger

directory, start = pathlib.Path(sys.argv[1]), sys.argv[2]
files = {module.__file__ for module in (durable, journal, ledger)}
write = os.write

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
    if start != "new":
        PrivacyLedger(path=path).spend("val", "before", 0.1)
    if start == "torn":
        with open(path, "ab") as file:
            file.write(b'{"data":"val","ro')
    os.write = lambda fd, data: write(fd, data[:7])
    sys.settrace(trace)
    book = PrivacyLedger(path=path)
    book.spend("val", "crash", 0.2)
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


@pytest.mark.parametrize("start", ["new", "existing", "torn"])
def test_killed_at_every_step_of_a_spend(tmp_path: Path, start: str) -> None:
    (survived,) = map(int, LightProcess(CRASH, tmp_path, start).result())
    before = [] if start == "new" else [("val", "before")]
    entered, torn = 0, 0
    for step in range(1, survived + 1):
        path = tmp_path / str(step)
        ledger = PrivacyLedger(path=path)
        keys = [entry.key for entry in ledger]
        assert keys in (before, [*before, ("val", "crash")])
        assert step < survived or keys[-1] == ("val", "crash")  # acknowledged, so it must be there
        entered, torn = entered + (len(keys) > len(before)), torn + (ledger.torn > (start == "torn"))
        again = ledger.spend("val", "crash", 0.2)
        after = ledger.spend("val", "after", 0.3)
        again_opened = PrivacyLedger(path=path)
        assert list(again_opened)[-2:] == [again, after]
        assert again_opened.spent().epsilon == (0.5 if start == "new" else 0.6)
    assert survived > 100  # the steps were real, and some of them fell into the write, some after it
    assert entered > 5
    assert torn > 20 or start == "torn"


def entries_at(content: bytes, cut: int) -> int:
    """Entries whose line is whole, newline or not, in the first ``cut`` bytes."""
    ends = [place for place in range(len(content)) if content[place : place + 1] == b"\n"]
    return sum(cut >= end for end in ends[1:])


def test_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path=path)
    entries = [ledger.spend("val", round, 0.1, mechanism='a "}') for round in range(3)]
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        (torn := tmp_path / f"cut{cut}").write_bytes(content[:cut])
        ledger = PrivacyLedger(path=torn)
        whole = entries_at(content, cut)
        assert list(ledger) == entries[:whole]
        assert torn.read_bytes() == content[:cut]  # reading repairs nothing
        new = ledger.spend("val", "new", 0.1)
        assert list(ledger) == list(PrivacyLedger(path=torn)) == [*entries[:whole], new]
        assert torn.read_bytes().startswith(content[:cut])  # nothing is cut away


def test_torn_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    kept = []
    for round in range(20):
        ledger = PrivacyLedger(path=path)
        kept.append(ledger.spend("val", round, 0.1))
        ledger.spend("val", f"torn {round}", 0.1)
        os.truncate(path, path.stat().st_size - 2 - 6 * round)
    ledger = PrivacyLedger(path=path)
    assert list(ledger) == kept
    assert ledger.torn == 20
    assert "20 releases, 20 torn" in repr(ledger)


def test_every_changed_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path=path)
    for round in range(3):
        ledger.spend("val", round, 0.1)
    content = path.read_bytes()
    for place in range(len(content)):
        for byte in {content[place] ^ 1, content[place] ^ 0x80, ord("\n"), ord(" "), ord("0")} - {content[place]}:
            changed = content[:place] + bytes([byte]) + content[place + 1 :]
            path.write_bytes(changed)
            with pytest.raises(LedgerFileError):
                PrivacyLedger(path=path)
    assert path.read_bytes() == changed


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_damaged_line_is_named(tmp_path: Path, line: int) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path=path)
    for round in range(3):
        ledger.spend("val", round, 0.8)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:line], lines[line].replace(b"0.8", b"0.1"), *lines[line + 1 :]]))
    with pytest.raises(LedgerFileError, match=f"line {line + 1} is damaged.*do not delete the line"):
        PrivacyLedger(path=path)


def test_a_line_that_is_dropped_doubled_or_moved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = PrivacyLedger(path=path)
    for round in range(3):
        ledger.spend("val", round, 0.1)
    header, one, two, three = path.read_bytes().splitlines(keepends=True)
    for lines in ([two, three], [one, three], [one, two, two, three], [one, two, three, three], [two, one, three]):
        path.write_bytes(header + b"".join(lines))
        with pytest.raises(LedgerFileError, match="damaged, or a line before it is missing"):
            PrivacyLedger(path=path)


FULL = """
import resource
from torchmetrics_fed.privacy.ledger import PrivacyLedger
from torchmetrics_fed.errors import LedgerFileError
ledger = PrivacyLedger(path=sys.argv[1])
ledger.spend("val", 1, 0.1)
for room in (0, 1, 50):
    size = len(open(sys.argv[1], "rb").read())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    try:
        ledger.spend("val", 2, 0.1)
    except LedgerFileError as error:
        print("refused" if "to take a line" in str(error) else error)
    assert len(ledger) == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.spend("val", 2, 0.1)
print(len(ledger), ledger.torn)
"""


def test_a_full_disk_spends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    assert LightProcess(FULL, tmp_path / "ledger").result() == ["refused"] * 3 + ["2", "2"]
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 2


def test_whatever_spend_returned_for_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power loss: what the last fsync saw is all that is left, and the directory must know the file."""
    path, image = tmp_path / "ledger", tmp_path / "image"
    fsync, synced = os.fsync, set()

    def remember(fd: int) -> None:
        fsync(fd)
        synced.add(os.fstat(fd).st_ino)
        if os.path.samestat(os.fstat(fd), path.stat()):
            image.write_bytes(path.read_bytes())

    monkeypatch.setattr(os, "fsync", remember)
    for round in range(3):
        ledger = PrivacyLedger(path=path)
        entry = ledger.spend("val", round, 0.1)
        assert list(PrivacyLedger(path=image))[-1] == entry
        image.unlink()
        assert ledger.spend("val", round, 0.1) == entry  # perhaps written by another, who died before its fsync
        assert list(PrivacyLedger(path=image))[-1] == entry
        assert {path.stat().st_ino, tmp_path.stat().st_ino} <= synced
        synced.clear()


def test_a_failed_fsync_is_not_forgiven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(LedgerFileError, match="Input/output error"):
            ledger.spend("val", 1, 0.1)
    with pytest.raises(LedgerFileError, match="earlier fsync failed"):
        ledger.spend("val", 1, 0.1)
    assert PrivacyLedger(path=tmp_path / "ledger").spent().epsilon == 0.1  # too much, never too little


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_interrupt_in_a_spend_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    ledger = PrivacyLedger(path=tmp_path / "ledger")
    real = getattr(os, call)

    def interrupted(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.spend("val", 1, 0.1)
    assert ledger.spent().epsilon == 0.1
    assert ledger.spend("val", 1, 0.1).epsilon == 0.1
    assert len(PrivacyLedger(path=tmp_path / "ledger")) == 1
