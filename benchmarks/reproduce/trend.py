"""The growth of the PR Area Error with 1 / (Q r) as positives become few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduce.cells import Cell
from benchmarks.reproduce.results import Means

__all__ = ["Slope", "slopes"]


class Slope(NamedTuple):
    """Exponents of a power law: the least squares of log Area Error, and their standard errors."""

    name: str
    joint: tuple[float, float]
    """The exponent of 1 / (Q r)."""
    quantiles: tuple[float, float]
    """The exponent of 1 / Q, with r free."""
    ratio: tuple[float, float]
    """The exponent of 1 / r, with Q free."""


def slopes(means: Mapping[Cell, Means]) -> list[Slope]:
    """Return the exponents for each data set and classifier, and for all of them together.

    Together, each data set and classifier has a constant of its own.
    """
    groups: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for cell, cell_means in means.items():
        if cell.ratio:
            error, _ = cell_means.of("area_error_pr")
            point = (np.log(cell.quantiles), np.log(float(cell.ratio)), np.log(error))
            groups[f"{cell.data}, {cell.classifier}"].append(point)
    if not groups:
        return []
    arrays = {name: np.array(points) for name, points in groups.items()}
    results = [_slope(name, [points]) for name, points in arrays.items()]
    results.append(_slope("all", list(arrays.values())))
    return results


def _slope(name: str, groups: list[NDArray[np.float64]]) -> Slope:
    centred = np.concatenate([points - points.mean(0) for points in groups])
    quantiles = -centred[:, 0]
    ratio = -centred[:, 1]
    error = centred[:, 2]
    (joint_slope,) = _fit((quantiles + ratio)[:, None], error, len(groups))
    quantiles_slope, ratio_slope = _fit(np.stack([quantiles, ratio], 1), error, len(groups))
    return Slope(name, joint=joint_slope, quantiles=quantiles_slope, ratio=ratio_slope)


def _fit(
    x: NDArray[np.float64], y: NDArray[np.float64], constants: int
) -> list[tuple[float, float]]:
    """Return coefficients and standard errors.

    Each constant that was centred away costs one degree of freedom.
    """
    gram = np.linalg.pinv(x.T @ x)
    beta = gram @ x.T @ y
    residual = y - x @ beta
    freedom = max(len(y) - x.shape[1] - constants, 1)
    error = np.sqrt(np.diag(gram) * (residual @ residual) / freedom)
    return list(zip(beta.tolist(), error.tolist(), strict=True))
