"""Batches: files as Arrow record batches of bounded size, and their columns as tensors or ids. Extra ``tables``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
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

_ROWS, _BLOCK = (
    1 << 18,
    1 << 22,
)  # rows of a Parquet file and bytes of a CSV file that are read at a time
_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def each_of(table: Any) -> Iterator[pa.RecordBatch]:
    """Give the batches of a table, or of an iterable of tables."""
    if isinstance(table, pa.RecordBatch):
        yield table
    elif hasattr(table, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(table)
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | dict):
        for part in table:
            yield from each_of(part)
    else:
        raise InputError(
            f"Expected a table, or batches of one, but got {type(table).__name__}. Pass a DataFrame."
        )


def read_file(
    path: Path, names: Sequence[str], delimiter: str, skip_bad: bool
) -> Iterator[pa.RecordBatch]:
    """Give these columns of a file, its format known by its suffix."""
    kind = next((suffix for suffix in path.suffixes[::-1] if suffix in _READERS), "")
    if not kind:
        raise InputError(
            f"Expected a file that ends in one of {list(_READERS)} but got {path.name!r}. Rename it."
        )
    try:
        yield from _READERS[kind](path, names, delimiter, skip_bad)
    except (
        pa.ArrowException,
        OSError,
        UnicodeError,
    ) as error:  # their texts hold values of the data
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(
            f"Expected a {kind} file that can be read but {path.name!r} cannot: {why}."
        ) from None


def rows_of(path: Path) -> int | None:
    """Return how many rows a file has, if it says so."""
    return parquet.read_metadata(path).num_rows if ".parquet" in path.suffixes else None


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
    wrong: list[int] = []

    def handle(row: Any) -> str:
        wrong.append(row.number - 1)  # the header is a line, too
        return "skip" if skip_bad else "error"

    reading = csv.ReadOptions(
        block_size=_BLOCK, use_threads=False
    )  # with threads, rows have no numbers
    delimiter = "\t" if ".tsv" in path.suffixes else delimiter
    parsing = csv.ParseOptions(delimiter=delimiter, invalid_row_handler=handle)
    try:
        needed = checked_names(names, csv.open_csv(path, reading, parsing).schema.names)
        wrong.clear()
        kinds = dict.fromkeys(
            needed, pa.string()
        )  # what one block looks like need not hold for the next
        converting = csv.ConvertOptions(
            include_columns=needed, column_types=kinds, strings_can_be_null=True
        )
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
