"""A transaction is whole or nothing, one at a time, on disk when it ends. Erased notes are gone."""

from __future__ import annotations

import gc
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.light import LightProcess
from torchmetrics_fed.errors import LedgerError, LedgerFileError
from torchmetrics_fed.privacy.store import NOTE_SECONDS, Notes, Store


class StopHereError(Exception):
    pass


SPEC = b"\x5b\xec"


def keep(store: Store, round: str, content: bytes) -> None:
    with store.transaction() as tables:
        Notes(tables, SPEC).write(round, content)


def kept(store: Store) -> dict[str, bytes]:
    with store.transaction(write=False) as tables:
        return dict(tables.execute("SELECT round, content FROM notes").fetchall())


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(None if request.param == "memory" else str(tmp_path / "store"))


def test_what_was_written_is_there_when_the_block_ends(store: Store) -> None:
    keep(store, "a", b"1")
    keep(store, "b", b"2")
    assert kept(store) == {"a": b"1", "b": b"2"}
    if store.path is not None:
        assert kept(Store(store.path)) == kept(store)


@pytest.mark.parametrize("error", [StopHereError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_raises_has_written_nothing(store: Store, error: type[BaseException]) -> None:
    keep(store, "a", b"1")

    def fail() -> None:
        with store.transaction() as tables:
            Notes(tables, SPEC).write("b", b"\x02")
            tables.execute("UPDATE notes SET content = x'03'")
            raise error

    with pytest.raises(error):
        fail()
    assert kept(store) == {"a": b"1"}
    keep(store, "c", b"3")  # and the next one can
    assert len(kept(store)) == 2


def test_a_statement_that_fails_is_a_typed_error_and_undoes_the_block(store: Store) -> None:
    keep(store, "a", b"1")

    def fail() -> None:
        with store.transaction() as tables:
            Notes(tables, SPEC).write("b", b"\x02")
            tables.execute("INSERT INTO notes VALUES ('5bec', 'a', x'02', 0)")

    with pytest.raises(LedgerFileError):
        fail()
    assert kept(store) == {"a": b"1"}


def test_transactions_come_one_after_the_other(store: Store) -> None:
    stores = [store] * 4
    if store.path is not None:
        stores[2:] = [Store(store.path), Store(store.path)]
    keep(store, "count", b"0")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_to_five, stores))
    assert kept(store) == {"count": b"20"}


def count_to_five(store: Store) -> None:
    """Add 1 to the only note, five times."""
    for _ in range(5):
        with store.transaction() as tables:
            (content,) = tables.execute("SELECT content FROM notes").fetchone()
            time.sleep(0.001)  # a write of another thread meanwhile would be lost
            number = int(content) + 1
            tables.execute("UPDATE notes SET content = ?", (str(number).encode(),))


def test_a_reader_sees_no_half_of_a_transaction(tmp_path: Path) -> None:
    writer = Store(str(tmp_path / "store"))
    reader = Store(str(tmp_path / "store"))
    with writer.transaction() as tables:
        Notes(tables, SPEC).write("a", b"\x01")
        assert kept(reader) == {}
        Notes(tables, SPEC).write("b", b"\x02")
    assert len(kept(reader)) == 2


# Notes


def test_notes_of_different_specs_do_not_meet(store: Store) -> None:
    """Two studies may call their rounds the same."""
    with store.transaction() as tables:
        first = Notes(tables, b"one study")
        second = Notes(tables, b"another")
        first.write("1", b"a")
        assert second.read("1") is None
        assert second.rounds() == []
        second.write("1", b"b")
        second.write("2", b"c")
        second.erase("1")
        second.erase("3")  # it was never begun, and still can be
        assert first.read("1") == b"a"
        assert first.rounds() == ["1"]
        assert [second.read(round) for round in ("1", "2", "3")] == [b"", b"c", None]


@pytest.mark.parametrize("away", [-1, 1], ids=["before", "to come"])
def test_a_note_that_is_a_day_old_is_erased_when_the_store_is_opened(
    tmp_path: Path, away: int
) -> None:
    """A time to come was set by a wrong clock. The store still knows that the round was begun."""
    path = tmp_path / "store"
    store = Store(str(path))
    secret = os.urandom(64)
    keep(store, "1", secret)
    keep(store, "2", b"young")
    for margin, content in ((-600, secret), (600, b"")):
        when = time.time() + away * (NOTE_SECONDS + margin)
        with store.transaction() as tables:
            tables.execute("UPDATE notes SET time = ? WHERE round = '1'", (when,))
        assert kept(Store(str(path))) == {"1": content, "2": b"young"}
    assert secret not in path.read_bytes()


# The file


