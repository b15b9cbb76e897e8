"""Recalibration: from scores to probabilities, by a module that fits a release and does not chase its noise."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import expit, logit
from torch import Tensor, nn

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures.canvas import Labels, plot_curves
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails
from torchmetrics_fed.reconstruct.uncertainty.thresholds import reach
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, Places

RecalibrationMethod = Literal["isotonic", "logistic"]

# Scores nearer to 0 or 1 than this have its logit: float32 knows nothing nearer to 1.
_NEAR = 2.0**-24
# What keeps a line finite where classes are separated; next to nothing beside a hundred examples.
_RIDGE = 1e-3
# How far the mean of a leaf may be off, in standard deviations of what is averaged in it.
_OFF = 0.2
# Knots: this times the fifth root of the precision of a rate of all examples, which is best for curves; and limits.
_KNOTS, _FEWEST, _MOST = 2.0, 4, 64


class CalibrationLine(NamedTuple):
    """Calibration intercept and slope, ``(...)``: 0 and 1 if scores are calibrated.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> round(calibration_line(metric.release()).slope.item(), 2)
        0.95
    """

    intercept: Tensor
    """Below 0 where scores are too high."""
    slope: Tensor
    """Below 1 where scores are too extreme."""
    intervals: tuple[Interval, Interval] | None = None
    """Of both, if asked for."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Intercept and slope."""
        return {"calibration_intercept": self.intercept, "calibration_slope": self.slope}

    def plot(self, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw the probability of each score by the line, as :meth:`ROCCurve.plot` does."""
        x = torch.linspace(1e-3, 1 - 1e-3, 199, dtype=torch.float64)
        y = torch.sigmoid(self.intercept[..., None] + self.slope[..., None] * torch.logit(x))
        score = None, torch.stack([self.intercept, self.slope]), "intercept {:.2f}, slope {:.2f}"
        axes, chance = ("Score", "Probability of a positive"), ([0, 1], [0, 1], "calibrated")
        return plot_curves((x.expand_as(y), y), score, axes, ax, ("scores", label, labels), chance)


class Recalibration(nn.Module):
    """From scores to calibrated probabilities: straight pieces from logit to logit. :func:`recalibrate` makes it.

    It takes probabilities of any shape and floating dtype, ``(N, classes, ...)`` where the release has classes, and
    returns the same; those of exclusive classes add up to 1. What is no probability becomes NaN.

    Args:
        knots: logits of scores and of their probabilities, ``(classes, 2, knots)``.
        classes: whether there is a class axis.
        exclusive: whether probabilities of the classes add up to 1.

    Example:
        >>> Recalibration(torch.tensor([[[-1.0, 1.0], [-2.0, 2.0]]]))(torch.tensor([0.5, 0.731]))
        tensor([0.5000, 0.8807])
    """

    knots: Tensor

    def __init__(self, knots: Tensor, classes: bool = False, exclusive: bool = False) -> None:
        super().__init__()
        self.classes, self.exclusive = classes, exclusive
        self.register_buffer("knots", knots.float())

    def forward(self, preds: Tensor) -> Tensor:
        """Return the calibrated probability of each score."""
        if not preds.is_floating_point() or (
            self.classes and preds.shape[1:2] != self.knots.shape[:1]
        ):
            columns = f"(N, {len(self.knots)}, ...)" if self.classes else "of any shape"
            raise InputError(
                f"Expected argument `preds` to be probabilities {columns} but got {preds.dtype} of shape "
                f"{tuple(preds.shape)}. Pass what the release was counted from."
            )
        scores = preds if preds.dtype == torch.float64 else preds.float()
        x = torch.logit(scores, _NEAR).where((scores >= 0) & (scores <= 1), torch.nan)
        parts = []
        for column, (at, value) in zip(
            x.unbind(1) if self.classes else [x], self.knots.to(x.dtype), strict=True
        ):
            k = torch.searchsorted(at, column.contiguous()).clamp(1, len(at) - 1)
            slope = (value[k] - value[k - 1]) / (at[k] - at[k - 1])
            parts.append(torch.sigmoid(value[k] + slope * (column - at[k])))
        result = torch.stack(parts, 1) if self.classes else parts[0]
        return (result / result.sum(1, keepdim=True) if self.exclusive else result).to(preds.dtype)


def calibration_line(
    release: Release, confidence: float | None = None, population: bool = False
) -> CalibrationLine:
    r"""Return calibration intercept a and slope b of :math:`\ln\frac{p}{1 - p} = a + b \ln\frac{s}{1 - s}` (Cox 1958).

    The release is of probabilities; with a class axis there is a line of each class against the rest. An interval holds
    its value, or with ``population`` that of where the examples were drawn from, with the probability ``confidence``.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric, scores = FederatedROC(privacy=CentralDP(epsilon=1.0)), torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores).long())
        >>> bool(abs(calibration_line(metric.release()).slope - 1) < 0.2)
        True
    """
    fits = [_line(*each) for each in _known(release, confidence or 0.95, population)]
    shaped, values = read(release).shaped, np.array([line for line, _ in fits])
    intercept, slope = shaped(values).unbind(-1)
    if confidence is None:
        return CalibrationLine(intercept, slope)
    half = np.array([[reach(off[:, [k]], confidence)[0] for k in (0, 1)] for _, off in fits])
    first, second = map(
        Interval, shaped(values - half).unbind(-1), shaped(values + half).unbind(-1)
    )
    return CalibrationLine(intercept, slope, (first, second))


def recalibrate(release: Release, method: RecalibrationMethod = "isotonic") -> Recalibration:
    """Return a module from scores to calibrated probabilities, at no further cost of privacy.

    It has as many knots as the release can tell apart, and corrections are shrunk by what chance alone would correct:
    calibrated scores stay nearly as they are.

    With a class axis each class is calibrated against the rest. The ``method`` is ``"isotonic"`` for any rising curve,
    or ``"logistic"`` for a line of the logits: that of least Brier score, which is not the :func:`calibration_line`
    where no line fits.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric, scores = FederatedROC(privacy=CentralDP(epsilon=1.0)), torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores**2).long())  # they are too high
        >>> bool(abs(recalibrate(metric.release())(torch.tensor(0.5)) - 0.25) < 0.1)
        True
    """
    check_choice("method", method, get_args(RecalibrationMethod))
    fit = _curve if method == "isotonic" else _straight
    knots = [fit(*each) for each in _known(release, 0.95, population=True)]
    most, histograms = max(each.shape[1] for each in knots), read(release)
    # all classes have as many: on with slope 1, as their last piece goes
    padded = np.stack(
        [np.c_[each, each[:, -1:] + np.arange(1, most - each.shape[1] + 1)] for each in knots]
    )
    return Recalibration(torch.from_numpy(padded), histograms.leaf.ndim > 2, histograms.exclusive)


def _known(
    release: Release, confidence: float, population: bool
) -> Iterator[tuple[UncertainTails, Floats, Floats, Places]]:
    """Yield each class's tails and counts, the centres of its leaves, and which of them begin a leaf of the release."""
    histograms = read(check_uncertain(release, confidence))
    check_probabilities(histograms.edges)
    edges = histograms.edges.numpy()
    first = np.searchsorted(edges, release.last.edges.numpy()[:-1])
    for tails, leaf in zip(UncertainTails.of(release, population), histograms.flat, strict=True):
        yield tails, leaf, np.clip((edges[1:] + edges[:-1]) / 2, _NEAR, 1 - _NEAR), first


