"""Columns: those of an Arrow batch as tensors, or as persons' ids, whatever type they came in. Extra ``tables``."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchmetrics_fed.errors import InputError

_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def matrix(batch: pa.RecordBatch, names: tuple[str, ...], convert: Any) -> Tensor:
    """Return these columns side by side; a single one is not copied."""
    columns, kind = [], pa.null()
    try:
        for name in names:
            values, kind = batch.column(name), batch.schema.field(name).type
            columns.append(from_dlpack(convert(values.dictionary_decode() if pa.types.is_dictionary(kind) else values)))
    except (pa.ArrowException, TypeError):
        raise InputError(f"Expected numbers in column {name!r} but its type is {kind}.") from None
    return torch.stack(columns, 1) if len(columns) > 1 else columns[0][:, None]


def numbered(values: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Return the place of each value among these names; missing where it is none of them."""
    return pc.index_in(pc.utf8_trim_whitespace(values.cast(pa.string())), pa.array(names))


def person_ids(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return persons' ids as texts, so that one is the same in files of all formats; missing where there is none."""
    values = batch.column(name)
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    if not (pa.types.is_integer(values.type) or "string" in str(values.type) or pa.types.is_null(values.type)):
        raise InputError(f"Expected integers or texts in column {name!r} but its type is {values.type}. Pass ids.")
    texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(texts, ""), None, texts)


def scores_of(values: pa.Array) -> pa.Array:
    """Return scores as floats, none of them missing."""
    values = parsed(values)
    if values.type not in (pa.float32(), pa.float64()):
        values = values.cast(pa.float32() if values.type == pa.float16() else pa.float64(), safe=False)
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
