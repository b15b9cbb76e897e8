"""Files: CSV, Parquet and Arrow files as record batches of bounded size. Extra ``tables``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, ipc, parquet

from torchmetrics_fed.errors import InputError

OR_SKIP = "Nothing was counted. Correct it, or leave out such rows with `skip_bad` (--skip-bad)."

_ROWS, _BLOCK = 1 << 18, 1 << 22  # rows of a Parquet file and bytes of a CSV file that are read at a time


def read_file(path: Path, names: Sequence[str], delimiter: str, skip_bad: bool) -> Iterator[pa.RecordBatch]:
    """Give these columns of a file, its format known by its suffix."""
    kind = next((suffix for suffix in path.suffixes[::-1] if suffix in _READERS), "")
    if not kind:
        raise InputError(f"Expected a file that ends in one of {list(_READERS)} but got {path.name!r}. Rename it.")
    try:
        yield from _READERS[kind](path, names, delimiter, skip_bad)
    except (pa.ArrowException, OSError, UnicodeError) as error:  # their texts hold values of the data
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(f"Expected a {kind} file that can be read but {path.name!r} cannot: {why}.") from None


def rows_of(path: Path) -> int | None:
    """Return how many rows a file has, if it says so."""
    return parquet.read_metadata(path).num_rows if ".parquet" in path.suffixes else None


def checked_names(needed: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of the columns that are needed, or raise unless each is there once."""
    for name in needed:
        if list(names).count(name) != 1:
            raise InputError(f"Expected one column {name!r} but the columns are {list(names)}. Name the right one.")
    return list(needed)


def _csv(path: Path, names: Sequence[str], delimiter: str, skip_bad: bool) -> Iterator[pa.RecordBatch]:
    wrong: list[int] = []

    def handle(row: Any) -> str:
        wrong.append(row.number - 1)  # the header is a line, too
        return "skip" if skip_bad else "error"

    reading = csv.ReadOptions(block_size=_BLOCK, use_threads=False)  # with threads, rows have no numbers
    delimiter = "\t" if ".tsv" in path.suffixes else delimiter
    parsing = csv.ParseOptions(delimiter=delimiter, invalid_row_handler=handle)
    try:
        needed = checked_names(names, csv.open_csv(path, reading, parsing).schema.names)
        wrong.clear()
        kinds = dict.fromkeys(needed, pa.string())  # what one block looks like need not hold for the next
        converting = csv.ConvertOptions(include_columns=needed, column_types=kinds, strings_can_be_null=True)
        for batch in csv.open_csv(path, reading, parsing, converting):
            yield batch
            if wrong:
                yield pa.record_batch(dict.fromkeys(needed, pa.nulls(len(wrong), pa.string())))
                wrong.clear()
    except pa.ArrowInvalid:
        if wrong:
            text = f"Expected as many values in each row as the header has but row {wrong[0]} has more or fewer."
            raise InputError(f"{text} {OR_SKIP}") from None
        raise


def _parquet(path: Path, names: Sequence[str], *_: Any) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path, buffer_size=_BLOCK, pre_buffer=False) as file:
        yield from file.iter_batches(_ROWS, columns=checked_names(names, file.schema_arrow.names))


def _arrow(path: Path, names: Sequence[str], *_: Any) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        streams = bytes(source.read(6)) != b"ARROW1"
        source.seek(0)
        file = ipc.open_stream(source) if streams else ipc.open_file(source)
        needed = checked_names(names, file.schema.names)
        for batch in file if streams else map(file.get_batch, range(file.num_record_batches)):
            yield batch.select(needed)


_READERS = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
