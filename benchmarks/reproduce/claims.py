"""What the paper concludes from its figures, as ratios of one estimate's Area Error to another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.reproduce.cells import NO_NOISE, Cell
from benchmarks.reproduce.results import Means

__all__ = ["Claim", "claims"]


class Claim(NamedTuple):
    """A comparison of two estimates over all cells that have both."""

    name: str
    curve: str
    better: int
    cells: int
    ratio: float
    """Geometric mean of the first one's Area Error over the second one's."""


_Twin = Callable[[Cell], Cell]
_Chosen = Callable[[Cell], bool]


def _plain(cell: Cell) -> bool:
    return cell.reading == "pchip" and not cell.ratio


_COMPARISONS: tuple[tuple[str, _Chosen, _Twin], ...] = (
    (
        "PCHIP over linear, SA",
        lambda cell: _plain(cell) and cell.setting == "SA",
        lambda cell: cell._replace(reading="linear"),
    ),
    (
        "PCHIP over linear, DDP",
        lambda cell: _plain(cell) and cell.setting == "DDP",
        lambda cell: cell._replace(reading="linear"),
    ),
    (
        "SA over EQ, Adult and Bank",
        lambda cell: _plain(cell) and cell.setting == "SA" and "cover" not in cell.data,
        lambda cell: cell._replace(setting="EQ"),
    ),
    (
        "SA over EQ, Cover or its stand-in",
        lambda cell: _plain(cell) and cell.setting == "SA" and "cover" in cell.data,
        lambda cell: cell._replace(setting="EQ"),
    ),
    ("separate over combine", _plain, lambda cell: cell._replace(reading="combine")),
    (
        "quantile over range (l2), Q < 100",
        lambda cell: _plain(cell) and cell.epsilon != NO_NOISE and cell.quantiles < 100,
        lambda cell: cell._replace(setting="range", reading="l2"),
    ),
    (
        "quantile over range (l2), Q > 100",
        lambda cell: _plain(cell) and cell.epsilon != NO_NOISE and cell.quantiles > 100,
        lambda cell: cell._replace(setting="range", reading="l2"),
    ),
    (
        "range, l1 over l2",
        lambda cell: cell.setting == "range" and cell.reading == "l1",
        lambda cell: cell._replace(reading="l2"),
    ),
)


def claims(means: Mapping[Cell, Means]) -> Iterator[Claim]:
    """Yield each comparison for ROC and for PR, where there are cells for it."""
    for name, chosen, twin in _COMPARISONS:
        pairs = [
            (found, means[twin(cell)])
            for cell, found in means.items()
            if chosen(cell) and twin(cell) in means
        ]
        for curve in ("roc", "pr"):
            measure = f"area_error_{curve}"
            ratios = np.array([one.of(measure)[0] / other.of(measure)[0] for one, other in pairs])
            ratios = ratios[~np.isnan(ratios)]
            if len(ratios):
                mean = float(np.exp(np.log(ratios).mean()))
                yield Claim(name, curve.upper(), int((ratios < 1).sum()), len(ratios), mean)
