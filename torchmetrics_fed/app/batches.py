"""Batches: tables as Arrow record batches of bounded size, and their columns as tensors or ids.

Memory does not grow with a file: a reader holds one block of it, reads on the thread of its caller,
and closes the file when its generator is closed. Texts of errors hold names of columns and numbers
of rows, and no values: those are data. Needs the extra ``tables``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import csv, ipc, parquet
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchmetrics_fed.errors import InputError

SKIP_ADVICE = (
    "Nothing was counted. Correct it, or leave out such rows with `skip_bad` (--skip-bad)."
)
"""Last sentences of an error about a bad row."""

_PARQUET_ROWS = 1 << 18
"""Rows of a Parquet file that are read at a time."""

_BLOCK_BYTES = 1 << 22
"""Bytes of a CSV file, or of a column of a Parquet file, that are read at a time."""

_ARROW_FILE_MAGIC = b"ARROW1"
"""First bytes of an Arrow file with random access. An Arrow stream has none."""

_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
"""A text that is a number, in a column where other texts are none."""

_Batches: TypeAlias = Iterator[pa.RecordBatch]


def batches_of(table: Any) -> _Batches:
    """Yield the batches of a table, or of an iterable of tables."""
    if isinstance(table, pa.RecordBatch):
        yield table
    elif hasattr(table, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(table)
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | dict):
        for part in table:
            yield from batches_of(part)
    else:
        raise InputError(
            f"Expected a table, or batches of one, but got {type(table).__name__}. Pass a "
            "DataFrame."
        )


def read_file(
    path: Path, names: Sequence[str], *, delimiter: str, skip_bad: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Yield columns of a file, whose suffix names its format. Close the generator after use.

    Args:
        path: the file.
        names: the columns to read.
        delimiter: between the columns of a CSV file; a tab where the suffix is ``.tsv``.
        skip_bad: whether a malformed row of a CSV file gives a row without values, or raises.
    """
    suffix = _format_suffix(path)
    try:
        if suffix in (".csv", ".tsv"):
            if ".tsv" in path.suffixes:
                delimiter = "\t"
            yield from _read_csv(path, names, delimiter=delimiter, skip_bad=skip_bad)
        else:
            yield from _READERS[suffix](path, names)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        # the text of the error may hold values of the data
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(
            f"Expected a {suffix} file that can be read but {path.name!r} cannot: {reason}."
        ) from None


def _format_suffix(path: Path) -> str:
    """Return the last suffix that names a format: ``.csv`` of ``table.csv.gz``."""
    for suffix in reversed(path.suffixes):
        if suffix in _FORMATS:
            return suffix
    raise InputError(
        f"Expected a file that ends in one of {list(_FORMATS)} but got {path.name!r}. Rename it."
    )


def rows_of(path: Path) -> int | None:
    """Return the number of rows of a file, or None where only reading it would tell."""
    if ".parquet" not in path.suffixes:
        return None
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):  # reading the file gives the error
        return None


def check_columns(needed: Sequence[str], names: Sequence[str]) -> None:
    """Raise unless each needed column is there once."""
    for name in needed:
        if list(names).count(name) != 1:
            raise InputError(
                f"Expected one column {name!r} but the columns are {list(names)}. Name the right "
                "one."
            )


def _read_csv(path: Path, needed: Sequence[str], *, delimiter: str, skip_bad: bool) -> _Batches:
    columns: list[str] = []
    rows = 0
    with pa.input_stream(str(path), compression="detect") as file:
        for block in _blocks(file):
            has_header = not columns
            if has_header:
                columns = _header(block, delimiter)
                check_columns(needed, columns)
            table, malformed = _parsed_block(
                block,
                delimiter,
                columns=None if has_header else columns,
                needed=needed,
            )
            if malformed and not skip_bad:
                row = rows + malformed[0] - has_header  # the header is a line, too
                raise InputError(
                    f"Expected as many values in each row as the header has but row {row} has more "
                    f"or fewer. {SKIP_ADVICE}"
                )
            yield from table.to_batches()
            if malformed:  # a row without values is a bad row
                missing = pa.nulls(len(malformed), pa.string())
                yield pa.record_batch(dict.fromkeys(needed, missing))
            rows += table.num_rows + len(malformed)
    if not columns:
        raise InputError(
            f"Expected a header and rows but {path.name!r} is empty. Export the table again."
        )


def _blocks(file: pa.NativeFile) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines."""
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        end = (block.rfind(b"\n") + 1) or (block.rfind(b"\r") + 1)
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
    if rest:
        yield rest


class _MalformedRows:
    """Skips the malformed rows of a CSV file, and collects their numbers."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, row: Any) -> str:
        self.numbers.append(row.number)
        return "skip"


def _header(block: bytes, delimiter: str) -> list[str]:
    """Return the names of the columns in the first block of a CSV file."""
    table = csv.read_csv(
        pa.BufferReader(block),
        _read_options(block, columns=None),
        csv.ParseOptions(delimiter=delimiter, invalid_row_handler=_MalformedRows()),
    )
    return list(table.column_names)


