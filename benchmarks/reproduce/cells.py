"""The cells of each of the paper's experiments: estimates whose errors are averaged over runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Literal, NamedTuple

__all__ = [
    "CLASSIFIERS",
    "EPSILONS",
    "EXPERIMENTS",
    "NO_NOISE",
    "QUANTILES",
    "RATIOS",
    "Cell",
    "Experiment",
    "Reading",
    "Setting",
    "cells",
    "noisy",
]

Experiment = Literal["interpolation", "epsilon", "strategy", "range", "imbalance"]
Setting = Literal["EQ", "SA", "DDP", "range"]
"""Exact quantiles, exact sums (secure aggregation), distributed noise, and noisy range queries."""
Reading = Literal["pchip", "linear", "combine", "l1", "l2"]
"""How a release is read: interpolation, strategy of precision, or norm of smoothed ranges."""

EXPERIMENTS: tuple[Experiment, ...] = ("interpolation", "epsilon", "strategy", "range", "imbalance")
CLASSIFIERS = ("XGBClassifier", "LogisticRegression")
QUANTILES = tuple(2**power for power in range(2, 11))
"""The paper's Q."""
EPSILONS = (0.1, 0.3, 1.0)
RATIOS = (0.01, 0.05, 0.1)
"""Positives per negative, in the experiment on imbalance."""
NO_NOISE = float("inf")
"""The epsilon of a cell without noise."""


class Cell(NamedTuple):
    """One estimate whose error is averaged over runs."""

    data: str
    classifier: str
    ratio: str
    """Positives per negative, subsampled to it; empty for the data as it is."""
    setting: Setting
    epsilon: float
    quantiles: int
    reading: Reading


def noisy(data: str) -> float:
    """Return the epsilon at which the paper compares estimators: smaller for the large set."""
    if "cover" in data:
        return 0.3
    return 1.0


def cells(
    data: Iterable[str], experiments: Iterable[Experiment], quantiles: Iterable[int] = QUANTILES
) -> Iterator[Cell]:
    """Yield every cell of the experiments once, cells of the same scores and noise together."""
    selection = set(experiments)
    for name, classifier in product(data, CLASSIFIERS):
        for setting, epsilon, ratio in _settings(name):
            is_compared = setting == "SA" or epsilon == noisy(name)
            readings = _readings(selection, setting, ratio, is_compared)
            for count, reading in product(quantiles, readings):
                yield Cell(name, classifier, ratio, setting, epsilon, count, reading)


def _settings(data: str) -> Iterator[tuple[Setting, float, str]]:
    """Yield setting, epsilon and ratio."""
    yield "EQ", NO_NOISE, ""
    yield "SA", NO_NOISE, ""
    for epsilon in EPSILONS:
        yield "DDP", epsilon, ""
    for epsilon in EPSILONS:
        yield "range", epsilon, ""
    for ratio in RATIOS:
        yield "SA", NO_NOISE, f"{ratio}"


def _readings(
    selection: set[Experiment], setting: Setting, ratio: str, is_compared: bool
) -> list[Reading]:
    """Return the readings of one setting that the selected experiments need.

    Estimators are compared without noise, and at one epsilon of each data set.
    """
    readings: list[Reading] = []
    if ratio:
        if "imbalance" in selection:
            readings = ["pchip"]
    elif setting == "range":
        if "range" in selection:
            readings = ["l1", "l2"]
    elif setting == "EQ":
        if "epsilon" in selection:
            readings = ["pchip"]
    else:
        if "epsilon" in selection or (is_compared and selection - {"imbalance"}):
            readings.append("pchip")
        if is_compared and "interpolation" in selection:
            readings.append("linear")
        if is_compared and "strategy" in selection:
            readings.append("combine")
    return readings