def test_only_the_owner_may_read_the_file_and_its_journal(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        store = Store(str(tmp_path / "store"))
        with store.transaction() as tables:
            Notes(tables, SPEC).write("a", b"\x01")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(umask)
    assert modes == {"store": 0o600, "store-journal": 0o600}
    assert os.listdir(tmp_path) == ["store"]  # nothing else is left


@pytest.mark.parametrize(
    "erase", ["DELETE FROM notes", "UPDATE notes SET content = x''", "replace", "erase"]
)
@pytest.mark.parametrize("size", [20, 1_000, 50_000])
def test_an_erased_note_is_not_in_the_file(tmp_path: Path, erase: str, size: int) -> None:
    """Among notes that stay, in a page, over several pages, and where the page is used again."""
    path = tmp_path / "store"
    store = Store(str(path))
    secret = os.urandom(size)
    pieces = [secret[place : place + 16] for place in range(0, size - 15, max(16, size // 64))]
    keep(store, "other", b"stays" * 400)
    keep(store, "secret", secret)
    assert all(piece in path.read_bytes() for piece in pieces)  # they can be found
    with store.transaction() as tables:
        if erase == "replace":
            Notes(tables, SPEC).write("secret", b"short")
        elif erase == "erase":
            Notes(tables, SPEC).erase("secret")
        else:
            tables.execute(f"{erase} WHERE round = 'secret'")
    assert not any(piece in path.read_bytes() for piece in pieces)
    assert os.listdir(tmp_path) == ["store"]  # nor in a file beside it
    keep(store, "next", b"n" * size)
    assert not any(piece in path.read_bytes() for piece in pieces)
    assert kept(store)["other"] == b"stays" * 400


@pytest.mark.parametrize(
    "name", ["a b", "a?mode=memory", "a#b", "a%41", "a&b", "'a'", "ä€", ":memory:", "file:a", "-a"]
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    keep(Store(str(tmp_path / name)), "a", b"1")
    assert os.listdir(tmp_path) == [name]
    assert kept(Store(str(tmp_path / name))) == {"a": b"1"}


def test_a_link_leads_to_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    direct = Store(str(tmp_path / "folder" / "store"))
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "store")
    linked = Store(str(tmp_path / "link"))
    keep(linked, "a", b"1")
    keep(direct, "b", b"2")
    assert kept(linked) == kept(direct) == {"a": b"1", "b": b"2"}


CREATE = """
from torchmetrics_fed.privacy.store import Notes, Store
print("ready", flush=True)
sys.stdin.readline()
store = Store(sys.argv[1])
with store.transaction() as tables:
    Notes(tables, b"spec").write(sys.argv[2], b"1")
"""


def test_processes_that_make_the_same_file_make_one(tmp_path: Path) -> None:
    processes = [LightProcess(CREATE, tmp_path / "store", number) for number in range(6)]
    for process in processes:
        process.wait_for("ready")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda process: process.result("go\n"), processes))
    assert sorted(kept(Store(str(tmp_path / "store")))) == [str(number) for number in range(6)]
    assert os.listdir(tmp_path) == ["store"]


def test_files_of_a_crash_while_a_store_was_made_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "store.0123456789abcdef").write_bytes(b"half a file")
    (tmp_path / "store.0123456789abcdef-journal").write_bytes(b"half a journal")
    keep(Store(str(tmp_path / "store")), "a", b"1")
    assert kept(Store(str(tmp_path / "store"))) == {"a": b"1"}


# Connections


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def test_a_store_in_memory_is_closed_when_nothing_refers_to_it() -> None:
    """Since Python 3.13, a connection that is not closed warns."""
    stores = [Store(None) for _ in range(3)]
    for store in stores:
        keep(store, "a", b"1")
    del store
    connections = [store._memory for store in stores]
    stores.pop()
    gc.collect()
    assert [connection and is_open(connection) for connection in connections] == [True, True, False]
    thread = threading.Thread(target=stores.clear)  # not the one that opened it
    thread.start()
    thread.join()
    gc.collect()
    assert not any(connection and is_open(connection) for connection in connections)


@pytest.mark.parametrize("content", [b"no SQLite", b"SQLite format 3\0" + b"x" * 200])
def test_a_store_in_a_file_leaves_no_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    opened: list[sqlite3.Connection] = []
    connect: Any = sqlite3.connect

    def recording(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, check_same_thread=False, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", recording)
    keep(Store(str(tmp_path / "store")), "a", b"1")
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(LedgerFileError):
        Store(str(tmp_path / "other"))
    assert len(opened) > 3
    assert not any(map(is_open, opened))


# Threads and forks


def test_a_store_in_memory_is_one_for_all_threads() -> None:
    store = Store(None)
    thread = threading.Thread(target=keep, args=(store, "a", b"1"))
    thread.start()
    thread.join()
    assert kept(store) == {"a": b"1"}


FORK = """
import os
from torchmetrics_fed.privacy.store import Notes, Store
from torchmetrics_fed.errors import LedgerError
def count(store):
    with store.transaction(write=False) as tables:
        return tables.execute("SELECT count(*) FROM notes").fetchone()[0]
def keep(store, name):
    with store.transaction() as tables:
        Notes(tables, b"spec").write(name, b"1")
memory = Store(None)
file = Store(sys.argv[1])
keep(memory, "before")
keep(file, "before")
child = os.fork()
if child == 0:
    try:
        keep(memory, "child")
    except LedgerError:
        print("refused", flush=True)
    keep(file, "child")
    os._exit(0)
os.waitpid(child, 0)
keep(memory, "after")
keep(file, "after")
print(count(memory), count(file))
"""


def test_a_fork_writes_to_the_file_but_not_to_its_copy_of_the_memory(tmp_path: Path) -> None:
    assert LightProcess(FORK, tmp_path / "store").result() == ["refused", "2", "3"]


def test_a_file_that_another_program_locks_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    monkeypatch.setattr("torchmetrics_fed.privacy.store._LOCK_SECONDS", 0.1)
    calls: list[Callable[[], object]] = [
        lambda: kept(store),
        lambda: keep(store, "a", b"1"),
        lambda: Store(store.path),
    ]
    with closing(sqlite3.connect(tmp_path / "store", isolation_level=None)) as program:
        program.execute("BEGIN EXCLUSIVE")
        for call in calls:
            with pytest.raises(LedgerError, match=r"within 0\.1 s"):
                call()
    keep(store, "a", b"1")
