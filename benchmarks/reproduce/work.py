"""The missing runs, in portions for a few processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import torch

from benchmarks.reproduce.cells import Cell, Reading, Setting
from benchmarks.reproduce.errors import MEASURES
from benchmarks.reproduce.estimate import estimates
from benchmarks.reproduce.results import Row
from benchmarks.reproduce.scores import Folders, ScoresKey, truth

__all__ = ["Portion", "perform", "portions", "runs_of"]


class _Draw(NamedTuple):
    quantiles: int
    run: int


@dataclass
class Portion:
    """Runs of one setting on the same scores; all readings of a draw read the same noise."""

    scores: ScoresKey
    setting: Setting
    epsilon: float
    draws: dict[_Draw, list[Reading]] = field(default_factory=lambda: defaultdict(list))


def runs_of(cell: Cell, runs: int) -> int:
    """Return the number of runs of a cell.

    A cell without chance has one run. If each run needs a new fit, there are a few; large data has
    fewer.
    """
    is_large = "cover" in cell.data
    if cell.ratio:
        return min(runs, 2 if is_large else 5)
    if cell.setting in ("EQ", "SA"):
        return 1
    if is_large:
        return min(runs, max(runs // 4, 3))
    return runs


def portions(cells: Iterable[Cell], runs: int, done: Collection[tuple[Cell, int]]) -> list[Portion]:
    """Return the missing runs, in portions of a few seconds to a minute each."""
    missing: dict[tuple[object, ...], Portion] = {}
    for cell in cells:
        for run in range(runs_of(cell, runs)):
            if (cell, run) in done:
                continue
            scores = ScoresKey(cell.data, cell.classifier)
            key: tuple[object, ...] = (scores, cell.setting, cell.epsilon, cell.quantiles)
            if cell.ratio:  # a fit of its own for each run, which serves every Q
                scores = ScoresKey(cell.data, cell.classifier, cell.ratio, run)
                key = (scores, cell.setting, cell.epsilon)
            portion = missing.setdefault(key, Portion(scores, cell.setting, cell.epsilon))
            portion.draws[_Draw(cell.quantiles, run)].append(cell.reading)
    for portion in missing.values():
        portion.draws = dict(portion.draws)  # a factory does not travel to another process
    return list(missing.values())


def perform(work: list[Portion], folders: Folders, processes: int) -> Iterator[list[Row]]:
    """Yield the rows of each portion as it is finished, in any order."""
    task = partial(_rows, folders=folders)
    if processes <= 1 or len(work) <= 1:
        yield from map(task, work)
        return
    with get_context("spawn").Pool(processes, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(task, work)


def _rows(portion: Portion, folders: Folders) -> list[Row]:
    exact = truth(portion.scores, folders)
    data, classifier, ratio, _ = portion.scores
    rows = []
    for (quantiles, run), readings in portion.draws.items():
        curves_by_reading = estimates(exact, portion.setting, quantiles, portion.epsilon, readings)
        for reading, curves in curves_by_reading.items():
            cell = Cell(
                data=data,
                classifier=classifier,
                ratio=ratio,
                setting=portion.setting,
                epsilon=portion.epsilon,
                quantiles=quantiles,
                reading=reading,
            )
            errors = exact.errors(curves)
            rows.append(Row(cell, run, tuple(errors[name] for name in MEASURES)))
    return rows
