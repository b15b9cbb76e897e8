"""Definition: what a kind of metric is, apart from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchmetrics_fed.functional.band import Band, Interval
from torchmetrics_fed.typing import Average


@dataclass(frozen=True)
class Definition:
    """The name of a metric, the functions of a release that make it, and the averages it has.

    Args:
        name: what collections call the metric.
        result: the named tuple that ``compute`` returns; None where it returns a number.
        scalars: the names of the result's scalars.
        averages: the averages over classes that the metric has.
        default_average: the average over classes where the caller asks for none.
        band: makes the confidence band of a release, if the metric has one.
        interval: makes the confidence interval of a release, if the metric has one.
        curve: for a metric that is an area, makes the curve that the area is under.
        has_order: whether the order of scores counts, so that ties within a bin are warned of.
    """

    name: str
    result: Any = None
    scalars: tuple[str, ...] = ()
    averages: tuple[Average, ...] = ("micro", "macro")
    default_average: Average | None = None
    band: Callable[..., Band] | None = None
    interval: Callable[..., Interval] | None = None
    curve: Callable[..., Any] | None = None
    has_order: bool = True