def _line(
    tails: UncertainTails, leaf: Floats, centre: Floats, first: Places
) -> tuple[Floats, Floats]:
    """Return the line by maximum likelihood, and what may be off, ``(vectors, 2)``."""
    start, design = np.array([0.0, 1.0]), np.stack([np.ones_like(centre), logit(centre)])
    line, count = start, leaf.sum(0)
    for _ in range(50):
        rate = expit(line @ design)
        information = (design * (count * rate * (1 - rate))) @ design.T + _RIDGE * np.eye(2)
        step = np.linalg.solve(
            information, design @ (leaf[1] - count * rate) - _RIDGE * (line - start)
        )
        line = line + step / max(np.abs(step).max(), 1.0)
        if np.abs(step).max() < 1e-10:
            break
    moved, missing, scatter = np.zeros((tails.noise.shape[1], 2)), np.zeros(2), np.zeros(2)
    for residual, row, seen, noise in zip(
        (-rate, 1 - rate), leaf, tails.seen, tails.noise, strict=True
    ):
        # what an example of a leaf of the release adds to the equations: its mean, and its variance
        held, mean, square = _means(row, first, residual * design, (residual * design) ** 2)
        missing += mean @ (-np.diff(seen) - held)
        moved += -np.diff(noise) @ mean.T
        scatter += np.maximum(square - mean**2, 0) @ (held + (_OFF * held) ** 2)
    moved += np.sqrt(scatter) * np.random.default_rng(0).standard_normal(moved.shape)
    inverse = np.linalg.inv(information)
    return line + missing @ inverse, moved @ inverse


