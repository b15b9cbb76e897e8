"""Runs in a CSV file that a later call continues, and the means of their cells."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.cells import Cell
from benchmarks.reproduce.errors import MEASURES

__all__ = ["Means", "Row", "Runs", "write_cells"]

_COLUMNS = (*Cell._fields, "run", *MEASURES)


class Row(NamedTuple):
    """The errors of one run of a cell, in the order of MEASURES."""

    cell: Cell
    run: int
    errors: tuple[float, ...]


class Means(NamedTuple):
    """Means and standard errors over the runs of a cell, in the order of MEASURES."""

    mean: NDArray[np.float64]
    se: NDArray[np.float64]
    runs: int

    def of(self, measure: str) -> tuple[float, float]:
        """Return mean and standard error of one measure."""
        index = MEASURES.index(measure)
        return float(self.mean[index]), float(self.se[index])


class Runs:
    """The rows in ``path``. Added rows are written at once, so that no finished run is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[Cell, int], tuple[float, ...]] = {}
        if path.exists():
            with open(path, newline="") as file:
                for record in csv.reader(file):
                    if len(record) == len(_COLUMNS) and record[0] != _COLUMNS[0]:
                        row = _parsed(record)
                        self.rows[row.cell, row.run] = row.errors
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:  # an interrupted call may have left half a row
            csv.writer(file).writerow(_COLUMNS)
        self._append(Row(cell, run, errors) for (cell, run), errors in self.rows.items())

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows of finished runs."""
        finished = list(rows)
        self._append(finished)
        for row in finished:
            self.rows[row.cell, row.run] = row.errors

    def means(self) -> dict[Cell, Means]:
        """Return each cell's mean over its runs, with its standard error (NaN for a single run)."""
        grouped = defaultdict(list)
        for (cell, _), errors in self.rows.items():
            grouped[cell].append(errors)
        return {cell: _mean(np.array(errors)) for cell, errors in sorted(grouped.items())}

    def _append(self, rows: Iterable[Row]) -> None:
        with open(self.path, "a", newline="") as file:
            writer = csv.writer(file)
            for row in rows:
                errors = [f"{value:.8g}" for value in row.errors]
                writer.writerow([*row.cell, row.run, *errors])


def write_cells(path: Path, means: Mapping[Cell, Means]) -> None:
    """Write one row per cell: runs, and mean and standard error of each measure."""
    columns = []
    for name in MEASURES:
        columns += [f"{name}_mean", f"{name}_se"]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Cell._fields, "runs", *columns])
        for cell, (means_of_cell, errors, runs) in means.items():
            values = []
            for mean, se in zip(means_of_cell, errors, strict=True):
                values += [f"{mean:.6g}", f"{se:.6g}"]
            writer.writerow([*cell, runs, *values])


def _mean(errors: NDArray[np.float64]) -> Means:
    runs = len(errors)
    se = np.full(errors.shape[1], np.nan)
    if runs > 1:
        se = errors.std(0, ddof=1) / np.sqrt(runs)
    return Means(errors.mean(0), se, runs)


def _parsed(record: list[str]) -> Row:
    fields: list[Any] = record
    data, classifier, ratio, setting, epsilon, quantiles, reading, run, *errors = fields
    cell = Cell(
        data=data,
        classifier=classifier,
        ratio=ratio,
        setting=setting,
        epsilon=float(epsilon),
        quantiles=int(quantiles),
        reading=reading,
    )
    return Row(cell, int(run), tuple(map(float, errors)))
