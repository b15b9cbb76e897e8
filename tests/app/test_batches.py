"""Batches: files of every format, closed after use, in memory that does not grow with them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.table_files import write_table
from torchmetrics_fed import FederatedROC, InputError
from torchmetrics_fed.app import batches
from torchmetrics_fed.app.tables import count_table

pa = pytest.importorskip("pyarrow")

COLUMNS = ["score", "label"]
DAMAGED_FILES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_rows(path: Path, *, skip_bad: bool = False) -> list[dict[str, Any]]:
    """All rows of a file."""
    rows = []
    with closing(batches.read_file(path, COLUMNS, delimiter=",", skip_bad=skip_bad)) as reader:
        for batch in reader:
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow"])
def test_a_file_gives_the_rows_and_no_column_that_was_not_asked_for(
    name: str, tmp_path: Path
) -> None:
    table = pa.table({"id": [1, 2], "score": [0.25, 0.5], "label": [0, 1]})
    rows = read_rows(write_table(table, tmp_path / name))
    assert rows == [{"score": 0.25, "label": 0}, {"score": 0.5, "label": 1}]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_a_csv_file_gives_texts(name: str, tmp_path: Path) -> None:
    """Types would depend on the block in which a value stands."""
    table = pa.table({"id": [1, 2], "score": [0.25, 0.5], "label": [0, 1]})
    rows = read_rows(write_table(table, tmp_path / name))
    assert rows == [{"score": "0.25", "label": "0"}, {"score": "0.5", "label": "1"}]


def test_only_a_parquet_file_tells_its_rows_without_being_read(tmp_path: Path) -> None:
    table = pa.table({"score": [0.25, 0.5], "label": [0, 1]})
    assert batches.rows_of(write_table(table, tmp_path / "t.parquet")) == 2
    assert batches.rows_of(write_table(table, tmp_path / "t.csv")) is None
    assert batches.rows_of(tmp_path / "nowhere.parquet") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a header and rows but 't.csv' is empty"),
        ("p,y\n0.1,0\n", r"one column 'score' but the columns are \['p', 'y'\]"),
        ("score,score,label\n0.1,0.2,0\n", "one column 'score'"),
        ("score,label\n0.1,0\n0.2,1,5\n", "row 2 has more or fewer"),
        ("score,label\n0.1,\xff\n", "'t.csv' cannot"),
    ],
)
def test_an_error_names_the_fault_of_a_csv_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=message):
        read_rows(path)


def test_a_file_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ends in one of"):
        read_rows(tmp_path / "t.xls")
    with pytest.raises(InputError, match="No such file"):
        read_rows(tmp_path / "t.parquet")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_malformed_rows_have_their_numbers_in_every_block(
    newline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_BLOCK_BYTES", 64)  # a block ends within a line
    lines = ["0.125,1"] * 100
    lines[77] = "0.5"
    path = tmp_path / "t.csv"
    path.write_bytes(newline.join(["score,label", *lines]).encode())
    with pytest.raises(InputError, match="row 78 has more or fewer"):
        read_rows(path)
    rows = read_rows(path, skip_bad=True)
    assert rows.count({"score": "0.125", "label": "1"}) == 99
    assert rows.count({"score": None, "label": None}) == 1


def open_files(name: str) -> int:
    """How many descriptors of this process, and of its memory maps, are those of a file."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(name in str(link.readlink()) for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc, as Linux has it")
@pytest.mark.parametrize(
    "name", ["shut.csv", "shut.csv.gz", "shut.parquet", "shut.feather", "shut.arrow"]
)
@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [(20, {"score": "p"}, "one column 'p'"), (400_000, {}, "row 1, column 'label'")],
    ids=["wrong column", "bad row"],
)
def test_a_refused_file_is_closed_while_its_error_is_kept(
    rows: int, columns: dict[str, Any], message: str, name: str, tmp_path: Path
) -> None:
    labels = [2] + [0] * (rows - 1)
    table = pa.table({"score": [0.125] * rows, "label": labels})
    path = write_table(table, tmp_path / name)
    with pytest.raises(InputError, match=message) as raised:
        count_table(FederatedROC(), path, **columns)
    assert raised.value.__traceback__ is not None
    assert open_files(name) == 0


def check_counted_or_refused(path: Path) -> None:
    """A file is refused with a typed error, and changes nothing, or every good row is counted."""
    metric = FederatedROC(quantiles=16)
    rows = 0
    with suppress(InputError):
        rows = count_table(metric, path, skip_bad=True, most_skipped=1.0).rows
    assert int(metric.counts.sum()) == rows


CELLS = st.sampled_from(["0.5", "1", "0", "", "nan", "abc", "1e9", '"', "'", "\x00", " "])


@DAMAGED_FILES
@given(st.lists(st.lists(CELLS, max_size=4)))
def test_any_text_as_csv_is_counted_or_refused(tmp_path: Path, cells: list[list[str]]) -> None:
    path = tmp_path / "t.csv"
    lines = [",".join(row) for row in cells]
    path.write_text("\n".join(["score,label", *lines]))
    check_counted_or_refused(path)


@DAMAGED_FILES
@given(st.data())
def test_any_damage_to_a_file_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / data.draw(st.sampled_from(["t.parquet", "t.feather", "t.arrow"]))
    table = pa.table({"score": [0.1, 0.2, 0.3] * 20, "label": [0, 1, 0] * 20})
    content = write_table(table, path).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[place] ^ data.draw(st.integers(1, 255))])
    damages = {
        "cut": content[:place],
        "flip": content[:place] + flipped + content[place + 1 :],
        "lose": content[:place] + content[place + 9 :],
    }
    path.write_bytes(damages[data.draw(st.sampled_from(sorted(damages)))])
    check_counted_or_refused(path)


PROGRAM = """
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from torchmetrics_fed import FederatedROC
from torchmetrics_fed.app.tables import count_table

MILLION = 1_000_000
SCHEMA = pa.schema([("score", pa.float32()), ("label", pa.int8())])
rng = np.random.default_rng(0)
peaks = []
for millions in (1, 1, 10):
    with parquet.ParquetWriter(
        "t.parquet", SCHEMA, compression="none", use_dictionary=False
    ) as writer:
        for _ in range(millions):
            scores = rng.random(MILLION, dtype=np.float32)
            labels = (rng.random(MILLION) < scores).astype(np.int8)
            writer.write_table(pa.table([scores, labels], schema=SCHEMA))
    assert count_table(FederatedROC(), "t.parquet").rows == millions * MILLION
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[2] - peaks[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
    assert int(process.stdout) * unit < 20_000_000
