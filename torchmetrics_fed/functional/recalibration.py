"""Recalibration: a module from scores to probabilities that does not follow the noise of a release.

Every class is fitted by itself: a line between the logits of scores and probabilities, or a rising
curve. Corrections are shrunk by the factor of James and Stein towards calibrated scores.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import expit, logit
from torch import Tensor, nn

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.calibration import CALIBRATED, check_probabilities
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_curves
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.intervals import check_of
from torchmetrics_fed.functional.intervals import intervals as population_intervals
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.histograms import Histograms
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails
from torchmetrics_fed.reconstruct.uncertainty.thresholds import reach
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, IntervalOf, Places

RecalibrationMethod = Literal["isotonic", "logistic"]

NEAREST_SCORE = 2.0**-24
"""Scores nearer to 0 or 1 have the logit of this distance: float32 has no number nearer to 1."""

RIDGE = 1e-3
"""Keeps the line of separated classes finite; next to nothing beside a hundred examples."""

LEAF_MEAN_DEVIATION = 0.2
"""Standard deviation of the mean of a leaf, in those of the terms that are averaged in it."""

KNOT_FACTOR = 2.0
"""Knots of a curve, times the fifth root of the variance of the rate of all examples.

The fifth root is the best order for curves.
"""

FEWEST_KNOTS = 4
"""The least number of knots of a curve."""

MOST_KNOTS = 64
"""The largest number of knots of a curve."""

CURVE_POINTS = 1025
"""Even scores at which the figure of a recalibration is drawn."""

LINE_PRECISION = 1e-10
"""Step of intercept and slope after which Newton's steps end."""

LINE_STEPS = 50
"""The largest number of Newton steps to the line of maximum likelihood."""


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
    """Of both, if a confidence was given."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Intercept and slope."""
        return {"calibration_intercept": self.intercept, "calibration_slope": self.slope}

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the probability of each score by the line, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        score = torch.linspace(1e-3, 1 - 1e-3, 199, dtype=torch.float64)
        probability = torch.sigmoid(
            self.intercept[..., None] + self.slope[..., None] * torch.logit(score)
        )
        return plot_curves(
            score.expand_as(probability),
            probability,
            ax=ax,
            xlabel="Score",
            ylabel="Probability of a positive",
            name="scores",
            label=label,
            labels=labels,
            curve_score=torch.stack([self.intercept, self.slope]),
            score_format="intercept {:.2f}, slope {:.2f}",
            references=[CALIBRATED],
            line_kwargs=line_kwargs,
        )


