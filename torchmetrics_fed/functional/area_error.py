"""The paper's Area Error between two curves, integrated exactly."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.typing import Floats

TIED_RECALL = 0.005
"""A bin that adds less recall than this has no corner, whether its scores are tied or not."""

LONE_BIN = 100
"""A bin is alone if it adds more than this many times the recall of the bins beside it."""

Reading = Literal["linear", "step", "binned"]

Function: TypeAlias = Callable[[Floats], Floats]
"""A curve as a function of its first coordinate."""


def area_error_roc(
    estimate: Sequence[ArrayLike | Tensor], exact: Sequence[ArrayLike | Tensor]
) -> float:
    r"""Return :math:`\int_0^1 |T(f) - \hat T(f)|\,df`; both curves are linear between their points.

    Args:
        estimate: ``(fpr, tpr, ...)``, for example a :class:`~torchmetrics_fed.functional.ROCCurve`.
        exact: ``(fpr, tpr, ...)``, for example that of torchmetrics (``thresholds=None``) or
            scikit-learn (``drop_intermediate`` is harmless).

    Example:
        >>> area_error_roc(([0, 0.5, 1], [0, 0.5, 1]), ([0, 0.5, 1], [0, 1, 1]))
        0.25
    """
    fpr, tpr = _ascending(estimate[0], estimate[1])
    exact_fpr, exact_tpr = _ascending(exact[0], exact[1])
    return _area_between(
        partial(_line, x=fpr, y=tpr),
        partial(_line, x=exact_fpr, y=exact_tpr),
        points=np.r_[fpr, exact_fpr],
    )


def area_error_pr(
    estimate: Sequence[ArrayLike | Tensor],
    exact: Sequence[ArrayLike | Tensor],
    reading: Reading = "linear",
) -> float:
    r"""Return :math:`\int_0^1 |P(t) - \hat P(t)|\,dt`.

    The exact curve is scikit-learn's step, whose area is the average precision.

    Args:
        estimate: ``(precision, recall, ...)``.
        exact: ``(precision, recall, ...)``.
        reading: how the estimate is read between its points: ``"linear"``, or ``"step"`` like the
            exact curve, which is right where each bin holds one known score
            (``ScoreGrid.from_edges``). ``"binned"`` is linear but for a step to each bin whose
            neighbours are empty.

    Example:
        >>> estimate = ([0.5, 0.5, 1], [1, 0.5, 0])
        >>> area_error_pr(estimate, ([0.5, 1, 1], [1, 0.5, 0]), reading="step")
        0.25
    """
    check_choice("reading", reading, get_args(Reading))
    recall, precision = _ascending(estimate[1], estimate[0])
    exact_recall, exact_precision = _ascending(exact[1], exact[0])
    if reading == "binned":
        recall, precision = _with_corners(recall, precision)
    estimated: Function = partial(_line, x=recall, y=precision)
    if reading == "step":
        estimated = partial(_step, recall=recall, precision=precision)
    return _area_between(
        estimated,
        partial(_step, recall=exact_recall, precision=exact_precision),
        points=np.r_[recall, exact_recall],
    )


def _ascending(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> tuple[Floats, Floats]:
    """Return the points of a curve in the order of rising x."""
    x = _floats(x)
    y = _floats(y)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise InputError(
            f"Expected two 1-d arrays of one length, at least 2, but got {x.shape} and {y.shape}."
        )
    if x[0] > x[-1]:
        return x[::-1], y[::-1]
    return x, y


def _floats(values: ArrayLike | Tensor) -> Floats:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double()
    return np.asarray(values, dtype=np.float64)


def _with_corners(recall: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Return the points, with a corner before each point that is reached by a bin of tied scores.

    Scores of a bin are taken for tied if the bins beside it are empty.
    """
    added = np.diff(recall)
    beside = np.r_[0.0, added[:-1]] + np.r_[added[1:], 0.0]
    tied = np.flatnonzero((added > TIED_RECALL) & (beside < added / LONE_BIN))
    return (
        np.insert(recall, tied + 1, np.nextafter(recall[tied], 1)),
        np.insert(precision, tied + 1, precision[tied + 1]),
    )


def _line(at: Floats, x: Floats, y: Floats) -> Floats:
    """Return the straight lines through the points."""
    return np.interp(at, x, y)


def _step(at: Floats, recall: Floats, precision: Floats) -> Floats:
    """Return the precision at the highest threshold that reaches each recall ``at``."""
    steps: Floats = precision[np.searchsorted(recall, at).clip(max=len(precision) - 1)]
    return steps


def _area_between(curve: Function, exact: Function, points: Floats) -> float:
    """Return the integral over [0, 1] of the distance of two curves.

    The difference is linear between neighbouring ``points``, and may jump at them. So it is read
    at two places inside each interval and extended to the ends of the interval.
    """
    x = np.unique(np.r_[0.0, points.clip(0, 1), 1.0])
    width = np.diff(x)
    at_third = x[:-1] + width / 3
    at_two_thirds = x[:-1] + width * 2 / 3
    first = curve(at_third) - exact(at_third)
    second = curve(at_two_thirds) - exact(at_two_thirds)
    start = 2 * first - second
    end = 2 * second - first
    size = abs(start) + abs(end)
    crosses_zero = start * end < 0
    two_triangles = (start**2 + end**2) / (2 * np.where(crosses_zero, size, 1.0))
    mean = np.where(crosses_zero, two_triangles, size / 2)
    return float(width @ mean)
