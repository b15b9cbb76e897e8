"""Writes a table as a file of the format that its name asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.csv as csv  # noqa: E402
import pyarrow.feather as feather  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402

__all__ = ["write_table"]


def write_table(table: Any, path: Path) -> Path:
    """Write a table in several row groups or batches, and return the path."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=1_000)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, chunksize=700)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=900)
    else:
        delimiter = "\t" if ".tsv" in path.suffixes else ","
        with pa.output_stream(str(path), compression="detect") as sink:
            csv.write_csv(table, sink, csv.WriteOptions(delimiter=delimiter))
    return path
