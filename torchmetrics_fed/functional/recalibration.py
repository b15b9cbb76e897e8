"""Recalibration: from scores to probabilities, by a module that fits a release and does not chase its noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures.canvas import plot_areas
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails
from torchmetrics_fed.reconstruct.uncertainty.thresholds import reach
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, Places

RecalibrationMethod = Literal["isotonic", "logistic"]

# Scores nearer to 0 or 1 than this have the logit of this: float32 knows nothing nearer to 1.
_NEAR = 2.0**-24
# What keeps the line finite where classes are separated; next to nothing beside a hundred examples.
_RIDGE = 1e-3
# How many knots: these times the fifth root of what one rate of all examples is known to; between the limits.
_KNOTS, _FEWEST, _MOST = 2.0, 4, 64


class CalibrationLine(NamedTuple):
    """The line that the logit of the score is corrected by: 0 and 1 if the scores are calibrated.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.functional import calibration_line
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> round(calibration_line(metric.release()).slope.item(), 3)
        0.455
    """

    intercept: Tensor
    """Below 0: scores are too high on the whole."""
    slope: Tensor
    """Below 1: scores are too extreme; above 1: not extreme enough."""
    intervals: tuple[Interval, Interval] | None = None
    """Of both, if asked for."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Intercept and slope."""
        return {"calibration_intercept": self.intercept, "calibration_slope": self.slope}

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw the calibrated probability of each score, and return ``(fig, ax)``; arguments as in :meth:`ROCCurve.plot`.

        Example:
            >>> import torch
            >>> from torchmetrics_fed.functional import CalibrationLine
            >>> fig, ax = CalibrationLine(torch.tensor(0.5), torch.tensor(0.8)).plot()
            >>> ax.get_lines()[-1].get_label()
            'line (0.500, 0.800)'
        """
        x = torch.linspace(0, 1, 401, dtype=torch.float64)
        y = torch.sigmoid(self.intercept[..., None] + self.slope[..., None] * torch.logit(x, _NEAR))
        score = torch.stack([self.intercept, self.slope]), "{:.3f}, {:.3f}"
        chance, axes = ([0, 1], [0, 1], "calibrated"), ("Score", "Calibrated probability")
        return plot_areas((x.expand_as(y), y), score, chance, axes, ax, ("line", label, labels))


class Recalibration(nn.Module):
    """From scores to calibrated probabilities: a rising line of pieces, logit to logit. :func:`recalibrate` makes it.

    It takes probabilities of any shape and floating dtype, ``(N, classes, ...)`` where the release has classes, and
    returns the same; those of exclusive classes add up to 1. What is no probability becomes NaN.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import Recalibration
        >>> Recalibration(torch.tensor([[[-1.0, 1.0], [-2.0, 2.0]]]))(torch.tensor([0.5, 0.731]))
        tensor([0.5000, 0.8807])
    """

    knots: Tensor
    """Logits of scores and of probabilities, ``(classes, 2, knots)``."""

    def __init__(self, knots: Tensor, classes: bool = False, exclusive: bool = False) -> None:
        super().__init__()
        self.classes, self.exclusive = classes, exclusive
        self.register_buffer("knots", knots.float())

    def forward(self, preds: Tensor) -> Tensor:
        """Return the calibrated probability of each score."""
        if not preds.is_floating_point() or (self.classes and (preds.ndim < 2 or preds.shape[1] != len(self.knots))):
            columns = f" of {len(self.knots)} classes, (N, {len(self.knots)}, ...)," if self.classes else ""
            raise InputError(
                f"Expected argument `preds` to be probabilities{columns} but got {preds.dtype} of shape "
                f"{tuple(preds.shape)}. Pass what the release was counted from."
            )
        scores = preds if preds.dtype == torch.float64 else preds.float()
        x = torch.logit(scores, _NEAR).where((scores >= 0) & (scores <= 1), torch.nan)
        parts = []
        for column, (at, value) in zip(x.unbind(1) if self.classes else [x], self.knots.to(x.dtype), strict=True):
            above = torch.searchsorted(at, column.contiguous()).clamp(1, len(at) - 1)
            below = above - 1
            slope = (value[above] - value[below]) / (at[above] - at[below])
            parts.append(torch.sigmoid(value[below] + slope * (column - at[below])))
        result = torch.stack(parts, 1) if self.classes else parts[0]
        return (result / result.sum(1, keepdim=True) if self.exclusive else result).to(preds.dtype)


def calibration_line(release: Release, confidence: float | None = None, population: bool = False) -> CalibrationLine:
    r"""Return calibration intercept a and slope b (Cox 1958): :math:`\ln\frac{p}{1-p} = a + b \ln\frac{s}{1-s}` fits best.

    It is the maximum-likelihood fit of both at once; each leaf stands for its centre.

    Args:
        release: of probabilities, binary or with a class axis: a line for each class against the rest then.
        confidence: probability of each interval.
        population: whether the line of the population that the examples were drawn from is meant.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> from torchmetrics_fed.functional import calibration_line
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> scores = torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores).long())
        >>> bool(abs(calibration_line(metric.release()).slope - 1) < 0.2)
        True
    """
    fits = [_line(*each) for each in _known(release, 0.95 if confidence is None else confidence, population)]
    shaped, values = read(release).shaped, np.array([line for line, _ in fits])
    intervals = None
    if confidence is not None:
        half = np.array([[reach(off[:, [k]], confidence)[0] for k in (0, 1)] for _, off in fits])
        low, high = (shaped(end).unbind(-1) for end in (values - half, values + half))
        intervals = Interval(low[0], high[0]), Interval(low[1], high[1])
    return CalibrationLine(*shaped(values).unbind(-1), intervals)


def recalibrate(release: Release, method: RecalibrationMethod = "isotonic") -> Recalibration:
    """Return a module from scores to calibrated probabilities, fitted to a release at no further cost of privacy.

    What noise and sampling explain is not followed: there are as many knots as the release can tell apart, and the
    correction is shrunk by what chance alone would correct. Calibrated scores stay nearly as they are.

    Args:
        release: of probabilities. With a class axis each class is calibrated against the rest.
        method: ``"isotonic"`` for any rising curve, ``"logistic"`` for the :func:`calibration_line`, which needs the
            fewest examples.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> from torchmetrics_fed.functional import recalibrate
        >>> metric, scores = FederatedROC(privacy=CentralDP(epsilon=1.0)), torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores**2).long())  # they are too high
        >>> module = recalibrate(metric.release())
        >>> bool((module(torch.tensor([0.2, 0.5, 0.8])) - torch.tensor([0.04, 0.25, 0.64])).abs().max() < 0.1)
        True
    """
    if method not in get_args(RecalibrationMethod):
        raise InputError(f"Expected argument `method` to be one of {get_args(RecalibrationMethod)} but got {method!r}.")
    fit = _steps if method == "isotonic" else _straight
    knots = [fit(*each) for each in _known(release, 0.95, population=True)]
    most = max(each.shape[1] for each in knots)
    # on with slope 1, as the last piece goes
    padded = [np.c_[each, each[:, -1:] + np.arange(1, most - each.shape[1] + 1)] for each in knots]
    histograms = read(release)
    return Recalibration(torch.from_numpy(np.stack(padded)), histograms.leaf.ndim > 2, histograms.exclusive)


def _known(
    release: Release, confidence: float, population: bool
) -> list[tuple[UncertainTails, Floats, Floats, Places]]:
    """Return of each class its tails, its counts, the centres of their leaves, and the leaves of the release in them."""
    histograms = read(check_uncertain(release, confidence))
    check_probabilities(histograms.edges)
    edges = histograms.edges.numpy()
    first = np.searchsorted(edges, release.last.edges.numpy()[:-1])
    classes = zip(UncertainTails.of(release, population), histograms.flat, strict=True)
    return [(tails, leaf, (edges[1:] + edges[:-1]) / 2, first) for tails, leaf in classes]


def _line(tails: UncertainTails, leaf: Floats, centre: Floats, first: Places) -> tuple[Floats, Floats]:
    """Return the line, and what draws do to it, ``(vectors, 2)``."""
    start, design = np.array([0.0, 1.0]), np.stack([np.ones_like(centre), _logit(centre)])
    line, count = start, leaf.sum(0)
    for _ in range(50):
        rate = expit(line @ design)
        information = (design * (count * rate * (1 - rate))) @ design.T + _RIDGE * np.eye(2)
        step = np.linalg.solve(information, design @ (leaf[1] - count * rate) - _RIDGE * (line - start))
        line = line + step / max(np.abs(step).max(), 1.0)
        if np.abs(step).max() < 1e-10:
            break
    # a positive more or less in a leaf of the release adds this much to the equations that are solved, and a negative
    weights = [_mean(score * design, row, first) for score, row in zip((-rate, 1 - rate), leaf, strict=True)]
    noise, unseen = -np.diff(tails.noise), -np.diff(tails.seen) - np.add.reduceat(leaf, first, axis=-1)
    moved, missing = (
        sum(off @ weight.T for off, weight in zip(which, weights, strict=True)) for which in (noise, unseen)
    )
    inverse = np.linalg.inv(information)
    return line + missing @ inverse, moved @ inverse


def _straight(tails: UncertainTails, leaf: Floats, centre: Floats, first: Places) -> Floats:
    """Return the two knots of the line, shrunk towards that of calibrated scores."""
    line, off = _line(tails, leaf, centre, first)
    change = line - [0, 1]
    change *= 0 if tails.empty else _worth(change @ np.linalg.solve(np.cov(off.T) + 1e-12 * np.eye(2), change), 2)
    at = np.array([-1.0, 1.0])
    return np.stack([at, change[0] + (1 + change[1]) * at])


def _steps(tails: UncertainTails, leaf: Floats, centre: Floats, first: Places) -> Floats:
    """Return the knots of the isotonic curve, shrunk towards that of calibrated scores."""
    sizes = np.maximum(tails.guess[:, :1], 1.0)
    one = np.diff(tails.noise).var(1).sum() / (2 * sizes.sum()) ** 2
    many = int(np.clip(_KNOTS * one**-0.2, _FEWEST, _MOST))
    mass, last = (tails.guess / sizes).mean(0), len(first)
    inner = np.searchsorted(-mass, -np.linspace(1, 0, many + 1)[1:-1])
    kept = np.unique(np.r_[0, np.minimum(inner, last - 1)])
    ends = np.r_[kept, last]
    seen, guess, draws = (-np.diff(each[..., ends]) for each in (tails.seen, tails.guess, tails.noise))
    count = np.maximum(guess.sum(0), 1.0)
    rate = guess[1] / count
    score = _mean(centre[None], leaf.sum(0), first[kept])[0]
    wrong = rate + ((1 - rate) * seen[1] - rate * seen[0]) / count - score
    variance = ((1 - rate) * draws[1] - rate * draws[0]).var(0) / count**2 + 0.25 / count**2
    wrong *= 0 if tails.empty else _worth((wrong**2 / variance).sum(), len(wrong))
    least = np.minimum(np.minimum(score, 1 - score), 0.5 / (count + 1))
    value = np.clip(_isotonic(score + wrong, 1 / variance), least, 1 - least)
    knots = np.stack([_logit(score), _logit(value)])
    return np.c_[knots[:, :1] - 1, knots, knots[:, -1:] + 1]  # beyond them with slope 1: calibrated scores stay


def _worth(distance: float, freedom: int) -> float:
    """Return James and Stein's factor: which part of a correction is not what chance alone would correct."""
    return max(1 - freedom / max(distance, 1e-300), 0.0)


def _isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the rising values that are nearest: the largest, over starts, of the smallest, over ends, weighted mean."""
    sums, sizes = (np.r_[0.0, each.cumsum()] for each in (values * weights, weights))
    start, end = np.ogrid[: len(values), 1 : len(values) + 1]
    means = np.where(
        start < end, (sums[end] - sums[start]) / np.where(start < end, sizes[end] - sizes[start], 1), np.inf
    )
    lowest = np.minimum.accumulate(means[:, ::-1], 1)[:, ::-1]
    return np.array([lowest[: index + 1, index].max() for index in range(len(values))])


def _mean(values: Floats, counts: Floats, first: Places) -> Floats:
    """Return the mean of values, ``(rows, leaves)``, over the leaves from each first one on, weighted by counts."""
    weights = counts + 1e-9
    mean: Floats = np.add.reduceat(values * weights, first, axis=-1) / np.add.reduceat(weights, first)
    return mean


def _logit(score: Floats) -> Floats:
    near = np.clip(score, _NEAR, 1 - _NEAR)
    logits: Floats = np.log(near / (1 - near))
    return logits
