"""Tables: Arrow record batches into counts, from files, pandas, Polars, DuckDB, Ray Data or Spark. Extra ``tables``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.integrations.files import OR_SKIP, checked_names, read_file
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.release import Spec

__all__ = ["PartialCounts", "count_table", "merge_counts"]

_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_AS_THEY_ARE = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64()


class Counted(NamedTuple):
    """How many rows were counted, and how many were left out because they could not be."""

    rows: int
    skipped: int


def count_table(metric: FederatedMetric, table: Any, **columns: Any) -> Counted:
    """Count a table in the metric, batch by batch, and return how many rows. A table that is refused changes nothing.

    Args:
        metric: what counts; its data goes on, as with ``update``.
        table: anything with Arrow's C stream (a DataFrame of pandas or Polars, a relation of DuckDB, a Table or a
            RecordBatchReader), an iterable of such, or the path of a file that ends in ``.csv``, ``.tsv`` (or with
            ``.gz`` after it), ``.parquet``, ``.arrow`` or ``.feather``.
        columns: which of its columns hold what, as in :meth:`PartialCounts.of`.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> from torchmetrics_fed.integrations.tables import count_table
        >>> table = pyarrow.table({"p": [0.1, 0.8, 0.7], "y": ["no", "yes", None]})
        >>> metric = FederatedAUROC()
        >>> count_table(metric, table, score="p", label="y", labels=["no", "yes"], skip_bad=True)
        Counted(rows=2, skipped=1)
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """
    return merge_counts(metric, PartialCounts.of(metric, **columns)(table))


def merge_counts(metric: FederatedMetric, parts: Any) -> Counted:
    """Add what :class:`PartialCounts` made of the parts of a table, in whatever order, and return how many rows.

    Args:
        metric: the one that the parts were counted for.
        parts: a table of them, as Ray Data and Spark collect it, or an iterable of such.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> from torchmetrics_fed.integrations.tables import merge_counts
        >>> merge_counts(FederatedAUROC(), [])
        Counted(rows=0, skipped=0)
    """
    total, rows, skipped = torch.zeros_like(metric.counts, device="cpu"), 0, 0
    for part in (part for batch in _batches(parts) for part in batch.to_pylist()):
        if part["layout"] != bytes(metric.layout.cpu().numpy()):
            raise InputError("Expected parts that were counted for this metric but got others. Count them again.")
        total += torch.frombuffer(bytearray(part["counts"]), dtype=torch.int64).reshape(total.shape)
        rows, skipped = rows + part["rows"], skipped + part["skipped"]
    metric.merge_state({"layout": metric.layout, "counts": total, "refused": torch.zeros_like(metric.refused)})
    return Counted(rows, skipped)


@dataclass(frozen=True)
class PartialCounts:
    """Turns a part of a table into one row of exact counts, in whatever process: what an engine sends to its workers.

    Make it with :meth:`of`. It holds no data, no ledger and no noise. What it returns is raw: it stays with the client
    whose table it is, and what leaves is the share or the release of the metric that :func:`merge_counts` adds it to.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> from torchmetrics_fed.integrations.tables import PartialCounts, merge_counts
        >>> table = pyarrow.table({"score": [0.1, 0.8, 0.7], "label": [0, 1, 0]})
        >>> metric = FederatedAUROC()
        >>> part = PartialCounts.of(metric)  # on workers: dataset.map_batches(part, batch_format="pyarrow")
        >>> merge_counts(metric, [part(table[:2]), part(table[2:])])
        Counted(rows=3, skipped=0)
    """

    spec: Spec
    rules: tuple[Any, Any]
    layout: bytes
    score: tuple[str, ...]
    label: tuple[str, ...]
    labels: tuple[str, ...] | None
    group: tuple[str, ...]
    delimiter: str
    skip_bad: bool

    @classmethod
    def of(
        cls,
        metric: FederatedMetric,
        *,
        score: str | Sequence[str] = "score",
        label: str | Sequence[str] = "label",
        labels: Sequence[str] | None = None,
        group: str = "group",
        delimiter: str = ",",
        skip_bad: bool = False,
    ) -> PartialCounts:
        """Return what counts parts of a table for this metric.

        Args:
            metric: what they are counted for.
            score: the column of scores; of several classes or labels one each.
            label: the column of labels; of a multilabel task one each.
            labels: what label columns hold instead of 0, 1, ..., in that order.
            group: the column with the names of groups, of a metric that has ``groups``.
            delimiter: of CSV files; in those that end in ``.tsv`` it is a tab.
            skip_bad: whether to leave out rows with missing, unknown or impossible values instead of raising.
        """
        spec, rules = metric.spec, (metric.normalization, metric.ignore_index)
        score, label = ((names,) if isinstance(names, str) else tuple(names) for names in (score, label))
        needed = spec.classes, spec.classes if spec.task == "multilabel" else 1
        if (len(score), len(label)) != needed:
            raise InputError(
                f"Expected {needed[0]} `score` and {needed[1]} `label` columns for task={spec.task!r} but got "
                f"{len(score)} and {len(label)}. Name one for each class or label."
            )
        names, groups = None if labels is None else tuple(map(str, labels)), (group,) if spec.groups else ()
        return cls(spec, rules, bytes(metric.layout.cpu().numpy()), score, label, names, groups, delimiter, skip_bad)

    def __call__(self, table: Any) -> pa.Table:
        """Return one row: the counts of all rows of ``table``, how many there were, and how many were left out."""
        counts, rows, skipped = self.spec.empty_counts(), 0, 0
        for batch in self.read(table) if isinstance(table, str | PathLike) else _batches(table):
            counts, bad = self._added(counts, batch, rows + skipped)
            rows, skipped = rows + batch.num_rows - bad, skipped + bad
        row = {"layout": self.layout, "counts": counts.numpy().tobytes(), "rows": rows, "skipped": skipped}
        return pa.table({name: [value] for name, value in row.items()})

    def read(self, path: str | PathLike[str]) -> Iterator[pa.RecordBatch]:
        """Give the columns of a file in batches of bounded size."""
        return read_file(Path(path), self._names, self.delimiter, self.skip_bad)

    def _added(self, counts: Tensor, batch: pa.RecordBatch, start: int) -> tuple[Tensor, int]:
        """Return counts with a batch, and how many of its rows were bad."""
        names, task = checked_names(self._names, batch.schema.names), self.spec.task
        preds, target = _matrix(batch, self.score, _scores), _matrix(batch, self.label, self._labels)
        group = _matrix(batch, self.group, self._groups) if self.group else target[:, :0]

        def add(rows: Any) -> Tensor:
            scores = preds[rows, 0] if task == "binary" else preds[rows]
            labels = target[rows] if task == "multilabel" else target[rows, 0]
            groups = (group[rows, 0], len(self.spec.groups)) if self.group else ()
            private = self.spec.privacy is not None
            return self.spec.grid.add(counts, scores, labels, *self.rules, True, task, private, None, None, *groups)

        try:
            return add(slice(None)), 0
        except InputError:
            fine = torch.cat([self._fine(preds, target), group >= 0], 1)
            bad = ~fine.all(1)
            if not bool(bad.any()):
                raise
        if self.skip_bad:
            return add(~bad), int(bad.sum())
        row = int(bad.int().argmax())
        name = names[int((~fine[row]).int().argmax())]
        expected = (
            f"groups {list(self.spec.groups)}"
            if name in self.group
            else f"labels {list(self.labels or [f'from 0 to {self._highest}'])}"
        )
        if name in self.score:
            expected = "finite logits" if self.rules[0] else f"scores in {list(self.spec.grid.score_range)}"
        fault = "holds something else" if batch.column(name)[row].is_valid else "is missing"
        raise InputError(f"Expected {expected} but row {start + row + 1}, column {name!r}, {fault}. {OR_SKIP}")

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.score, *self.label, *self.group)

    @property
    def _highest(self) -> int:
        return self.spec.classes - 1 if self.spec.task == "multiclass" else 1

    def _labels(self, values: pa.Array) -> pa.Array:
        """Return labels as numbers, none of them missing."""
        if self.labels is not None:
            values = _numbered(values, self.labels)
        values = _parsed(values)
        if values.null_count or values.type not in _AS_THEY_ARE:
            values = values.cast(pa.float64(), safe=False).fill_null(math.nan)
        return values

    def _groups(self, values: pa.Array) -> pa.Array:
        return _numbered(values, self.spec.groups).fill_null(-1)

    def _fine(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return which values of these rows can be counted, for every column."""
        (low, high), (normalization, ignore_index) = self.spec.grid.score_range, self.rules
        scores, labels = preds.double(), target.double()
        fine = scores.isfinite() if normalization else (scores >= low) & (scores <= high)
        ignored = labels == (math.nan if ignore_index is None else ignore_index)
        known = (labels >= 0) & (labels <= self._highest) & (labels == labels.floor())
        return torch.cat([fine | ignored, known | ignored], 1)


