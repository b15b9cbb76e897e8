"""The paper's Area Error between two curves, integrated exactly."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.typing import Floats

# Recall that a bin has to add before its corner matters.
_TIED = 0.005

Reading = Literal["linear", "step", "binned"]


def area_error_roc(
    estimate: Sequence[ArrayLike | Tensor], exact: Sequence[ArrayLike | Tensor]
) -> float:
    r"""Return :math:`\int_0^1 |T(f) - \hat T(f)|\,df`, both curves linear between their points.

    Curves are ``(fpr, tpr, ...)``: a :class:`~torchmetrics_fed.functional.ROCCurve`, and the exact one of torchmetrics
    (``thresholds=None``) or scikit-learn (``drop_intermediate`` is harmless).

    Example:
        >>> area_error_roc(([0, 0.5, 1], [0, 0.5, 1]), ([0, 0.5, 1], [0, 1, 1]))
        0.25
    """
    x, y = _ascending(*estimate[:2])
    x_exact, y_exact = _ascending(*exact[:2])
    return _area(_linear(x, y), _linear(x_exact, y_exact), np.r_[x, x_exact])


def area_error_pr(
    estimate: Sequence[ArrayLike | Tensor],
    exact: Sequence[ArrayLike | Tensor],
    reading: Reading = "linear",
) -> float:
    r"""Return :math:`\int_0^1 |P(t) - \hat P(t)|\,dt`; the exact curve is scikit-learn's step, whose area is the AP.

    Curves are ``(precision, recall, ...)``. ``reading`` says how the estimate goes on between its points: ``"linear"``,
    or ``"step"`` as the exact one does, which is right where each bin holds one known score
    (``ScoreGrid.from_edges``).

    Example:
        >>> area_error_pr(([0.5, 0.5, 1], [1, 0.5, 0]), ([0.5, 1, 1], [1, 0.5, 0]), reading="step")
        0.25
    """
    check_choice("reading", reading, get_args(Reading))
    x, y = _ascending(estimate[1], estimate[0])
    x_exact, y_exact = _ascending(exact[1], exact[0])
    if reading == "binned":
        x, y = _with_corners(x, y)
    read = _step if reading == "step" else _linear
    return _area(read(x, y), _step(x_exact, y_exact), np.r_[x, x_exact])


def _ascending(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> tuple[Floats, Floats]:
    a, b = (
        np.asarray(v.detach().cpu().double() if isinstance(v, Tensor) else v, dtype=np.float64)
        for v in (x, y)
    )
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(
            f"Expected two 1-d arrays of one length, at least 2, but got {a.shape} and {b.shape}."
        )
    return (a, b) if a[0] <= a[-1] else (a[::-1], b[::-1])


def _linear(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    return lambda at: np.interp(at, x, y)


def _with_corners(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points, and a corner before each that a single bin among empty ones reaches: its scores are tied."""
    jump = np.diff(x)
    around = np.r_[0.0, jump[:-1]] + np.r_[jump[1:], 0.0]
    alone = np.flatnonzero((jump > _TIED) & (around < jump / 100))
    return np.insert(x, alone + 1, np.nextafter(x[alone], 1)), np.insert(y, alone + 1, y[alone + 1])


def _step(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    """Up to and including each recall, the precision of the highest threshold that reaches it."""
    return lambda at: y[np.searchsorted(x, at).clip(max=len(y) - 1)]


def _area(
    one: Callable[[Floats], Floats], other: Callable[[Floats], Floats], points: Floats
) -> float:
    """Integral over [0, 1] of the distance of two functions that are linear between ``points``."""
    x = np.unique(np.r_[0.0, points.clip(0, 1), 1.0])
    width = np.diff(x)
    # Jumps lie at the points, so the line is read strictly inside each interval and extended to its ends.
    first, second = (one(at) - other(at) for at in (x[:-1] + width / 3, x[:-1] + width * 2 / 3))
    left, right = 2 * first - second, 2 * second - first
    size = abs(left) + abs(right)
    crossing = left * right < 0
    mean = np.where(crossing, (left**2 + right**2) / (2 * np.where(crossing, size, 1.0)), size / 2)
    return float(width @ mean)
