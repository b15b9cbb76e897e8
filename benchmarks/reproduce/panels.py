"""The lines in each panel of the paper's figures of results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from benchmarks.reproduce.cells import (
    EPSILONS,
    NO_NOISE,
    RATIOS,
    Cell,
    Experiment,
    Reading,
    Setting,
    noisy,
)

__all__ = ["FIGURES", "Figure", "Line"]

Curve = Literal["roc", "pr"]


_SHORT_NAMES = {"XGBClassifier": "xgboost", "LogisticRegression": "logistic"}


class Line(NamedTuple):
    """Cells over Q, under one name."""

    label: str
    setting: Setting
    epsilon: float
    reading: Reading
    ratio: str = ""

    def cell(self, data: str, classifier: str, quantiles: int) -> Cell:
        """Return the cell of one point."""
        return Cell(
            data=data,
            classifier=classifier,
            ratio=self.ratio,
            setting=self.setting,
            epsilon=self.epsilon,
            quantiles=quantiles,
            reading=self.reading,
        )


class Figure(NamedTuple):
    """One figure of the paper: a panel for each data set."""

    experiment: Experiment
    curve: Curve
    classifier: str
    title: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.experiment}_{self.curve}_{_SHORT_NAMES[self.classifier]}"

    def lines(self, data: str) -> list[Line]:
        """Return the lines of the panel of ``data``."""
        return list(_LINES[self.experiment](noisy(data)))


def _interpolation(epsilon: float) -> Iterator[Line]:
    yield from _without_and_with_noise("Linear", epsilon, "linear")
    yield from _without_and_with_noise("PCHIP", epsilon, "pchip")


def _without_and_with_noise(name: str, epsilon: float, reading: Reading) -> Iterator[Line]:
    yield Line(f"SA, {name}", "SA", NO_NOISE, reading)
    yield Line(rf"DDP $\epsilon$={epsilon:g}, {name}", "DDP", epsilon, reading)


def _epsilon(_: float) -> Iterator[Line]:
    yield Line("EQ", "EQ", NO_NOISE, "pchip")
    yield Line("SA", "SA", NO_NOISE, "pchip")
    for epsilon in EPSILONS:
        yield Line(rf"DDP $\epsilon$={epsilon:g}", "DDP", epsilon, "pchip")


def _strategy(epsilon: float) -> Iterator[Line]:
    yield from _without_and_with_noise("Separate", epsilon, "pchip")
    yield from _without_and_with_noise("Combine", epsilon, "combine")


def _range(epsilon: float) -> Iterator[Line]:
    yield Line(rf"Range ($l_1$ norm) $\epsilon$={epsilon:g}", "range", epsilon, "l1")
    yield Line(rf"Range ($l_2$ norm) $\epsilon$={epsilon:g}", "range", epsilon, "l2")
    yield Line(rf"Quantile $\epsilon$={epsilon:g}", "DDP", epsilon, "pchip")


def _imbalance(_: float) -> Iterator[Line]:
    for ratio in RATIOS:
        yield Line(f"r={ratio:g}", "SA", NO_NOISE, "pchip", f"{ratio}")


_LINES = {
    "interpolation": _interpolation,
    "epsilon": _epsilon,
    "strategy": _strategy,
    "range": _range,
    "imbalance": _imbalance,
}
_TITLES: tuple[tuple[Experiment, tuple[Curve, ...], str], ...] = (
    ("interpolation", ("roc", "pr"), "Interpolation methods"),
    ("epsilon", ("roc", "pr"), r"Effect of $\epsilon$"),
    ("strategy", ("pr",), "Strategies for precision"),
    ("range", ("roc", "pr"), "Range queries and quantiles"),
    ("imbalance", ("pr",), "Class imbalance"),
)


def _figures() -> Iterator[Figure]:
    for classifier, name in (
        ("XGBClassifier", "XGBoost"),
        ("LogisticRegression", "logistic regression"),
    ):
        for experiment, curves, title in _TITLES:
            for curve in curves:
                full_title = f"{title} ({curve.upper()}, {name})"
                yield Figure(experiment, curve, classifier, full_title)


FIGURES = tuple(_figures())
"""All of the paper's figures of results."""
