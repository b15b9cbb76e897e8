"""Tables: Arrow record batches into counts, from files, pandas, Polars, DuckDB, Ray Data or Spark. Extra ``tables``."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
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

_AS_THEY_ARE = pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.float32(), pa.float64()


class Counted(NamedTuple):
    """How many rows were counted, and how many were left out because they could not be."""

    rows: int
    skipped: int

    def check(self, most_skipped: float) -> None:
        """Raise if no row was counted, or if more than this fraction of the rows was left out.

        The error names no numbers: they are data, and an error may travel further than its table.
        """
        if not 0 <= most_skipped <= 1:
            raise InputError(
                f"Expected argument `most_skipped` to be a fraction from 0 to 1 but got {most_skipped}."
            )
        if not self.rows:
            raise InputError(
                "Cannot count: no row of the table can be counted. Check the file and the names of its columns."
            )
        if self.skipped > most_skipped * (self.rows + self.skipped):
            raise InputError(
                f"Cannot count: more than {most_skipped:.3g} of the rows are bad. Correct the table, or allow more "
                "with `most_skipped` (--most-skipped)."
            )


def count_table(
    metric: FederatedMetric, table: Any, *, most_skipped: float = MOST_SKIPPED, **columns: Any
) -> Counted:
    """Count a table in the metric, batch by batch, and return how many rows. A table that is refused changes nothing.

    Args:
        metric: what counts, as with ``update``.
        table: anything with Arrow's C stream (a DataFrame of pandas or Polars, a relation of DuckDB, a Table or a
            RecordBatchReader), an iterable of such, or the path of a file that ends in ``.csv``, ``.tsv`` (or with
            ``.gz`` after it), ``.parquet``, ``.arrow`` or ``.feather``.
        most_skipped: fraction of rows that ``skip_bad`` may leave out. A table with more bad rows, or without any row
            to count, is refused.
        columns: which of its columns hold what, as in :meth:`PartialCounts.of`.

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
        counted = PartialCounts.of(metric, **columns).count(metric, table)
        counted.check(most_skipped)
    return counted


