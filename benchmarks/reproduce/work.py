"""Runs that are still to be made, in portions for a few processes."""

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
    """Return how many runs a cell gets: one without chance, a few where each needs a new fit, fewer of large data."""
    large = "cover" in cell.data
    if cell.ratio:
        return min(runs, 2 if large else 5)
    if cell.setting in ("EQ", "SA"):
        return 1
    return min(runs, max(runs // 4, 3)) if large else runs


def portions(cells: Iterable[Cell], runs: int, done: Collection[tuple[Cell, int]]) -> list[Portion]:
    """Return what is left to do, a few seconds to a minute each."""
    found: dict[tuple[object, ...], Portion] = {}
    for cell in cells:
        for run in range(runs_of(cell, runs)):
            if (cell, run) in done:
                continue
            scores = ScoresKey(cell.data, cell.classifier, cell.ratio, run if cell.ratio else 0)
            key = (scores, cell.setting, cell.epsilon, None if cell.ratio else cell.quantiles)
            portion = found.setdefault(key, Portion(scores, cell.setting, cell.epsilon))
            portion.draws[_Draw(cell.quantiles, run)].append(cell.reading)
    for portion in found.values():
        portion.draws = dict(portion.draws)  # a factory does not travel to another process
    return list(found.values())


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
        made = estimates(exact, portion.setting, quantiles, portion.epsilon, readings)
        for reading, curves in made.items():
            cell = Cell(
                data, classifier, ratio, portion.setting, portion.epsilon, quantiles, reading
            )
            errors = exact.errors(curves)
            rows.append(Row(cell, run, tuple(errors[name] for name in MEASURES)))
    return rows
