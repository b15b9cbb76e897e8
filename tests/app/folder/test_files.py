"""Names of files, and files: what is written is read, anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmetrics_fed.app.folder.files import Files, decoded, encoded, packed, unpacked
from torchmetrics_fed.errors import InputError, WireError
from torchmetrics_fed.release.wire import Kind, Reader, frame

NAMES = [
    "ann",
    "A",
    "a",
    "../x",
    "con",
    "\u00e9",
    "e\u0301",
    "a/b",
    "a b",
    ".",
    "%41",
    "\u65e5\u672c",
    "x" * 200,
]


@given(st.text(min_size=1, max_size=22))
def test_a_name_is_one_plain_part_of_a_path_and_comes_back(name: str) -> None:
    try:
        part = encoded("site-", name)
    except InputError:
        assert any("\ud800" <= letter <= "\udfff" for letter in name)  # which UTF-8 cannot encode
        return
    assert part.isascii()
    assert part == part.lower()
    assert not set(part) & set('/\\:.*?"<>| ')
    assert decoded("site-", [part]) == [name]


def test_names_differ_on_file_systems_that_fold_letters() -> None:
    parts = [encoded("site-", name).casefold() for name in NAMES]
    assert len(set(parts)) == len(NAMES)
    assert decoded("site-", parts) == sorted(NAMES)


@pytest.mark.parametrize(
    "part", ["site-", "site-A", "site-%4", "site-%61", "site-%ff", "site-a.b", "site-.part", "else"]
)
def test_what_nobody_has_encoded_is_no_name(part: str) -> None:
    assert decoded("site-", [part]) == []


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 34, 3, None, b"ann"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="Expected a name"):
        encoded("site-", name)


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
        st.binary(max_size=50),
        max_size=5,
    )
)
def test_blocks_come_back(blocks: dict[str, bytes]) -> None:
    assert unpacked(Reader(frame(Kind.FILE, packed(blocks)), Kind.FILE)) == blocks


def test_a_file_is_written_whole_and_read_where_it_was_written(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    mark = files.write(files.own / "state", b"con", b"tent")
    found = files.read(files.own / "state")
    assert found is not None
    assert found[0] == mark
    assert bytes(found[1].rest) == b"content"
    assert os.listdir(files.own) == ["state"]
    other = Files(tmp_path, "2")
    other.own.mkdir()
    os.rename(files.own / "state", other.own / "state")
    assert files.read(files.own / "state") is None
    with pytest.raises(WireError, match="it was written as b'coordinator/round-1/state'"):
        other.read(other.own / "state")


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    (files.own / "end").mkdir(parents=True)
    with pytest.raises(WireError, match="got something else"):
        files.end()
    with pytest.raises(InputError, match="a folder that exists"):
        Files(tmp_path / "nowhere", "1")