def _straight(tails: UncertainTails, leaf: Floats, centre: Floats, first: Places) -> Floats:
    """Return two knots of the line, shrunk towards that of calibrated scores."""
    line, off = _line(tails, leaf, centre, first)
    count = np.maximum(leaf.sum(0), 0.0)
    rate, weight, x = leaf[1] / np.maximum(count, 1e-300), np.sqrt(count), logit(centre)

    def errors(line: Floats) -> Floats:
        return np.asarray(weight * (expit(line[0] + line[1] * x) - rate))

    line = least_squares(errors, line).x
    change, covariance = line - [0, 1], np.cov(off.T) + 1e-12 * np.eye(2)
    change *= 0 if tails.empty else _worth(float(change @ np.linalg.solve(covariance, change)), 2)
    return np.array([[-1.0, 1.0], [change[0] - 1 - change[1], change[0] + 1 + change[1]]])


def _curve(tails: UncertainTails, leaf: Floats, centre: Floats, first: Places) -> Floats:
    """Return knots of the isotonic curve, shrunk towards that of calibrated scores."""
    sizes, last = np.maximum(tails.guess[:, :1], 1.0), len(first)
    variance = np.diff(tails.noise).var(1).sum() / (2 * sizes.sum()) ** 2
    knots = int(np.clip(_KNOTS * max(variance, 1e-300) ** -0.2, _FEWEST, _MOST))
    mass = (tails.guess / sizes).mean(0)
    inner = np.searchsorted(-mass, -np.linspace(1, 0, knots + 1)[1:-1])
    begin = np.unique(np.r_[0, np.minimum(inner, last - 1)])
    seen, guess, draws = (
        -np.diff(each[..., np.r_[begin, last]]) for each in (tails.seen, tails.guess, tails.noise)
    )
    count = np.maximum(guess.sum(0), 1.0)
    rate = guess[1] / count
    score = _means(leaf.sum(0), first[begin], centre[None])[1][0]
    change = rate + ((1 - rate) * seen[1] - rate * seen[0]) / count - score
    spread = ((1 - rate) * draws[1] - rate * draws[0]).var(0) / count**2 + 0.25 / count**2
    change *= 0 if tails.empty else _worth(float((change**2 / spread).sum()), len(change))
    least = np.minimum(np.minimum(score, 1 - score), 0.5 / count)
    value = np.clip(_isotonic(score + change, 1 / spread), least, 1 - least)
    curve = np.stack([logit(score), logit(value)])
    longer: Floats = np.c_[
        curve[:, :1] - 1, curve, curve[:, -1:] + 1
    ]  # on with slope 1: calibrated scores stay
    return longer


def _worth(distance: float, freedom: int) -> float:
    """Return James and Stein's factor: which part of a correction is more than what chance would correct."""
    return max(1 - freedom / max(distance, 1e-300), 0.0)


def _isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the nearest rising values: over all starts the largest, over all ends the smallest, weighted mean."""
    weights = np.maximum(weights / weights.max(), 1e-9)  # less would be lost in the sums
    sums, sizes = (np.r_[0.0, each.cumsum()] for each in (values * weights, weights))
    start, end = np.ogrid[: len(values), 1 : len(values) + 1]
    size = np.where(start < end, sizes[end] - sizes[start], 1.0)
    means = np.where(start < end, (sums[end] - sums[start]) / size, np.inf)
    lowest = np.minimum.accumulate(means[:, ::-1], 1)[:, ::-1]
    return np.array([lowest[: k + 1, k].max() for k in range(len(values))])


def _means(counts: Floats, first: Places, *values: Floats) -> list[Floats]:
    """Return the counts from each first leaf on to the next, and the means there of values, ``(rows, leaves)``."""
    weights = counts + 1e-9
    held = np.add.reduceat(weights, first)
    return [held, *(np.add.reduceat(value * weights, first, axis=-1) / held for value in values)]
