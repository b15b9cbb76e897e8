"""The paper's conclusions, as ratios of one estimate's Area Error to another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


def _is_plain(cell: Cell) -> bool:
    return cell.reading == "pchip" and not cell.ratio


def _is_exact(cell: Cell) -> bool:
    return _is_plain(cell) and cell.setting == "SA"


def _is_noisy(cell: Cell) -> bool:
    return _is_plain(cell) and cell.epsilon != NO_NOISE


class _Comparison(NamedTuple):
    """Two estimates of the same data."""

    name: str
    is_first: Callable[[Cell], bool]
    """Whether a cell is one of the first estimate."""
    second: dict[str, str]
    """The fields of a cell that differ in the second estimate."""


_COMPARISONS = (
    _Comparison(
        "PCHIP over linear, SA",
        _is_exact,
        {"reading": "linear"},
    ),
    _Comparison(
        "PCHIP over linear, DDP",
        lambda cell: _is_plain(cell) and cell.setting == "DDP",
        {"reading": "linear"},
    ),
    _Comparison(
        "SA over EQ, Adult and Bank",
        lambda cell: _is_exact(cell) and "cover" not in cell.data,
        {"setting": "EQ"},
    ),
    _Comparison(
        "SA over EQ, Cover or its stand-in",
        lambda cell: _is_exact(cell) and "cover" in cell.data,
        {"setting": "EQ"},
    ),
    _Comparison(
        "separate over combine",
        _is_plain,
        {"reading": "combine"},
    ),
    _Comparison(
        "quantile over range (l2), Q < 100",
        lambda cell: _is_noisy(cell) and cell.quantiles < 100,
        {"setting": "range", "reading": "l2"},
    ),
    _Comparison(
        "quantile over range (l2), Q > 100",
        lambda cell: _is_noisy(cell) and cell.quantiles > 100,
        {"setting": "range", "reading": "l2"},
    ),
    _Comparison(
        "range, l1 over l2",
        lambda cell: cell.setting == "range" and cell.reading == "l1",
        {"reading": "l2"},
    ),
)


def claims(means: Mapping[Cell, Means]) -> Iterator[Claim]:
    """Yield each comparison for ROC and for PR, if there are cells for it."""
    for comparison in _COMPARISONS:
        for curve in ("roc", "pr"):
            ratios = _ratios(comparison, means, f"area_error_{curve}")
            if len(ratios):
                yield Claim(
                    name=comparison.name,
                    curve=curve.upper(),
                    better=int((ratios < 1).sum()),
                    cells=len(ratios),
                    ratio=float(np.exp(np.log(ratios).mean())),
                )


def _ratios(
    comparison: _Comparison, means: Mapping[Cell, Means], measure: str
) -> NDArray[np.float64]:
    """Return the first estimate's error over the second's, for all cells that have both."""
    ratios = []
    for cell, first in means.items():
        twin: Any = cell._replace(**comparison.second)  # type: ignore[arg-type]
        if comparison.is_first(cell) and twin in means:
            ratios.append(first.of(measure)[0] / means[twin].of(measure)[0])
    array: NDArray[np.float64] = np.array(ratios)
    return array[~np.isnan(array)]