class Recalibration(nn.Module):
    """A module from scores to calibrated probabilities, made by :func:`recalibrate`.

    It consists of straight pieces from logit to logit. It takes probabilities of any shape and
    floating dtype, ``(N, classes, ...)`` where the release has classes, and returns the same; those
    of exclusive classes add up to 1. A number that is no probability becomes NaN.

    Args:
        knots: logits of scores and of their probabilities, ``(classes, 2, knots)``.
        classes: whether there is a class axis.
        exclusive: whether probabilities of the classes add up to 1.

    Example:
        >>> module = Recalibration(torch.tensor([[[-1.0, 1.0], [-2.0, 2.0]]]))
        >>> module(torch.tensor([0.5, 0.731]))
        tensor([0.5000, 0.8807])
    """

    knots: Tensor

    def __init__(self, knots: Tensor, classes: bool = False, exclusive: bool = False) -> None:
        super().__init__()
        self.classes = classes
        self.exclusive = exclusive
        self.register_buffer("knots", knots.float())

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The largest change of a score, of each class before probabilities add up to 1."""
        scores, probabilities = self._curves()
        change = (probabilities - scores).abs().amax(-1)
        if not self.classes:
            change = change[0]
        return {"largest_change": change}

    def plot(
        self,
        score: Score = None,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the calibrated probability of each score, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        scores, probabilities = self._curves()
        return plot_curves(
            scores.expand_as(probabilities),
            probabilities,
            ax=ax,
            xlabel="Score",
            ylabel="Calibrated probability",
            name="recalibration",
            label=label,
            labels=labels,
            score=score,
            curve_score=self.scalars["largest_change"],
            score_format="largest change {:.3f}",
            lowest_is_best=True,
            references=[CALIBRATED],
            line_kwargs=line_kwargs,
        )

    def _curves(self) -> tuple[Tensor, Tensor]:
        """Return even scores ``(points,)``, and their probabilities ``(classes, points)``."""
        scores = torch.linspace(0, 1, CURVE_POINTS, dtype=torch.float64)
        logits = torch.logit(scores, NEAREST_SCORE)
        knots = self.knots.detach().cpu().double()
        curves = [torch.sigmoid(_interpolated(logits, class_knots)) for class_knots in knots]
        return scores, torch.stack(curves)

    def forward(self, preds: Tensor) -> Tensor:
        """Return the calibrated probability of each score."""
        self._check(preds)
        scores = preds
        if preds.dtype != torch.float64:
            scores = preds.float()
        is_probability = (scores >= 0) & (scores <= 1)
        logits = torch.logit(scores, NEAREST_SCORE).where(is_probability, torch.nan)
        knots = self.knots.to(logits.dtype)
        if not self.classes:
            return torch.sigmoid(_interpolated(logits, knots[0])).to(preds.dtype)
        columns = [
            torch.sigmoid(_interpolated(column, class_knots))
            for column, class_knots in zip(logits.unbind(1), knots, strict=True)
        ]
        probabilities = torch.stack(columns, 1)
        if self.exclusive:
            probabilities = probabilities / probabilities.sum(1, keepdim=True)
        return probabilities.to(preds.dtype)

    def _check(self, preds: Tensor) -> None:
        has_classes = preds.shape[1:2] == self.knots.shape[:1]
        if preds.is_floating_point() and (has_classes or not self.classes):
            return
        shape = "of any shape"
        if self.classes:
            shape = f"(N, {len(self.knots)}, ...)"
        raise InputError(
            f"Expected argument `preds` to be probabilities {shape} but got {preds.dtype} of shape "
            f"{tuple(preds.shape)}. Pass scores like those that the release was counted from."
        )


def _interpolated(x: Tensor, knots: Tensor) -> Tensor:
    """Return the straight pieces through knots ``(2, knots)``, continued beyond both ends."""
    at, value = knots
    k = torch.searchsorted(at, x.contiguous()).clamp(1, len(at) - 1)
    slope = (value[k] - value[k - 1]) / (at[k] - at[k - 1])
    interpolated: Tensor = value[k] + slope * (x - at[k])
    return interpolated


def calibration_line(
    release: Release, confidence: float | None = None, of: IntervalOf = "population"
) -> CalibrationLine:
    r"""Return calibration intercept a and slope b (Cox 1958) of a release of probabilities.

    The line is :math:`\ln\frac{p}{1 - p} = a + b \ln\frac{s}{1 - s}`. With a class axis there is a
    line of each class against the rest.

    Args:
        release: of probabilities.
        confidence: probability that an interval holds its value.
        of: ``"population"`` for intervals of the values of the population that the examples were
            drawn from, ``"examples"`` for those of the examples themselves.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> scores = torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores).long())
        >>> bool(abs(calibration_line(metric.release()).slope - 1) < 0.2)
        True
    """
    check_of(of)
    lines = [
        _fitted_line(class_counts)
        for class_counts in _classes(release, confidence or 0.95, sampling=False)
    ]
    shaped = read(release).shaped
    values = np.array([line.values for line in lines])
    intercept, slope = shaped(values).unbind(-1)
    if confidence is None:
        return CalibrationLine(intercept, slope)
    if of == "population":
        by_name = population_intervals(release.overall, _likeliest_lines, confidence)
        likeliest = _likeliest_lines(read(release))
        return CalibrationLine(
            intercept,
            slope,
            intervals=(
                _moved(by_name["calibration_intercept"], intercept - likeliest.intercept),
                _moved(by_name["calibration_slope"], slope - likeliest.slope),
            ),
        )
    half_widths = []
    for line in lines:
        half_width_intercept = reach(line.draws[:, [0]], confidence)[0]
        half_width_slope = reach(line.draws[:, [1]], confidence)[0]
        half_widths.append((half_width_intercept, half_width_slope))
    low_intercept, low_slope = shaped(values - np.array(half_widths)).unbind(-1)
    high_intercept, high_slope = shaped(values + np.array(half_widths)).unbind(-1)
    intervals = (Interval(low_intercept, high_intercept), Interval(low_slope, high_slope))
    return CalibrationLine(intercept, slope, intervals)


def _moved(interval: Interval, distance: Tensor) -> Interval:
    return Interval(interval.low + distance, interval.high + distance)


def _likeliest_lines(histograms: Histograms) -> CalibrationLine:
    """Return the lines of maximum likelihood of all histograms at once, by Newton's steps."""
    leaf = histograms.flat
    edges = histograms.edges.numpy()
    centre = np.clip((edges[1:] + edges[:-1]) / 2, NEAREST_SCORE, 1 - NEAREST_SCORE)
    x = np.stack([np.ones_like(centre), logit(centre)])
    n = leaf.sum(1)
    calibrated = np.array([0.0, 1.0])
    lines = np.tile(calibrated, (len(leaf), 1))
    for _ in range(LINE_STEPS):
        p = expit(lines @ x)
        weight = n * p * (1 - p)
        information = np.einsum("ik,rk,jk->rij", x, weight, x) + RIDGE * np.eye(2)
        gradient = (leaf[:, 1] - n * p) @ x.T - RIDGE * (lines - calibrated)
        step = np.linalg.solve(information, gradient[..., None])[..., 0]
        length = np.abs(step).max(-1, keepdims=True)
        lines = lines + step / np.maximum(length, 1.0)
        if length.max() < LINE_PRECISION:
            break
    intercept, slope = histograms.shaped(lines).unbind(-1)
    return CalibrationLine(intercept, slope)


