"""Names of files, and files: what was written is read, anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.app.folder.files import (
    Files,
    decoded,
    encoded,
    label,
    packed,
    query_number,
    stage_name,
    unpacked,
)
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

BLOCKS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.binary(max_size=50),
    max_size=5,
)


@given(st.text(min_size=1, max_size=22))
def test_a_name_is_one_plain_part_of_a_path_and_comes_back(name: str) -> None:
    try:
        part = encoded("site-", name)
    except InputError:
        # the name has a surrogate, which UTF-8 cannot encode
        assert any("\ud800" <= letter <= "\udfff" for letter in name)
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
    "part",
    [
        "site-",
        "site-A",
        "site-%4",
        "site-%61",
        "site-%ff",
        "site-a.b",
        "site-.part",
        "else",
    ],
)
def test_a_part_that_is_no_encoded_name_is_left_out(part: str) -> None:
    assert decoded("site-", [part]) == []


@pytest.mark.parametrize("name", ["", "x" * 201, "é" * 34, 3, None, b"ann"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="Expected a name"):
        encoded("site-", name)


def test_labels_sort_in_the_order_of_the_exchange() -> None:
    stages = [stage for stage in Stage if stage is not Stage.JOIN]
    labels = [label(query, stage) for query in (1, 2) for stage in stages]
    assert labels == sorted(labels)
    assert labels[3] == "1.3-mask"
    assert label(1, Stage.JOIN) < labels[0]
    assert query_number("2.2-share_keys") == "2"
    assert stage_name("2.2-share_keys") == "share_keys"


@given(BLOCKS)
def test_blocks_come_back(blocks: dict[str, bytes]) -> None:
    data = frame(Kind.FILE, packed(blocks))
    assert unpacked(Reader(data, Kind.FILE)) == blocks


def test_a_file_is_written_whole_and_read_where_it_was_written(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    digest = files.write(files.state_path, b"con", b"tent")
    file = files.read(files.state_path)
    assert file is not None
    assert file.digest == digest
    assert bytes(file.content.rest) == b"content"
    assert os.listdir(files.coordinator_folder) == ["state"]


def test_a_file_that_was_moved_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    files.write(files.state_path, b"content")
    next_round = Files(tmp_path, "2")
    next_round.coordinator_folder.mkdir()
    os.rename(files.state_path, next_round.state_path)
    assert files.read(files.state_path) is None
    with pytest.raises(WireError, match="it was written as b'coordinator/round-1/state'"):
        next_round.read(next_round.state_path)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    files = Files(tmp_path, "1")
    files.end_path.mkdir(parents=True)
    with pytest.raises(WireError, match="got something else"):
        files.end()


def test_the_shared_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder that exists"):
        Files(tmp_path / "nowhere", "1")