def merge_counts(
    metric: FederatedMetric, parts: Any, *, most_skipped: float = MOST_SKIPPED
) -> Counted:
    """Add what :class:`PartialCounts` made of parts of a table, in whatever order, and return how many rows.

    Args:
        metric: the metric that the parts were counted for.
        parts: a table of them, as Ray Data and Spark collect it, or an iterable of such.
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
        counted = _merged(metric, parts)
        counted.check(most_skipped)
    return counted


def _merged(metric: FederatedMetric, parts: Any) -> Counted:
    """Add parts to the metric, all of them or, if one is refused, none."""
    total = torch.zeros_like(metric.counts, device="cpu")
    rows = 0
    skipped = 0
    for batch in batches.batches_of(parts):
        for part in batch.to_pylist():
            if part["spec"] != metric.spec.digest:
                raise InputError(
                    "Expected parts that were counted for this metric but got others. Count them again."
                )
            counts = torch.frombuffer(bytearray(part["counts"]), dtype=torch.int64)
            total += counts.reshape(total.shape)
            rows += part["rows"]
            skipped += part["skipped"]
    add_counts(metric, total)
    return Counted(rows, skipped)


@dataclass(frozen=True)
class PartialCounts:
    """Turns a part of a table into one row of exact counts, in whatever process: what an engine sends to its workers.

    Make it with :meth:`of`. It holds no data, no ledger and no noise. What it returns is raw: it stays with the client
    whose table it is, and what leaves is the share or the release of the metric that :func:`merge_counts` adds it to.

    Example:
        >>> import pyarrow
        >>> from torchmetrics_fed import FederatedAUROC
        >>> table = pyarrow.table({"score": [0.1, 0.8, 0.7], "label": [0, 1, 0]})
        >>> metric = FederatedAUROC()
        >>> part = PartialCounts.of(metric)  # on workers: dataset.map_batches(part, batch_format="pyarrow")
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
        """Return what counts parts of a table for this metric.

        Args:
            metric: it is not changed.
            score: the column of scores; of several classes or labels one each.
            label: the column of labels; of a multilabel task one each. It holds 0, 1, ..., or the metric's ``labels``.
            group: the column with the names of groups, of a metric that has ``groups``.
            person: the column of persons' ids, of whom :meth:`count` counts ``examples_per_person`` at most.
            delimiter: of CSV files; in those that end in ``.tsv`` it is a tab.
            skip_bad: whether to leave out rows with missing, unknown or impossible values instead of raising.
        """
        spec = metric.spec
        score, label = (
            (names,) if isinstance(names, str) else tuple(names) for names in (score, label)
        )
        needed = spec.classes, spec.classes if spec.task == "multilabel" else 1
        if (len(score), len(label)) != needed:
            raise InputError(
                f"Expected {needed[0]} `score` and {needed[1]} `label` columns for task={spec.task!r} but got "
                f"{len(score)} and {len(label)}. Name one for each class or label."
            )
        return cls(
            spec,
            spec.rules(),
            score=score,
            label=label,
            group=(group,) if spec.groups else (),
            person=() if person is None else (person,),
            delimiter=delimiter,
            skip_bad=skip_bad,
        )

    def __call__(self, table: Any) -> pa.Table:
        """Return one row: the counts of all rows of ``table``, how many there were, and how many were left out."""
        if self.person:
            raise InputError(
                "Expected no `person` where parts of a table are counted apart: one that is in two parts would be "
                "counted too often. Use `count`, or divide the table by person and count each part in a metric."
            )
        counts = self.spec.empty_counts()

        def add(preds: Tensor, target: Tensor, groups: Tensor | None, _: Any) -> None:
            nonlocal counts
            counts = self.spec.grid.add(counts, preds, target, self.rules, group=groups)

        counted = self._each(table, add)
        row = {"spec": self.spec.digest, "counts": counts.numpy().tobytes(), **counted._asdict()}
        return pa.table({name: [value] for name, value in row.items()})

    def count(self, metric: FederatedMetric, table: Any) -> Counted:
        """Count a table in the metric, however many rows are left out, and return how many rows."""
        if not self.person:
            return _merged(metric, self(table))

        def add(preds: Tensor, target: Tensor, groups: Tensor | None, persons: Any) -> None:
            metric.update(preds, target, groups, persons=persons)

        with all_or_nothing(metric):
            return self._each(table, add)

    def read(self, path: str | PathLike[str]) -> Generator[pa.RecordBatch, None, None]:
        """Give the columns of a file in batches of bounded size. Close the generator after use."""
        return batches.read_file(Path(path), self._names, self.delimiter, self.skip_bad)

    def _each(self, table: Any, add: Any) -> Counted:
        """Add every batch of a table, and return how many rows."""
        if isinstance(table, str | PathLike):
            with closing(self.read(table)) as file:  # also where a row is refused
                return self._each(file, add)
        rows = 0
        skipped = 0
        for batch in batches.batches_of(table):
            bad = self._add(add, batch, rows + skipped)
            rows += batch.num_rows - bad
            skipped += bad
        return Counted(rows, skipped)

    def _add(self, add: Any, batch: pa.RecordBatch, start: int) -> int:
        """Add a batch, and return how many of its rows were bad."""
        names, task = batches.checked_names(self._names, batch.schema.names), self.spec.task
        preds = batches.matrix(batch, self.score, batches.scores_of)
        target = batches.matrix(batch, self.label, self._labels)
        group = batches.matrix(batch, self.group, self._groups) if self.group else target[:, :0]
        ids = batches.person_ids(batch, self.person[0]) if self.person else None
        persons = None if ids is None else ids.to_numpy(zero_copy_only=False)

        def some(rows: Any) -> None:
            scores = preds[rows, 0] if task == "binary" else preds[rows]
            labels = target[rows] if task == "multilabel" else target[rows, 0]
            add(
                scores,
                labels,
                group[rows, 0] if self.group else None,
                None if persons is None else persons[rows],
            )

        try:
            some(slice(None))
            return 0
        except InputError:
            fine = torch.cat([self._fine(preds, target), group >= 0], 1)
            if ids is not None:
                fine = torch.cat([fine, torch.tensor(ids.is_valid().to_pylist())[:, None]], 1)
            bad = ~fine.all(1)
            if not bool(bad.any()):
                raise
        if self.skip_bad:
            some(~bad)
            return int(bad.sum())
        row = int(bad.int().argmax())
        name = names[int((~fine[row]).int().argmax())]
        scores = (
            "finite logits"
            if self.rules.normalization
            else f"scores in {list(self.spec.grid.score_range)}"
        )
        expected = {
            self.score: scores,
            self.label: f"labels {list(self.spec.labels or [f'from 0 to {self._highest}'])}",
            self.group: f"groups {list(self.spec.groups)}",
            self.person: "persons' ids",
        }[next(kind for kind in (self.score, self.label, self.group, self.person) if name in kind)]
        fault = "holds something else" if batch.column(name)[row].is_valid else "is missing"
        raise InputError(
            f"Expected {expected} but row {start + row + 1}, column {name!r}, {fault}. {batches.OR_SKIP}"
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self.score, *self.label, *self.group, *self.person)

    @property
    def _highest(self) -> int:
        return self.spec.classes - 1 if self.spec.task == "multiclass" else 1

    def _labels(self, values: pa.Array) -> pa.Array:
        """Return labels as numbers, none of them missing."""
        if self.spec.labels:
            values = batches.numbered(values, self.spec.labels)
        values = batches.parsed(values)
        if values.null_count or values.type not in _AS_THEY_ARE:
            values = values.cast(pa.float64(), safe=False).fill_null(math.nan)
        return values

    def _groups(self, values: pa.Array) -> pa.Array:
        return batches.numbered(values, self.spec.groups).fill_null(-1)

    def _fine(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return which values of these rows can be counted, for every column."""
        (low, high), ignore_index = self.spec.grid.score_range, self.rules.ignore_index
        scores, labels = preds.double(), target.double()
        fine = scores.isfinite() if self.rules.normalization else (scores >= low) & (scores <= high)
        ignored = labels == (math.nan if ignore_index is None else ignore_index)
        known = (labels >= 0) & (labels <= self._highest) & (labels == labels.floor())
        return torch.cat([fine | ignored, known | ignored], 1)