def _batches(table: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(table, pa.RecordBatch):
        yield table
    elif hasattr(table, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(table)
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | dict):
        for part in table:
            yield from _batches(part)
    else:
        raise InputError(f"Expected a table, or batches of one, but got {type(table).__name__}. Pass a DataFrame.")


def _matrix(batch: pa.RecordBatch, names: tuple[str, ...], convert: Any) -> Tensor:
    """Return these columns side by side; a single one is not copied."""
    columns, kind = [], pa.null()
    try:
        for name in names:
            values, kind = batch.column(name), batch.schema.field(name).type
            columns.append(from_dlpack(convert(values.dictionary_decode() if pa.types.is_dictionary(kind) else values)))
    except (pa.ArrowException, TypeError):
        raise InputError(f"Expected numbers in column {name!r} but its type is {kind}.") from None
    return torch.stack(columns, 1) if len(columns) > 1 else columns[0][:, None]


def _numbered(values: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Return the place of each value among these names; missing where it is none of them."""
    return pc.index_in(pc.utf8_trim_whitespace(values.cast(pa.string())), pa.array(names))


def _scores(values: pa.Array) -> pa.Array:
    """Return scores as floats, none of them missing."""
    values = _parsed(values)
    if values.type not in (pa.float32(), pa.float64()):
        values = values.cast(pa.float32() if values.type == pa.float16() else pa.float64(), safe=False)
    return values.fill_null(math.nan) if values.null_count else values


def _parsed(values: pa.Array) -> pa.Array:
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
