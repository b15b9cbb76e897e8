"""Batches: files as Arrow record batches of bounded size, and their columns as tensors or ids. Extra ``tables``."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import csv, ipc, parquet
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchmetrics_fed.errors import InputError

OR_SKIP = "Nothing was counted. Correct it, or leave out such rows with `skip_bad` (--skip-bad)."

_PARQUET_ROWS = 1 << 18
"""Rows of a Parquet file that are read at a time."""

_CSV_BYTES = 1 << 22
"""Bytes of a CSV file, or of a column of a Parquet file, that are read at a time."""

_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def batches_of(table: Any) -> Iterator[pa.RecordBatch]:
    """Give the batches of a table, or of an iterable of tables."""
    if isinstance(table, pa.RecordBatch):
        yield table
    elif hasattr(table, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(table)
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | dict):
        for part in table:
            yield from batches_of(part)
    else:
        raise InputError(
            f"Expected a table, or batches of one, but got {type(table).__name__}. Pass a DataFrame."
        )


def read_file(
    path: Path, names: Sequence[str], delimiter: str, skip_bad: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Give these columns of a file, its format known by its suffix. Close the generator after use."""
    kind = next((suffix for suffix in path.suffixes[::-1] if suffix in _READERS), "")
    if not kind:
        raise InputError(
            f"Expected a file that ends in one of {list(_READERS)} but got {path.name!r}. Rename it."
        )
    try:
        yield from _READERS[kind](path, names, delimiter, skip_bad)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        # the error's own text may hold values of the data
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(
            f"Expected a {kind} file that can be read but {path.name!r} cannot: {reason}."
        ) from None


def rows_of(path: Path) -> int | None:
    """Return how many rows a file has, or None where only reading it would tell."""
    if ".parquet" not in path.suffixes:
        return None
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):  # reading the file gives the error
        return None


def checked_names(needed: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of the columns that are needed, or raise unless each is there once."""
    for name in needed:
        if list(names).count(name) != 1:
            raise InputError(
                f"Expected one column {name!r} but the columns are {list(names)}. Name the right one."
            )
    return list(needed)


def _csv(
    path: Path, names: Sequence[str], delimiter: str, skip_bad: bool
) -> Iterator[pa.RecordBatch]:
    if ".tsv" in path.suffixes:
        delimiter = "\t"
    columns: list[str] = []
    rows = 0
    with pa.input_stream(str(path), compression="detect") as file:
        for block in _blocks(file):
            has_header = not columns
            if has_header:
                table, _ = _parsed_block(block, delimiter, None, None)
                columns = table.column_names
            needed = checked_names(names, columns)
            table, malformed = _parsed_block(
                block, delimiter, columns=None if has_header else columns, needed=needed
            )
            if malformed and not skip_bad:
                row = rows + malformed[0] - has_header  # the header is a line, too
                raise InputError(
                    f"Expected as many values in each row as the header has but row {row} has more "
                    f"or fewer. {OR_SKIP}"
                )
            yield from table.to_batches()
            if malformed:  # which are bad rows: nothing is known of them
                nothing = pa.nulls(len(malformed), pa.string())
                yield pa.record_batch(dict.fromkeys(needed, nothing))
            rows += table.num_rows + len(malformed)
    if not columns:
        raise InputError(
            f"Expected a header and rows but {path.name!r} is empty. Export the table again."
        )


def _parsed_block(
    block: bytes, delimiter: str, columns: list[str] | None, needed: list[str] | None
) -> tuple[pa.Table, list[int]]:
    """Return the rows of a block of CSV, and the numbers of its malformed rows, on this thread.

    ``csv.open_csv`` would read ahead on another thread, even after it is closed. That thread may be
    the last one to hold the handler of malformed rows. To free the handler it waits for Python's
    lock, and a process that is ending aborts there.

    Args:
        block: whole lines.
        delimiter: of the file.
        columns: names of the columns, or None where the block begins with the header.
        needed: the columns to return, as texts; all of them if None.
    """
    malformed: list[int] = []

    def skip(row: Any) -> str:
        malformed.append(row.number)
        return "skip"

    converting = None
    if needed is not None:
        # texts, because what one block looks like need not hold for the next
        converting = csv.ConvertOptions(
            include_columns=needed,
            column_types=dict.fromkeys(needed, pa.string()),
            strings_can_be_null=True,
        )
    table = csv.read_csv(
        pa.BufferReader(block),
        # with threads, rows have no numbers
        csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=columns),
        csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
        converting,
    )
    return table, malformed


def _blocks(file: pa.NativeFile) -> Iterator[bytes]:
    """Give a file in blocks of whole lines."""
    rest = b""
    while block := file.read(_CSV_BYTES):
        end = (block.rfind(b"\n") + 1) or (block.rfind(b"\r") + 1)
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
    if rest:
        yield rest


def _parquet(path: Path, names: Sequence[str], *_: Any) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path, buffer_size=_CSV_BYTES, pre_buffer=False) as file:
        needed = checked_names(names, file.schema_arrow.names)
        yield from file.iter_batches(_PARQUET_ROWS, columns=needed)


def _arrow(path: Path, names: Sequence[str], *_: Any) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        is_file = bytes(source.read(6)) == b"ARROW1"
        source.seek(0)
        if is_file:
            with ipc.open_file(source) as file:
                needed = checked_names(names, file.schema.names)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number).select(needed)
        else:
            with ipc.open_stream(source) as stream:
                needed = checked_names(names, stream.schema.names)
                for batch in stream:
                    yield batch.select(needed)


_READERS = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}


def matrix(batch: pa.RecordBatch, names: tuple[str, ...], convert: Any) -> Tensor:
    """Return these columns side by side; a single one is not copied."""
    columns, name = [], names[0]
    try:
        for name in names:
            columns.append(from_dlpack(convert(_values(batch, name))))
    except (pa.ArrowException, TypeError):
        kind = batch.schema.field(name).type
        raise InputError(f"Expected numbers in column {name!r} but its type is {kind}.") from None
    return torch.stack(columns, 1) if len(columns) > 1 else columns[0][:, None]


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    values = batch.column(name)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def person_ids(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return persons' ids as texts, so that one is the same in files of all formats; missing where there is none."""
    values = _values(batch, name)
    if not (
        pa.types.is_integer(values.type)
        or "string" in str(values.type)
        or pa.types.is_null(values.type)
    ):
        raise InputError(
            f"Expected integers or texts in column {name!r} but its type is {values.type}. Pass ids."
        )
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), None, texts)


def numbered(values: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Return the place of each value among these names; missing where it is none of them."""
    return pc.index_in(pc.utf8_trim_whitespace(values.cast(pa.string())), pa.array(names))


def scores_of(values: pa.Array) -> pa.Array:
    """Return scores as floats, none of them missing."""
    values = parsed(values)
    if values.type not in (pa.float32(), pa.float64()):
        values = values.cast(
            pa.float32() if values.type == pa.float16() else pa.float64(), safe=False
        )
    return values.fill_null(math.nan) if values.null_count else values


def parsed(values: pa.Array) -> pa.Array:
    """Return texts as numbers, missing where they are none; truth values as 0 and 1; anything else as it is."""
    if pa.types.is_boolean(values.type):
        return values.cast(pa.uint8())
    if "string" not in str(values.type):  # string, large_string, string_view
        return values
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        texts = pc.utf8_trim_whitespace(values)
        return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, None).cast(pa.float64())
