"""Averages over classes: of numbers, and of curves as torchmetrics averages them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.histograms import Histograms
from torchmetrics_fed.typing import Average, Task

Averaging: TypeAlias = Average | None
"""None for a value of each class, ``"micro"`` for the scores of all classes together, or a mean."""


def checked_average(average: Averaging, allowed: Sequence[Average], task: Task) -> Averaging:
    """Return the average if a metric has it; ``"none"`` is None."""
    if average in (None, "none"):
        return None
    if task == "binary":
        raise InputError(
            f'Expected no argument `average` for task="binary" but got {average!r}: there is one '
            "class, and torchmetrics' binary metrics take none either. Leave it out, or pass "
            '`task="multiclass"` or `task="multilabel"`.'
        )
    if average not in allowed:
        raise InputError(
            f"Expected argument `average` to be None or one of {tuple(allowed)} "
            f"but got {average!r}."
        )
    return average


def averaged(
    values: Tensor,
    histograms: Histograms,
    average: Averaging,
    name: str = "Average precision score",
) -> Tensor:
    """Return the mean of the classes' values for a macro or weighted average, else the values.

    A weighted average weighs each class by its positives. The ``name`` of the values is for the
    warning of :func:`defined`.
    """
    if average not in ("macro", "weighted"):
        return values
    has_value = defined(values, average, name)
    values = values[has_value]
    positives = histograms.leaf[..., 1, :].sum(-1).clamp(min=0)[has_value]
    if average == "weighted" and positives.sum() > 0:
        return (values * positives).sum() / positives.sum()
    return values.mean()


def defined(values: Tensor, average: Average, name: str = "Average precision score") -> Tensor:
    """Return which classes have values, ``(K, ...)``, that are not NaN.

    Warns as torchmetrics does if a class has NaN. If all classes have NaN, all are returned, so
    that their average is NaN.
    """
    is_defined = ~values.isnan().reshape(len(values), -1).any(-1)
    if not bool(is_defined.all()):
        warnings.warn(
            f"{name} for one or more classes was `nan`. Ignoring these classes in "
            f"{average}-average",
            UserWarning,
            stacklevel=2,
        )
    return is_defined | ~is_defined.any()


def macro_curve(x: Tensor, y: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean over classes of y at all x of all classes, and the thresholds of all.

    Arguments are ``(K, points)``; classes whose y is NaN are left out.

    By the rule of torchmetrics it interpolates between neighbours in the order of the points, not
    in the order of x. This is exact for a ROC curve, whose x rises. For a PR curve it is the
    convention of torchmetrics and no more.
    """
    has_curve = defined(y, "macro")
    x = x[has_curve]
    y = y[has_curve]
    at = x.flatten().sort().values
    total = torch.zeros_like(at)
    for class_x, class_y in zip(x, y, strict=True):
        rise = class_y.diff()
        run = class_x.diff()
        slope = torch.where(run != 0, rise / run, 0.0)
        point = torch.searchsorted(class_x.sort().values, at, right=True) - 1
        point = point.clamp(0, len(slope) - 1)
        total += slope[point] * (at - class_x[point]) + class_y[point]
    falling = bool(thresholds[0] > thresholds[-1])
    all_thresholds = thresholds.repeat(len(x)).sort(descending=falling).values
    return at, total / len(x), all_thresholds