def _parsed_block(
    block: bytes, delimiter: str, *, columns: list[str] | None, needed: Sequence[str]
) -> tuple[pa.Table, list[int]]:
    """Return the rows of a block of CSV, and the numbers of its malformed rows, on this thread.

    ``csv.open_csv`` would read ahead on another thread, even after it is closed. That thread may be
    the last one to hold the handler of malformed rows. To free the handler it waits for Python's
    lock, and a process that is ending aborts there.

    Args:
        block: whole lines.
        delimiter: between the columns of the file.
        columns: names of the columns, or None where the block begins with the header.
        needed: the columns to return, as texts.
    """
    malformed = _MalformedRows()
    table = csv.read_csv(
        pa.BufferReader(block),
        _read_options(block, columns=columns),
        csv.ParseOptions(delimiter=delimiter, invalid_row_handler=malformed),
        # texts, because the types that one block shows need not hold for the next block
        csv.ConvertOptions(
            include_columns=list(needed),
            column_types=dict.fromkeys(needed, pa.string()),
            strings_can_be_null=True,
        ),
    )
    return table, malformed.numbers


def _read_options(block: bytes, columns: list[str] | None) -> csv.ReadOptions:
    # with threads, malformed rows have no numbers
    return csv.ReadOptions(
        use_threads=False,
        block_size=len(block) + 1,
        column_names=columns,
    )


def _read_parquet(path: Path, needed: Sequence[str]) -> _Batches:
    with parquet.ParquetFile(path, buffer_size=_BLOCK_BYTES, pre_buffer=False) as file:
        check_columns(needed, file.schema_arrow.names)
        yield from file.iter_batches(_PARQUET_ROWS, columns=list(needed))


def _read_arrow(path: Path, needed: Sequence[str]) -> _Batches:
    with pa.memory_map(str(path)) as source:
        has_random_access = bytes(source.read(len(_ARROW_FILE_MAGIC))) == _ARROW_FILE_MAGIC
        source.seek(0)
        if has_random_access:
            with ipc.open_file(source) as file:
                check_columns(needed, file.schema.names)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number).select(list(needed))
        else:
            with ipc.open_stream(source) as stream:
                check_columns(needed, stream.schema.names)
                for batch in stream:
                    yield batch.select(list(needed))


_READERS: dict[str, Callable[[Path, Sequence[str]], _Batches]] = {
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
}
"""By suffix, the reader of a format that needs no options."""

_FORMATS = (".csv", ".tsv", *_READERS)
"""The suffixes of all formats."""


def matrix(
    batch: pa.RecordBatch, names: Sequence[str], convert: Callable[[pa.Array], pa.Array]
) -> Tensor:
    """Return columns side by side, ``(rows, columns)``. A single column is not copied.

    Args:
        batch: the rows.
        names: the columns.
        convert: gives the numbers of a column, none of them missing.
    """
    columns = [_tensor(batch, name, convert) for name in names]
    if len(columns) == 1:
        return columns[0][:, None]
    return torch.stack(columns, 1)


def _tensor(batch: pa.RecordBatch, name: str, convert: Callable[[pa.Array], pa.Array]) -> Tensor:
    try:
        tensor: Tensor = from_dlpack(convert(_values(batch, name)))
    except (pa.ArrowException, TypeError):
        kind = batch.schema.field(name).type
        raise InputError(f"Expected numbers in column {name!r} but its type is {kind}.") from None
    return tensor


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    values = batch.column(name)
    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    return values


def _are_texts(values: pa.Array) -> bool:
    return "string" in str(values.type)  # string, large_string, string_view


def person_ids(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the ids of persons as texts, missing where there is none.

    So a person has the same id in files of all formats.
    """
    values = _values(batch, name)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind) or _are_texts(values)):
        raise InputError(
            f"Expected integers or texts in column {name!r} but its type is {kind}. Pass ids."
        )
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), None, texts)


def numbered(values: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return the place of each value among the names, missing where it is none of them."""
    return pc.index_in(pc.utf8_trim_whitespace(values.cast(pa.string())), pa.array(names))


def scores_of(values: pa.Array) -> pa.Array:
    """Return scores as floats, NaN where they are missing."""
    values = parsed(values)
    if values.type == pa.float16():
        values = values.cast(pa.float32(), safe=False)
    elif values.type not in (pa.float32(), pa.float64()):
        values = values.cast(pa.float64(), safe=False)
    if values.null_count:
        values = values.fill_null(math.nan)
    return values


def parsed(values: pa.Array) -> pa.Array:
    """Return texts as numbers and truth values as 0 and 1; other values as they are.

    A text that is no number gives a missing value.
    """
    if pa.types.is_boolean(values.type):
        return values.cast(pa.uint8())
    if not _are_texts(values):
        return values
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        texts = pc.utf8_trim_whitespace(values)
        return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, None).cast(pa.float64())