def recalibrate(release: Release, method: RecalibrationMethod = "isotonic") -> Recalibration:
    """Return a module from scores to calibrated probabilities, at no further cost of privacy.

    It has as many knots as the release can tell apart. Corrections are shrunk by the part that
    chance alone would correct: calibrated scores stay nearly as they are. With a class axis each
    class is calibrated against the rest.

    Args:
        release: of probabilities.
        method: ``"isotonic"`` for any rising curve, or ``"logistic"`` for a line of the logits:
            that of least Brier score, which is not the :func:`calibration_line` where no line fits.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> scores = torch.rand(20_000)
        >>> metric.update(scores, torch.bernoulli(scores**2).long())  # scores are too high
        >>> bool(abs(recalibrate(metric.release())(torch.tensor(0.5)) - 0.25) < 0.1)
        True
    """
    check_choice("method", method, get_args(RecalibrationMethod))
    fit = _straight_knots
    if method == "isotonic":
        fit = _curve_knots
    knots = [fit(class_counts) for class_counts in _classes(release, 0.95, sampling=True)]
    histograms = read(release)
    length = max(class_knots.shape[1] for class_knots in knots)
    padded = np.stack([_padded(class_knots, length) for class_knots in knots])
    return Recalibration(
        torch.from_numpy(padded), classes=histograms.leaf.ndim > 2, exclusive=histograms.exclusive
    )


def _padded(knots: Floats, length: int) -> Floats:
    """Return this number of knots: further ones continue the last piece, whose slope is 1."""
    further = np.arange(1, length - knots.shape[1] + 1)
    padded: Floats = np.c_[knots, knots[:, -1:] + further]
    return padded


class _ClassCounts(NamedTuple):
    """The counts of one class against the rest."""

    tails: UncertainTails
    leaf: Floats
    """Negatives and positives, ``(2, leaves)``."""
    centre: Floats
    """Score of each leaf."""
    first: Places
    """The first leaf of each leaf of the release."""


def _classes(release: Release, confidence: float, sampling: bool) -> Iterator[_ClassCounts]:
    histograms = read(check_uncertain(release, confidence))
    check_probabilities(histograms.edges)
    edges = histograms.edges.numpy()
    centre = np.clip((edges[1:] + edges[:-1]) / 2, NEAREST_SCORE, 1 - NEAREST_SCORE)
    first = np.searchsorted(edges, release.last.edges.numpy()[:-1])
    for tails, leaf in zip(UncertainTails.of(release, sampling), histograms.flat, strict=True):
        yield _ClassCounts(tails, leaf, centre, first)


class _Line(NamedTuple):
    values: Floats
    """Intercept and slope."""
    draws: Floats
    """Errors of both, ``(vectors, 2)``."""


def _fitted_line(counts: _ClassCounts) -> _Line:
    r"""Return the line of maximum likelihood, corrected to be unbiased, and its errors.

    With :math:`x_k = (1, \operatorname{logit} s_k)`, Newton's steps solve the equations
    :math:`\sum_k x_k (c^+_k - n_k p_k) = 0`. An error of the equations moves the line by the
    inverse information times the error.
    """
    tails, leaf, centre, first = counts
    x = np.stack([np.ones_like(centre), logit(centre)])
    n = leaf.sum(0)
    calibrated = np.array([0.0, 1.0])
    line = calibrated
    for _ in range(LINE_STEPS):
        p = expit(line @ x)
        information = (x * (n * p * (1 - p))) @ x.T + RIDGE * np.eye(2)
        gradient = x @ (leaf[1] - n * p) - RIDGE * (line - calibrated)
        step = np.linalg.solve(information, gradient)
        line = line + step / max(np.abs(step).max(), 1.0)
        if np.abs(step).max() < LINE_PRECISION:
            break
    missing = np.zeros(2)
    draws = np.zeros((tails.noise.shape[1], 2))
    scatter = np.zeros(2)
    for row, residual in ((0, -p), (1, 1 - p)):
        # an example of a leaf of the release adds this to the equations
        term = residual * x
        examples, mean, square = _means(leaf[row], first, term, term**2)
        missing += mean @ (-np.diff(tails.seen[row]) - examples)
        draws += -np.diff(tails.noise[row]) @ mean.T
        variance = np.maximum(square - mean**2, 0)
        scatter += variance @ (examples + (LEAF_MEAN_DEVIATION * examples) ** 2)
    draws += np.sqrt(scatter) * np.random.default_rng(0).standard_normal(draws.shape)
    inverse = np.linalg.inv(information)
    return _Line(line + missing @ inverse, draws @ inverse)


