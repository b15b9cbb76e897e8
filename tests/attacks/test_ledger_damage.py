"""Threat 15, attack 11: a damaged ledger is refused, or nothing of it was lost."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from torchmetrics_fed.errors import LedgerConflictError, LedgerFileError
from torchmetrics_fed.privacy.budget import LedgerEntry
from torchmetrics_fed.privacy.ledger import PrivacyLedger

PAGE = 4096
"""Size of a page of SQLite, in bytes."""

QUERIES = (b"pilot", b"placed")


def write_ledger(path: Path, releases: int = 3) -> list[LedgerEntry]:
    """Write a ledger with releases of two queries, and return its entries."""
    ledger = PrivacyLedger(path=path)
    for number in range(releases):
        entry = LedgerEntry("val", str(number), 0.1, spec="spec", client="client")
        for query in QUERIES:
            ledger.charge(entry, query, 0.5)
    return list(ledger)


def check_whole(ledger: PrivacyLedger, entries: list[LedgerEntry]) -> None:
    """The ledger has all entries and all answered queries."""
    assert list(ledger) == entries
    for entry in entries:
        for query in QUERIES:
            with pytest.raises(LedgerConflictError, match="second draw"):
                ledger.charge(entry, query, 2**-10)


def is_refused(path: Path, entries: list[LedgerEntry], ledger: PrivacyLedger | None = None) -> bool:
    """Return whether the file is refused. If it is not, it must hold all that was written."""
    try:
        if ledger is None:
            ledger = PrivacyLedger(path=path)
        check_whole(ledger, entries)
    except LedgerFileError:
        return True
    return False


def with_byte(content: bytes, place: int, byte: int) -> bytes:
    return content[:place] + bytes([byte]) + content[place + 1 :]


def places_to_cut(size: int) -> list[int]:
    """Return places in a file: in its header, around pages, in the last page, and in between."""
    places = {0, 1, 15, 16, 17, 28, 31, 32, 99, 100, 101, 511, 512, 513}
    for page in range(PAGE, size + 1, PAGE):
        places |= {page - 1, page, page + 1}
    places |= set(range(size - PAGE, size, 61))
    places |= set(range(0, size, 997))
    return sorted(place for place in places if place < size)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("releases", [0, 3, 60])
def test_cut_anywhere(tmp_path: Path, releases: int, opened: bool) -> None:
    path = tmp_path / "ledger"
    entries = write_ledger(path, releases)
    content = path.read_bytes()
    accepted = []
    for cut in places_to_cut(len(content)):
        path.write_bytes(content)
        ledger = PrivacyLedger(path=path) if opened else None
        path.write_bytes(content[:cut])
        if not is_refused(path, entries, ledger):
            accepted.append(cut)
        assert path.read_bytes() == content[:cut]  # and nothing repairs it
    # At most the end of the last page may be missing, if it holds nothing.
    assert all(cut > len(content) - PAGE for cut in accepted)


def test_every_changed_byte_of_an_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = write_ledger(path)
    content = path.read_bytes()
    with closing(sqlite3.connect(path)) as tables:
        chains = tables.execute("SELECT chain FROM records").fetchall()
    places: list[int] = []
    for (chain,) in chains:  # from the name of the data to the digest of the chain
        end = content.index(chain.encode()) + len(chain)
        places += range(content.rindex(b'{"', 0, end), end)
    assert len(places) > 3 * 80
    for place in places:
        byte = content[place]
        for changed_byte in {byte ^ 1, byte ^ 0x80, 0} - {byte}:
            changed = with_byte(content, place, changed_byte)
            path.write_bytes(changed)
            assert is_refused(path, entries), (place, byte, changed_byte)
            assert path.read_bytes() == changed


def test_a_changed_byte_anywhere_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = write_ledger(path)
    content = path.read_bytes()
    places = [place for place in range(len(content)) if content[place] or place % 501 == 0]
    generator = random.Random(11)
    refused = 0
    for place in generator.sample(places, 700):
        byte = content[place] ^ (1 << generator.randrange(8))
        path.write_bytes(with_byte(content, place, byte))
        refused += is_refused(path, entries)
    assert refused > 100


def test_a_changed_byte_in_the_names_of_the_tables_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    entries = write_ledger(path)
    content = path.read_bytes()
    for place in range(content.index(b"CREATE TABLE"), PAGE, 5):
        path.write_bytes(with_byte(content, place, content[place] ^ 0x80))
        is_refused(path, entries)  # it raises nothing else


def execute(path: Path, statements: list[str]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as tables:
        for statement in statements:
            assert tables.execute(statement).rowcount != 0


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "change",
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
def test_a_changed_record_is_refused(tmp_path: Path, number: int, change: str) -> None:
    write_ledger(tmp_path / "ledger")
    execute(tmp_path / "ledger", [f"UPDATE records SET {change} WHERE number = {number}"])
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
    entries = write_ledger(tmp_path / "ledger")
    execute(tmp_path / "ledger", statements)
    assert is_refused(tmp_path / "ledger", entries)
