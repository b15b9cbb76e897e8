"""What is run: the cells of each of the paper's experiments."""

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
Reading = Literal["pchip", "linear", "combine", "l1", "l2"]

EXPERIMENTS: tuple[Experiment, ...] = ("interpolation", "epsilon", "strategy", "range", "imbalance")
CLASSIFIERS = ("XGBClassifier", "LogisticRegression")
QUANTILES = tuple(2**power for power in range(2, 11))
EPSILONS = (0.1, 0.3, 1.0)
RATIOS = (0.01, 0.05, 0.1)
NO_NOISE = float("inf")


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
    """The epsilon at which the paper compares estimators on this data: a smaller one for the large set."""
    return 0.3 if "cover" in data else 1.0


def cells(
    data: Iterable[str], experiments: Iterable[Experiment], quantiles: Iterable[int] = QUANTILES
) -> Iterator[Cell]:
    """Every cell of the experiments, once, those of the same scores and noise next to each other."""
    wanted = set(experiments)
    for name, classifier in product(data, CLASSIFIERS):
        for setting, epsilon, ratio in _settings(name):
            for count, reading in product(
                quantiles, _readings(wanted, setting, ratio, epsilon == noisy(name))
            ):
                yield Cell(name, classifier, ratio, setting, epsilon, count, reading)


def _settings(data: str) -> Iterator[tuple[Setting, float, str]]:
    yield "EQ", NO_NOISE, ""
    yield "SA", NO_NOISE, ""
    for setting, epsilon in product(("DDP", "range"), EPSILONS):
        yield setting, epsilon, ""  # type: ignore[misc]
    for ratio in RATIOS:
        yield "SA", NO_NOISE, f"{ratio}"


def _readings(
    wanted: set[Experiment], setting: Setting, ratio: str, compared: bool
) -> list[Reading]:
    """The readings that the wanted experiments need of one setting; ``compared`` at the epsilon of comparisons."""
    if ratio:
        return ["pchip"] if "imbalance" in wanted else []
    if setting == "range":
        return ["l1", "l2"] if "range" in wanted else []
    if setting == "EQ":
        return ["pchip"] if "epsilon" in wanted else []
    compared = compared or setting == "SA"
    plain = "epsilon" in wanted or (compared and bool(wanted - {"imbalance"}))
    found: list[Reading] = ["pchip"] if plain else []
    if compared and "interpolation" in wanted:
        found.append("linear")
    if compared and "strategy" in wanted:
        found.append("combine")
    return found
