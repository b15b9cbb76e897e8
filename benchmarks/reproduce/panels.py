"""What each of the paper's figures of results shows: its lines, in each panel."""

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
            data, classifier, self.ratio, self.setting, self.epsilon, quantiles, self.reading
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
        short = "xgboost" if self.classifier == "XGBClassifier" else "logistic"
        return f"{self.experiment}_{self.curve}_{short}"

    def lines(self, data: str) -> list[Line]:
        """The lines of the panel of ``data``."""
        return list(_LINES[self.experiment](noisy(data)))


def _interpolation(epsilon: float) -> Iterator[Line]:
    for reading, name in _named(("linear", "Linear"), ("pchip", "PCHIP")):
        yield Line(f"SA, {name}", "SA", NO_NOISE, reading)
        yield Line(rf"DDP $\epsilon$={epsilon:g}, {name}", "DDP", epsilon, reading)


def _epsilon(_: float) -> Iterator[Line]:
    yield Line("EQ", "EQ", NO_NOISE, "pchip")
    yield Line("SA", "SA", NO_NOISE, "pchip")
    for epsilon in EPSILONS:
        yield Line(rf"DDP $\epsilon$={epsilon:g}", "DDP", epsilon, "pchip")


def _strategy(epsilon: float) -> Iterator[Line]:
    for reading, name in _named(("pchip", "Separate"), ("combine", "Combine")):
        yield Line(f"SA, {name}", "SA", NO_NOISE, reading)
        yield Line(rf"DDP $\epsilon$={epsilon:g}, {name}", "DDP", epsilon, reading)


def _range(epsilon: float) -> Iterator[Line]:
    for reading, name in _named(("l1", "Range ($l_1$ norm)"), ("l2", "Range ($l_2$ norm)")):
        yield Line(rf"{name} $\epsilon$={epsilon:g}", "range", epsilon, reading)
    yield Line(rf"Quantile $\epsilon$={epsilon:g}", "DDP", epsilon, "pchip")


def _imbalance(_: float) -> Iterator[Line]:
    for ratio in RATIOS:
        yield Line(f"r={ratio:g}", "SA", NO_NOISE, "pchip", f"{ratio}")


def _named(*pairs: tuple[Reading, str]) -> tuple[tuple[Reading, str], ...]:
    return pairs


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
FIGURES = tuple(
    Figure(experiment, curve, classifier, f"{title} ({curve.upper()}, {name})")
    for classifier, name in (
        ("XGBClassifier", "XGBoost"),
        ("LogisticRegression", "logistic regression"),
    )
    for experiment, curves, title in _TITLES
    for curve in curves
)
