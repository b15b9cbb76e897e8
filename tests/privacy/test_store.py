"""Laws of the store: a transaction is whole or nothing, one at a time, on disk when it ends; what is erased is gone."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.light import LightProcess
from torchmetrics_fed.errors import LedgerError, LedgerFileError
from torchmetrics_fed.privacy.store import Store


class StopHereError(Exception):
    pass


def keep(store: Store, name: str, content: bytes) -> None:
    with store.transaction() as tables:
        tables.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, content))


def kept(store: Store) -> dict[str, bytes]:
    with store.transaction(write=False) as tables:
        return dict(tables.execute("SELECT name, content FROM notes").fetchall())


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
            tables.execute("INSERT INTO notes VALUES ('b', x'02')")
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
            tables.execute("INSERT INTO notes VALUES ('b', x'02')")
            tables.execute("INSERT INTO notes VALUES ('a', x'02')")

    with pytest.raises(LedgerFileError):
        fail()
    assert kept(store) == {"a": b"1"}


def test_transactions_come_one_after_the_other(store: Store) -> None:
    stores = (
        [store] * 4 if store.path is None else [store, store, Store(store.path), Store(store.path)]
    )
    keep(store, "count", b"0")

    def count(which: int) -> None:
        for _ in range(5):
            with stores[which].transaction() as tables:
                (number,) = tables.execute("SELECT content FROM notes").fetchone()
                time.sleep(0.001)  # whoever may write meanwhile would be lost
                tables.execute("UPDATE notes SET content = ?", (str(int(number) + 1).encode(),))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert kept(store) == {"count": b"20"}


def test_who_reads_sees_no_half_of_a_transaction(tmp_path: Path) -> None:
    writer, reader = Store(str(tmp_path / "store")), Store(str(tmp_path / "store"))
    with writer.transaction() as tables:
        tables.execute("INSERT INTO notes VALUES ('a', x'01')")
        assert kept(reader) == {}
        tables.execute("INSERT INTO notes VALUES ('b', x'02')")
    assert len(kept(reader)) == 2


# The file


def test_the_file_and_its_journal_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(str(tmp_path / "store"))
        with store.transaction() as tables:
            tables.execute("INSERT INTO notes VALUES ('a', x'01')")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"store": 0o600, "store-journal": 0o600}
    assert os.listdir(tmp_path) == ["store"]  # nothing else is left


@pytest.mark.parametrize(
    "erase", ["DELETE FROM notes", "UPDATE notes SET content = x''", "replace"]
)
@pytest.mark.parametrize("size", [20, 1_000, 50_000])
def test_what_is_erased_is_not_in_the_file(tmp_path: Path, erase: str, size: int) -> None:
    """Among others that stay, in a page, over several pages, and where the page is used again."""
    path = tmp_path / "store"
    store = Store(str(path))
    secret = os.urandom(size)
    pieces = [secret[place : place + 16] for place in range(0, size - 15, max(16, size // 64))]
    keep(store, "other", b"stays" * 400)
    keep(store, "secret", secret)
    assert all(piece in path.read_bytes() for piece in pieces)  # they can be found
    with store.transaction() as tables:
        if erase == "replace":
            tables.execute("INSERT OR REPLACE INTO notes VALUES ('secret', ?)", (b"short",))
        else:
            tables.execute(f"{erase} WHERE name = 'secret'")
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
from torchmetrics_fed.privacy.store import Store
print("ready", flush=True)
sys.stdin.readline()
store = Store(sys.argv[1])
with store.transaction() as tables:
    tables.execute("INSERT INTO notes VALUES (?, x'01')", (sys.argv[2],))
"""


def test_processes_that_make_the_same_file_make_one(tmp_path: Path) -> None:
    processes = [LightProcess(CREATE, tmp_path / "store", number) for number in range(6)]
    for process in processes:
        process.wait_for("ready")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda process: process.result("go\n"), processes))
    assert sorted(kept(Store(str(tmp_path / "store")))) == [str(number) for number in range(6)]
    assert os.listdir(tmp_path) == ["store"]


def test_what_a_crash_left_while_a_store_was_made_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "store.0123456789abcdef").write_bytes(b"half a file")
    (tmp_path / "store.0123456789abcdef-journal").write_bytes(b"half a journal")
    keep(Store(str(tmp_path / "store")), "a", b"1")
    assert kept(Store(str(tmp_path / "store"))) == {"a": b"1"}


# Threads and forks


def test_a_store_in_memory_is_one_for_all_threads() -> None:
    store = Store(None)
    thread = threading.Thread(target=keep, args=(store, "a", b"1"))
    thread.start()
    thread.join()
    assert kept(store) == {"a": b"1"}


FORK = """
import os
from torchmetrics_fed.privacy.store import Store
from torchmetrics_fed.errors import LedgerError
def count(store):
    with store.transaction(write=False) as tables:
        return tables.execute("SELECT count(*) FROM notes").fetchone()[0]
def keep(store, name):
    with store.transaction() as tables:
        tables.execute("INSERT INTO notes VALUES (?, x'01')", (name,))
memory, file = Store(None), Store(sys.argv[1])
keep(memory, "before"), keep(file, "before")
child = os.fork()
if child == 0:
    try:
        keep(memory, "child")
    except LedgerError:
        print("refused", flush=True)
    keep(file, "child")
    os._exit(0)
os.waitpid(child, 0)
keep(memory, "after"), keep(file, "after")
print(count(memory), count(file))
"""


def test_a_fork_writes_to_the_file_but_not_to_its_copy_of_the_memory(tmp_path: Path) -> None:
    assert LightProcess(FORK, tmp_path / "store").result() == ["refused", "2", "3"]


def test_a_file_that_another_program_locks_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    monkeypatch.setattr("torchmetrics_fed.privacy.store._LOCK_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / "store", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        for ask in (lambda: kept(store), lambda: keep(store, "a", b"1"), lambda: Store(store.path)):
            with pytest.raises(LedgerError, match=r"within 0\.1 s"):
                ask()
    finally:
        other.close()
    keep(store, "a", b"1")
