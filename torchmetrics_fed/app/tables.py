"""Tables: Arrow record batches into counts, from files, pandas, Polars, DuckDB, Ray Data or Spark.

- The counts are those of the same rows as tensors, to the bit, however the table is split.
- A table that is refused changes nothing: neither counts nor persons.
- An error names the row and the column, and never a value: values are data.

Needs the extra ``tables``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from torchmetrics_fed.app import batches
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric, all_or_nothing
from torchmetrics_fed.metrics.counts import add_counts
from torchmetrics_fed.release import Spec

__all__ = ["PartialCounts", "count_table", "merge_counts"]

MOST_SKIPPED = 0.05
"""Fraction of bad rows above which a table is refused: more is a sign of a wrong column or unit."""

_LABEL_TYPES = (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.float32(),
    pa.float64(),
)
"""Types of labels that are counted as they are. Labels of other types become float64."""


class Counted(NamedTuple):
    """The number of rows that were counted, and of bad rows that were left out."""

    rows: int
    skipped: int

    def check(self, most_skipped: float) -> None:
        """Raise if no row was counted, or if more than this fraction of the rows was left out.

        The error names no numbers: they are data, and an error may travel further than its table.
        """
        if not 0 <= most_skipped <= 1:
            raise InputError(
                "Expected argument `most_skipped` to be a fraction from 0 to 1 but got "
                f"{most_skipped}."
            )
        if not self.rows:
            raise InputError(
                "Cannot count: no row of the table can be counted. Check the file and the names of "
                "its columns."
            )
        if self.skipped > most_skipped * (self.rows + self.skipped):
            raise InputError(
                f"Cannot count: more than {most_skipped:.3g} of the rows are bad. Correct the "
                "table, or allow more with `most_skipped` (--most-skipped)."
            )


def count_table(
    metric: FederatedMetric, table: Any, *, most_skipped: float = MOST_SKIPPED, **columns: Any
) -> Counted:
    """Count a table in the metric, batch by batch, and return the number of rows.

    A table that is refused changes nothing.

    Args:
        metric: counts the rows, as with ``update``.
        table: an object with Arrow's C stream (a DataFrame of pandas or Polars, a relation of
            DuckDB, a Table or a RecordBatchReader), an iterable of such objects, or the path of a
            file that ends in ``.csv``, ``.tsv`` (or with ``.gz`` after it), ``.parquet``,
            ``.arrow`` or ``.feather``.
        most_skipped: fraction of rows that ``skip_bad`` may leave out. A table with more bad rows,
            or without any row to count, is refused.
        columns: the names of its columns and how to read them, as in :meth:`PartialCounts.of`.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> table = pyarrow.table({"p": [0.1, 0.8, 0.7], "y": ["no", "yes", None]})
        >>> metric = FederatedAUROC(labels=["no", "yes"])
        >>> count_table(metric, table, score="p", label="y", skip_bad=True, most_skipped=0.5)
        Counted(rows=2, skipped=1)
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """
    with all_or_nothing(metric):
        result = PartialCounts.of(metric, **columns).count(metric, table)
        result.check(most_skipped)
    return result


def merge_counts(
    metric: FederatedMetric, parts: Any, *, most_skipped: float = MOST_SKIPPED
) -> Counted:
    """Add the counts of parts of a table, in whatever order, and return the number of rows.

    Args:
        metric: the metric that the parts were counted for.
        parts: a table of rows that :class:`PartialCounts` made, as Ray Data and Spark collect it,
            or an iterable of such tables.
        most_skipped: as in :func:`count_table`, of all parts together.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> part = PartialCounts.of(metric)
        >>> merge_counts(metric, [part(pyarrow.table({"score": [0.1, 0.8], "label": [0, 1]}))])
        Counted(rows=2, skipped=0)
    """
    with all_or_nothing(metric):
        result = _merge(metric, parts)
        result.check(most_skipped)
    return result


def _merge(metric: FederatedMetric, parts: Any) -> Counted:
    """Add all parts to the metric; if a part is refused, none."""
    total = torch.zeros_like(metric.counts, device="cpu")
    rows = 0
    skipped = 0
    for batch in batches.batches_of(parts):
        for part in batch.to_pylist():
            if part["spec"] != metric.spec.digest:
                raise InputError(
                    "Expected parts that were counted for this metric but got others. Count them "
                    "again."
                )
            counts = torch.frombuffer(bytearray(part["counts"]), dtype=torch.int64)
            total += counts.reshape(total.shape)
            rows += part["rows"]
            skipped += part["skipped"]
    add_counts(metric, total)
    return Counted(rows, skipped)


class _Examples(NamedTuple):
    """Examples as arguments of ``update``."""

    preds: Tensor
    target: Tensor
    groups: Tensor | None
    persons: Any


_Count = Callable[[_Examples], None]
"""Counts examples, all of them or, with an InputError, none."""


@dataclass(frozen=True)
class PartialCounts:
    """Turns a part of a table into one row of exact counts, on any worker of an engine.

    Make it with :meth:`of`. It holds no data, no ledger and no noise. The row that it returns is
    raw: it stays with the client whose table it is. The share or the release of the metric that
    :func:`merge_counts` adds it to may leave.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> table = pyarrow.table({"score": [0.1, 0.8, 0.7], "label": [0, 1, 0]})
        >>> metric = FederatedAUROC()
        >>> part = PartialCounts.of(metric)  # dataset.map_batches(part, batch_format="pyarrow")
        >>> merge_counts(metric, [part(table[:2]), part(table[2:])])
        Counted(rows=3, skipped=0)
    """

    spec: Spec
    rules: Rules
    score: tuple[str, ...]
    label: tuple[str, ...]
    group: tuple[str, ...]
    person: tuple[str, ...]
    delimiter: str
    skip_bad: bool

    @classmethod
    def of(
        cls,
        metric: FederatedMetric,
        *,
        score: str | Sequence[str] = "score",
        label: str | Sequence[str] = "label",
        group: str = "group",
        person: str | None = None,
        delimiter: str = ",",
        skip_bad: bool = False,
    ) -> PartialCounts:
        """Return the counter of parts of a table for this metric.

        Args:
            metric: it is not changed.
            score: the column of scores; for several classes or labels one column each.
            label: the column of labels; for a multilabel task one column each. It holds 0, 1, ...,
                or the metric's ``labels``.
            group: the column with the names of groups, for a metric that has ``groups``.
            person: the column with the ids of persons, for whom :meth:`count` counts at most
                ``examples_per_person`` examples.
            delimiter: between the columns of CSV files; in files that end in ``.tsv`` it is a tab.
            skip_bad: whether to leave out rows with missing, unknown or impossible values instead
                of raising.
        """
        spec = metric.spec
        scores = _names(score)
        labels = _names(label)
        score_columns = spec.classes
        label_columns = spec.classes if spec.task == "multilabel" else 1
        if len(scores) != score_columns or len(labels) != label_columns:
            raise InputError(
                f"Expected {score_columns} `score` and {label_columns} `label` columns for "
                f"task={spec.task!r} but got {len(scores)} and {len(labels)}. Name one for each "
                "class or label."
            )
        return cls(
            spec,
            spec.rules(),
            score=scores,
            label=labels,
            group=_names(group) if spec.groups else (),
            person=() if person is None else _names(person),
            delimiter=delimiter,
            skip_bad=skip_bad,
        )

    def __call__(self, table: Any) -> pa.Table:
        """Return one row: the counts of a table, and the numbers of its good and bad rows."""
        if self.person:
            raise InputError(
                "Expected no `person` where parts of a table are counted apart: a person who is in "
                "two parts would be counted too often. Use `count`, or divide the table by person "
                "and count each part in a metric."
            )
        total = _Total(self.spec, self.rules)
        result = self._count_batches(table, total.add)
        row = {
            "spec": self.spec.digest,
            "counts": total.counts.numpy().tobytes(),
            "rows": result.rows,
            "skipped": result.skipped,
        }
        return pa.table({name: [value] for name, value in row.items()})

    def count(self, metric: FederatedMetric, table: Any) -> Counted:
        """Count a table in the metric, whatever the number of bad rows, and return the numbers."""
        if not self.person:
            return _merge(metric, self(table))
        with all_or_nothing(metric):
            return self._count_batches(table, partial(_update, metric))

    def read(self, path: str | PathLike[str]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the columns of a file in batches of bounded size. Close the generator after use."""
        return batches.read_file(
            Path(path), self._columns, delimiter=self.delimiter, skip_bad=self.skip_bad
        )

    @property
    def _columns(self) -> tuple[str, ...]:
        """The names of all columns that are read."""
        return (*self.score, *self.label, *self.group, *self.person)

    @property
    def _highest_label(self) -> int:
        return self.spec.classes - 1 if self.spec.task == "multiclass" else 1

    def _count_batches(self, table: Any, count: _Count) -> Counted:
        """Count every batch of a table, and return the numbers of rows."""
        if isinstance(table, str | PathLike):
            with closing(self.read(table)) as file_batches:  # also where a row is refused
                return self._count_batches(file_batches, count)
        rows = 0
        skipped = 0
        for batch in batches.batches_of(table):
            bad_rows = self._count_batch(batch, count, first_row=rows + skipped + 1)
            rows += batch.num_rows - bad_rows
            skipped += bad_rows
        return Counted(rows, skipped)

    def _count_batch(self, batch: pa.RecordBatch, count: _Count, *, first_row: int) -> int:
        """Count the good rows of a batch, and return the number of bad rows; raise for a bad row.

        Args:
            batch: the rows.
            count: counts examples.
            first_row: the number of the first row in the table, from 1.
        """
        batches.check_columns(self._columns, batch.schema.names)
        tensors = self._tensors(batch)
        try:
            count(self._examples(tensors, slice(None)))
            return 0
        except InputError:
            valid = self._valid_values(tensors)
            is_bad = ~valid.all(1)
            if not bool(is_bad.any()):  # the rows are good: the call is refused
                raise
        if self.skip_bad:
            count(self._examples(tensors, ~is_bad))
            return int(is_bad.sum())
        row = int(is_bad.int().argmax())
        column = self._columns[int((~valid[row]).int().argmax())]
        fault = "holds something else" if batch.column(column)[row].is_valid else "is missing"
        raise InputError(
            f"Expected {self._description(column)} but row {first_row + row}, column {column!r}, "
            f"{fault}. {batches.SKIP_ADVICE}"
        )

    def _tensors(self, batch: pa.RecordBatch) -> _Tensors:
        """Return the columns of a batch."""
        preds = batches.matrix(batch, self.score, batches.scores_of)
        target = batches.matrix(batch, self.label, self._label_numbers)
        group = target[:, :0]
        if self.group:
            group = batches.matrix(batch, self.group, self._group_numbers)
        persons = None
        if self.person:
            persons = batches.person_ids(batch, self.person[0])
        return _Tensors(preds=preds, target=target, group=group, persons=persons)

    def _examples(self, tensors: _Tensors, rows: slice | Tensor) -> _Examples:
        """Return rows in the shapes that ``update`` takes."""
        task = self.spec.task
        preds = tensors.preds[rows]
        target = tensors.target[rows]
        groups = None
        persons = None
        if self.group:
            groups = tensors.group[rows, 0]
        if tensors.persons is not None:
            persons = tensors.persons.to_numpy(zero_copy_only=False)[rows]
        return _Examples(
            preds[:, 0] if task == "binary" else preds,
            target if task == "multilabel" else target[:, 0],
            groups,
            persons,
        )

    def _valid_values(self, tensors: _Tensors) -> Tensor:
        """Return which values can be counted, ``(rows, columns)``, in the order of the columns."""
        scores = tensors.preds.double()
        labels = tensors.target.double()
        if self.rules.normalization:
            valid_scores = scores.isfinite()
        else:
            low, high = self.spec.grid.score_range
            valid_scores = (scores >= low) & (scores <= high)
        is_integer = labels == labels.floor()
        valid_labels = (labels >= 0) & (labels <= self._highest_label) & is_integer
        ignored = torch.zeros_like(valid_labels)
        if self.rules.ignore_index is not None:
            ignored = labels == self.rules.ignore_index
        valid = [valid_scores | ignored, valid_labels | ignored, tensors.group >= 0]
        if tensors.persons is not None:
            has_id = torch.tensor(tensors.persons.is_valid().to_pylist())
            valid.append(has_id[:, None])
        return torch.cat(valid, 1)

    def _description(self, column: str) -> str:
        """Return the values that a column may hold, in words."""
        if column in self.score:
            if self.rules.normalization:
                return "finite logits"
            return f"scores in {list(self.spec.grid.score_range)}"
        if column in self.label:
            labels = list(self.spec.labels or [f"from 0 to {self._highest_label}"])
            return f"labels {labels}"
        if column in self.group:
            return f"groups {list(self.spec.groups)}"
        return "persons' ids"

    def _label_numbers(self, values: pa.Array) -> pa.Array:
        """Return labels as numbers, NaN where they are missing."""
        if self.spec.labels:
            values = batches.numbered(values, self.spec.labels)
        values = batches.parsed(values)
        if values.null_count or values.type not in _LABEL_TYPES:
            values = values.cast(pa.float64(), safe=False).fill_null(math.nan)
        return values

    def _group_numbers(self, values: pa.Array) -> pa.Array:
        """Return groups as numbers, -1 where they are missing or unknown."""
        return batches.numbered(values, self.spec.groups).fill_null(-1)


class _Tensors(NamedTuple):
    """The columns of a batch."""

    preds: Tensor
    """``(rows, columns)``"""
    target: Tensor
    """``(rows, columns)``"""
    group: Tensor
    """``(rows, 1)``, or ``(rows, 0)`` for a metric without groups."""
    persons: pa.Array | None
    """Ids as texts, missing where there is none."""


class _Total:
    """Adds up the counts of examples."""

    def __init__(self, spec: Spec, rules: Rules) -> None:
        self._grid = spec.grid
        self._rules = rules
        self.counts = spec.empty_counts()

    def add(self, examples: _Examples) -> None:
        self.counts = self._grid.add(
            self.counts,
            examples.preds,
            examples.target,
            self._rules,
            group=examples.groups,
        )


def _update(metric: FederatedMetric, examples: _Examples) -> None:
    metric.update(examples.preds, examples.target, examples.groups, persons=examples.persons)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(names)