def _straight_knots(counts: _ClassCounts) -> Floats:
    """Return two knots of the line of least Brier score, shrunk towards calibrated scores."""
    likeliest = _fitted_line(counts)
    n = np.maximum(counts.leaf.sum(0), 0.0)
    rate = counts.leaf[1] / np.maximum(n, 1e-300)
    fit = least_squares(
        _brier_residuals, likeliest.values, args=(logit(counts.centre), rate, np.sqrt(n))
    )
    change = fit.x - [0, 1]
    covariance = np.cov(likeliest.draws.T) + 1e-12 * np.eye(2)
    if counts.tails.empty:
        change *= 0
    else:
        distance = float(change @ np.linalg.solve(covariance, change))
        change *= _shrinkage(distance, 2)
    intercept, slope_change = change
    return np.array([[-1.0, 1.0], [intercept - 1 - slope_change, intercept + 1 + slope_change]])


def _brier_residuals(line: Floats, x: Floats, rate: Floats, weight: Floats) -> Floats:
    residuals: Floats = weight * (expit(line[0] + line[1] * x) - rate)
    return residuals


def _curve_knots(counts: _ClassCounts) -> Floats:
    """Return knots of the isotonic curve, shrunk towards calibrated scores."""
    tails, leaf, centre, first = counts
    begin = _knot_places(tails, leaves=len(first))
    ends = np.r_[begin, len(first)]
    unbiased = -np.diff(tails.seen[..., ends])
    guess = -np.diff(tails.guess[..., ends])
    draws = -np.diff(tails.noise[..., ends])
    n = np.maximum(guess.sum(0), 1.0)
    rate = guess[1] / n
    _, scores = _means(leaf.sum(0), first[begin], centre[None])
    score = scores[0]
    change = rate + ((1 - rate) * unbiased[1] - rate * unbiased[0]) / n - score
    variance = ((1 - rate) * draws[1] - rate * draws[0]).var(0) / n**2 + 0.25 / n**2
    if tails.empty:
        change *= 0
    else:
        change *= _shrinkage(float((change**2 / variance).sum()), len(change))
    least = np.minimum(np.minimum(score, 1 - score), 0.5 / n)
    value = np.clip(_isotonic(score + change, 1 / variance), least, 1 - least)
    curve = np.stack([logit(score), logit(value)])
    # pieces of slope 1 at both ends: calibrated scores stay beyond the knots
    knots: Floats = np.c_[curve[:, :1] - 1, curve, curve[:, -1:] + 1]
    return knots


def _knot_places(tails: UncertainTails, leaves: int) -> Places:
    """Return the first leaf of the release of each knot, so that knots hold about as much."""
    sizes = np.maximum(tails.guess[:, :1], 1.0)
    variance = np.diff(tails.noise).var(1).sum() / (2 * sizes.sum()) ** 2
    knots = int(np.clip(KNOT_FACTOR * max(variance, 1e-300) ** -0.2, FEWEST_KNOTS, MOST_KNOTS))
    mass = (tails.guess / sizes).mean(0)
    inner = np.searchsorted(-mass, -np.linspace(1, 0, knots + 1)[1:-1])
    places: Places = np.unique(np.r_[0, np.minimum(inner, leaves - 1)])
    return places


def _shrinkage(distance: float, freedom: int) -> float:
    """Return the factor of James and Stein: the part of a correction beyond chance."""
    return max(1 - freedom / max(distance, 1e-300), 0.0)


def _isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the nearest rising values.

    A value is the largest over all starts, of the smallest over all ends, of the weighted means
    from start to end.
    """
    weights = np.maximum(weights / weights.max(), 1e-9)  # smaller ones would be lost in the sums
    sums = np.r_[0.0, (values * weights).cumsum()]
    sizes = np.r_[0.0, weights.cumsum()]
    start, end = np.ogrid[: len(values), 1 : len(values) + 1]
    size = np.where(start < end, sizes[end] - sizes[start], 1.0)
    means = np.where(start < end, (sums[end] - sums[start]) / size, np.inf)
    lowest = np.minimum.accumulate(means[:, ::-1], 1)[:, ::-1]
    return np.array([lowest[: k + 1, k].max() for k in range(len(values))])


def _means(counts: Floats, first: Places, *values: Floats) -> list[Floats]:
    """Return the counts from each first leaf to the next, and the means of the values there.

    Values and means are ``(rows, leaves)``.
    """
    weights = counts + 1e-9
    examples = np.add.reduceat(weights, first)
    means = [np.add.reduceat(value * weights, first, axis=-1) / examples for value in values]
    return [examples, *means]
