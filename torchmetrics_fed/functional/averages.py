"""Averages over classes: of numbers, and of curves as torchmetrics averages them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.histograms import Histograms
from torchmetrics_fed.typing import Average, Task

Averaging: TypeAlias = Average | None
"""None for each class by itself, ``"micro"`` for all classes' scores together, or a mean over classes."""


def checked_average(average: Averaging, allowed: Sequence[Average], task: Task) -> Averaging:
    """Return the average if a metric has it; ``"none"`` is None."""
    if average in (None, "none"):
        return None
    if task == "binary":
        raise InputError(
            f'Expected no argument `average` for task="binary" but got {average!r}: there is one class, and '
            'torchmetrics\' binary metrics take none either. Leave it out, or pass `task="multiclass"` or '
            '`task="multilabel"`.'
        )
    if average not in allowed:
        raise InputError(
            f"Expected argument `average` to be None or one of {tuple(allowed)} but got {average!r}."
        )
    return average


def averaged(of: Callable[[Histograms], Tensor], source: Histograms, average: Averaging) -> Tensor:
    """Return a scalar metric of each class, or its average: of all classes' scores together, or over the classes."""
    values = of(source.pooled(average))
    if average not in ("macro", "weighted"):
        return values
    kept = defined(values, average)
    sizes = source.leaf[..., 1, :].sum(-1).clamp(min=0)[kept]  # by the classes' positives
    if average == "weighted" and sizes.sum() > 0:
        return (values[kept] * sizes).sum() / sizes.sum()
    return values[kept].mean()


def defined(values: Tensor, average: Average) -> Tensor:
    """Return which classes have values, ``(K, ...)``, that are not NaN, with torchmetrics' warning if some have not."""
    kept = ~values.isnan().reshape(len(values), -1).any(-1)
    if not bool(kept.all()):
        text = (
            "Average precision score for one or more classes was `nan`. Ignoring these classes in"
        )
        warnings.warn(f"{text} {average}-average", UserWarning, stacklevel=2)
    return kept | ~kept.any()  # of no class at all the average is NaN


def macro_curve(x: Tensor, y: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of y, over classes that have it, at all the classes' x, ``(K, points)`` each; all thresholds.

    By torchmetrics' rule it interpolates between the points around each x as they are counted, not as they lie: exact
    for a ROC curve, whose x rise; for a PR curve it is torchmetrics' convention and no more.
    """
    kept = defined(y, "macro")
    x, y, falling = x[kept], y[kept], bool(thresholds[0] > thresholds[-1])
    at = x.flatten().sort().values
    total = torch.zeros_like(at)
    for one, other in zip(x, y, strict=True):
        rise, run = other.diff(), one.diff()
        slope = torch.where(run != 0, rise / run, 0.0)
        left = (torch.searchsorted(one.sort().values, at, right=True) - 1).clamp(0, len(slope) - 1)
        total += slope[left] * (at - one[left]) + other[left]
    return at, total / len(x), thresholds.repeat(len(x)).sort(descending=falling).values
