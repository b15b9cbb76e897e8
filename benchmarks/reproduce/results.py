"""One row per run in a CSV file that a later call continues, and means with standard errors of its cells."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
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
    """What the runs of a cell say, each array in the order of MEASURES."""

    mean: NDArray[np.float64]
    se: NDArray[np.float64]
    runs: int

    def of(self, measure: str) -> tuple[float, float]:
        """Return mean and standard error of one measure."""
        index = MEASURES.index(measure)
        return float(self.mean[index]), float(self.se[index])


class Runs:
    """The rows in ``path``; those added are written at once, so that nothing done is lost."""

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
        new = list(rows)
        self._append(new)
        self.rows |= {(row.cell, row.run): row.errors for row in new}

    def means(self) -> dict[Cell, Means]:
        """Return each cell's mean over its runs, with its standard error (NaN for a single run)."""
        grouped = defaultdict(list)
        for (cell, _), errors in self.rows.items():
            grouped[cell].append(errors)
        return {cell: _mean(np.array(errors)) for cell, errors in sorted(grouped.items())}

    def _append(self, rows: Iterable[Row]) -> None:
        with open(self.path, "a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(
                [*row.cell, row.run, *(f"{value:.8g}" for value in row.errors)] for row in rows
            )


def write_cells(path: Path, means: dict[Cell, Means]) -> None:
    """Write one row per cell: runs, and mean and standard error of each measure."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                *Cell._fields,
                "runs",
                *(f"{name}_{kind}" for name in MEASURES for kind in ("mean", "se")),
            ]
        )
        for cell, (mean, se, runs) in means.items():
            pairs = (f"{value:.6g}" for pair in zip(mean, se, strict=True) for value in pair)
            writer.writerow([*cell, runs, *pairs])


def _mean(errors: NDArray[np.float64]) -> Means:
    runs = len(errors)
    se = errors.std(0, ddof=1) / np.sqrt(runs) if runs > 1 else np.full(errors.shape[1], np.nan)
    return Means(errors.mean(0), se, runs)


def _parsed(record: list[str]) -> Row:
    data, classifier, ratio, setting, epsilon, quantiles, reading, run, *errors = record
    known: Any = (setting, reading)
    cell = Cell(data, classifier, ratio, known[0], float(epsilon), int(quantiles), known[1])
    return Row(cell, int(run), tuple(map(float, errors)))
