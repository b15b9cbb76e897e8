"""A ledger refuses a file that is not the one it wrote, and leaves it alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.light import LightProcess
from tests.privacy.ledgers import ENTRY
from torchmetrics_fed.errors import LedgerError, LedgerFileError
from torchmetrics_fed.privacy.ledger import PrivacyLedger

# Files that this package did not write

CONTENTS = {
    "empty": b"",
    "newline": b"\n",
    "text": b"epsilon\n1.0\n",
    "zeros": b"\0" * 8192,
    "a journal of lines": b'{"format":"torchmetrics-fed ledger","version":1}\n',
}

DATABASES = {
    "SQLite without tables": "PRAGMA user_version=1",
    "SQLite of another program": "CREATE TABLE entries (number INTEGER PRIMARY KEY)",
    "another program's about": (
        "CREATE TABLE about (format, version); INSERT INTO about VALUES ('photos', 1)"
    ),
}

CHANGES = {
    "a store without records": "DROP TABLE records",
    "a store without an end": "DROP TABLE head",
}


def run_sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as tables:
        tables.executescript(script)


def check_refused(path: Path, message: str) -> None:
    """The file is refused, and its content stays."""
    content = path.read_bytes()
    with pytest.raises(LedgerFileError, match=message):
        PrivacyLedger(1.0, path).charge(ENTRY, b"query", 1.0)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", CONTENTS)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(CONTENTS[name])
    check_refused(path, "Cannot use the ledger file")


@pytest.mark.parametrize("name", DATABASES)
def test_another_database_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger"
    run_sql(path, DATABASES[name])
    check_refused(path, "Cannot use the ledger file")


@pytest.mark.parametrize("name", CHANGES)
def test_a_store_without_a_table_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(path=path)
    run_sql(path, CHANGES[name])
    check_refused(path, "Cannot use the ledger file")


@pytest.mark.parametrize("version", [1, 99])
def test_another_version_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger"
    PrivacyLedger(path=path)
    run_sql(path, f"UPDATE about SET version = {version}")
    check_refused(path, rf"its format is version {version}, and this package reads version \d+")


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
path = sys.argv[1]
mode = int(sys.argv[2], 8)
opened = PrivacyLedger(path=path)
opened.spend("val", 1, 0.1)
os.chmod(path, mode)
if os.getuid() == 0:
    os.chown(path, 65534, 65534)
    os.setuid(65534)  # root may read everything
try:
    PrivacyLedger(path=path).spend("val", 2, 0.1)
except LedgerFileError:
    print("refused")
try:
    opened.spend("val", 2, 0.1)
except LedgerFileError:
    print("refused")
"""


@pytest.mark.parametrize("mode", ["0", "200", "400"])
def test_a_file_without_permission_is_refused(mode: str) -> None:
    # The folder is not below tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = f"{folder}/ledger"
        assert LightProcess(NO_PERMISSION, path, mode).result() == ["refused"] * 2
        os.chmod(path, 0o600)
        assert len(PrivacyLedger(path=path)) == 1


# Files that forget


def emptied(path: Path, old: Path) -> None:
    os.truncate(path, 0)


def shortened(path: Path, old: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced_by_a_new_one(path: Path, old: Path) -> None:
    new = old.with_name("new")
    PrivacyLedger(path=new)
    new.replace(path)


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
    """An older copy cannot be noticed if no process had the file open: that is not tested."""
    path = tmp_path / "ledger"
    old = tmp_path / "old"
    ledger = PrivacyLedger(1.0, path)
    for round in range(spent_before):
        ledger.spend("val", f"before {round}", 0.1)
    shutil.copy(path, old)
    ledger.spend("val", 1, 0.8)
    if read:
        len(ledger)
    forget(path, old)
    entry = replace(ENTRY, round="2", epsilon=0.1)
    calls: list[Callable[[], object]] = [
        ledger.spent,
        lambda: len(ledger),
        lambda: ledger.spend("val", 2, 0.1),
        lambda: ledger.charge(entry, b"query", 1.0),
        lambda: ledger.spend("val", 2, 0.1),  # not only the first time
    ]
    for call in calls:
        with pytest.raises(LedgerFileError, match=r"Put|Give"):
            call()


def test_an_older_copy_that_forgets_only_an_answer_is_refused_while_it_is_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger"
    old = tmp_path / "old"
    ledger = PrivacyLedger(path=path)
    ledger.charge(ENTRY, b"pilot", 0.25)
    shutil.copy(path, old)
    ledger.charge(ENTRY, b"placed", 0.75)
    old.replace(path)
    with pytest.raises(LedgerError):  # the noise must not be drawn again
        ledger.charge(ENTRY, b"placed", 0.75)


def test_a_deleted_file_whose_journal_is_there_is_not_a_new_ledger(tmp_path: Path) -> None:
    """After a crash, a user deletes the file but not the journal of its transaction."""
    path = tmp_path / "ledger"
    journal = tmp_path / "ledger-journal"
    PrivacyLedger(1.0, path).spend("val", 1, 0.8)
    notes = [(str(number), b"x" * 3000) for number in range(50)]
    with closing(sqlite3.connect(path, isolation_level=None)) as tables:
        # With a small cache, changed pages and their journal go to the disk early.
        tables.execute("PRAGMA cache_size=1")
        tables.execute("BEGIN IMMEDIATE")
        tables.executemany("INSERT INTO notes VALUES ('', ?, ?, 0)", notes)
        content = journal.read_bytes()
        tables.execute("ROLLBACK")
    assert any(content[:28])
    path.unlink()
    journal.write_bytes(content)
    with pytest.raises(LedgerFileError):
        PrivacyLedger(1.0, path)


# Files that are locked

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
    second = PrivacyLedger(path=tmp_path / "second")
    hanging = LightProcess(HANG, tmp_path / "ledger")
    hanging.wait_for("locked")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ledger.spend, "val", 1, 0.1)
        time.sleep(0.1)
        (tmp_path / "second").replace(tmp_path / "ledger")
        hanging.result()
        with pytest.raises(LedgerFileError):
            waiting.result()
    with pytest.raises(LedgerFileError):
        len(second)
