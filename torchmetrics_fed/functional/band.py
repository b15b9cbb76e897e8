"""Bands and intervals, and how they are made for all clients' own examples.

Those of a population are in :mod:`torchmetrics_fed.functional.intervals`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.histograms import Histograms, Readable
from torchmetrics_fed.reconstruct.uncertainty.areas import (
    Area,
    area_interval,
)
from torchmetrics_fed.reconstruct.uncertainty.bands import (
    Bounds,
    UncertainTails,
    staircase,
    straight,
)
from torchmetrics_fed.reconstruct.uncertainty.thresholds import (
    UncertainCounts,
    reach,
    uncertain_counts,
)
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.typing import Floats

PRECISION_RECALLS = np.linspace(0, 1, 129)
"""Recalls at which the lower bound of precision is evaluated.

The bound is a hyperbola between steps; lines between these recalls lie below it.
"""

BORDER = 1e-9
"""A point this far outside of a band is on its border: rounding moves points that much."""


class Band(NamedTuple):
    """Lower and upper bounds of a curve that hold for all x at once.

    Lines through the points are the bounds; where a bound jumps, an x stands twice.

    Example:
        >>> low = torch.tensor([0.0, 0.8])
        >>> high = torch.tensor([0.5, 1.0])
        >>> band = Band(x=torch.tensor([0.0, 1.0]), low=low, high=high)
        >>> band.contains(torch.tensor([0.5, 0.5]), torch.tensor([0.3, 0.6]))
        tensor([False,  True])
    """

    x: Tensor
    """False positive rate or recall, ``(..., points)``, ascending from 0 to 1."""
    low: Tensor
    high: Tensor

    def contains(self, x: Tensor, y: Tensor) -> Tensor:
        """Return whether points lie in the band of a single class, one bool for each point.

        The border belongs to the band.
        """
        at = _numpy(self.x)
        points = _numpy(x)
        values = _numpy(y)
        is_above_low = _is_above(points, values, at, _numpy(self.low))
        is_below_high = _is_above(points, -values, at, -_numpy(self.high))
        return torch.from_numpy(is_above_low & is_below_high)


def _numpy(values: Tensor) -> Floats:
    array: Floats = values.detach().cpu().double().numpy()
    return array


def _is_above(points: Floats, values: Floats, at: Floats, bound: Floats) -> NDArray[np.bool_]:
    """Whether values are at or above a bound; where the bound jumps, above the lower limit."""
    from_left = np.interp(points - BORDER / 1_000, at, bound)
    from_right = np.interp(points + BORDER / 1_000, at, bound)
    above: NDArray[np.bool_] = values >= np.minimum(from_left, from_right) - BORDER
    return above


class Interval(NamedTuple):
    """Lower and upper bounds of numbers.

    Example:
        >>> str(Interval(torch.tensor(0.25), torch.tensor(0.5)))
        '0.2500 to 0.5000'
    """

    low: Tensor
    high: Tensor

    def __str__(self) -> str:
        ends = zip(self.low.flatten().tolist(), self.high.flatten().tolist(), strict=True)
        return ", ".join(f"{low:.4f} to {high:.4f}" for low, high in ends)


def examples_roc_band(release: Release, confidence: float) -> Band:
    """Return a band that holds the ROC curve of all clients' own examples, whatever the scores.

    It allows for the privacy noise and for the unknown order of scores between the edges of the
    release; without noise for the order alone.
    """
    classes = [_roc_bounds(tails, confidence) for tails in UncertainTails.of(release)]
    return band_of_classes(classes, is_binary=release.spec.task == "binary")


def _roc_bounds(tails: UncertainTails, confidence: float) -> Sequence[Floats]:
    """Return x, low and high of the band of one class."""
    fpr, tpr = tails.ratios(((0, 0), (1, 1)), confidence)
    return staircase(straight(fpr, tails.ties), straight(tpr, tails.ties))


def examples_precision_recall_band(release: Release, confidence: float) -> Band:
    """Return a band that holds the PR curve of all clients' own examples, read as a step."""
    classes = [_precision_bounds(tails, confidence) for tails in UncertainTails.of(release)]
    return band_of_classes(classes, is_binary=release.spec.task == "binary")


def _precision_bounds(tails: UncertainTails, confidence: float) -> Sequence[Floats]:
    """Return recall, and low and high precision, of the band of one class.

    With recall and ``false``, the false positives in units of the positives, precision is
    recall / (recall + false).
    """
    recall, false = tails.ratios(((1, 1), (0, 1)), confidence)
    steps = staircase(recall, false, PRECISION_RECALLS)
    reached = staircase(recall, recall, PRECISION_RECALLS)
    x = steps.x
    low = np.divide(x, x + steps.high, out=np.ones_like(x), where=x + steps.high > 0)
    high = np.divide(
        reached.high, reached.high + steps.low, out=np.ones_like(x), where=reached.high > 0
    )
    precision = Bounds(
        recall.low / np.maximum(recall.low + false.high, 1e-300),
        recall.high / np.maximum(recall.high + false.low, 1e-300),
    )
    # a PR curve is flat through tied scores, at the precision of their lower edge
    if tails.ties.first:
        is_tied = x > recall.high[1]
        low = np.where(is_tied, np.maximum(low, precision.low[0]), low)
        high = np.where(is_tied, np.minimum(high, precision.high[0]), high)
    if tails.ties.last:
        is_tied = (x > 0) & (x < recall.low[-2])
        low = np.where(is_tied, np.maximum(low, precision.low[-2]), low)
        high = np.where(is_tied, np.minimum(high, precision.high[-2]), high)
    return x, np.where(x > 0, low, 0.0), np.maximum(high, low)


def band_of_classes(classes: Sequence[Sequence[Floats]], is_binary: bool) -> Band:
    """Return the band of x, low and high of each class, which may differ in length."""
    points = max(len(x) for x, _, _ in classes)
    x, low, high = (
        torch.from_numpy(np.stack([_lengthened(row, points) for row in rows]))
        for rows in zip(*classes, strict=True)
    )
    if is_binary:
        return Band(x[0], low[0], high[0])
    return Band(x, low, high)


def _lengthened(values: Floats, points: int) -> Floats:
    """Return the values, the last one repeated up to this number of points."""
    return np.pad(values, (0, points - len(values)), "edge")


def checked_binning(release: Release, binning: float | None, default: float) -> float:
    if binning is None and release.spec.privacy.charges:
        return default
    if binning is None:
        return 1.0
    if not 0 <= binning <= 1:
        raise InputError(
            f"Expected argument `binning` to be from 0 to 1 but got {binning!r}. "
            "1 holds for any scores."
        )
    return binning


def examples_area_interval(
    release: Release, area: Area, confidence: float, *, binning: float
) -> Interval:
    """Return the interval of an area of all clients' own examples."""
    ends = torch.from_numpy(area_interval(release, confidence, binning, area))
    if release.spec.task == "binary":
        ends = ends[0]
    low, high = ends.unbind(-1)
    return Interval(low, high)


def check_confidence(confidence: float) -> None:
    """Raise unless simulated noise can tell a quantile with this ``confidence``."""
    is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
    if not is_number or not 0 < confidence <= 0.99:
        raise InputError(
            "Expected argument `confidence` to be a number above 0, up to 0.99, but got "
            f"{confidence!r}. 0.95 is usual."
        )


def check_uncertain(release: object, confidence: float) -> Release:
    """Return the release of all groups together; raise unless its errors are known.

    They are known of a release with negatives and positives, for a valid ``confidence``.
    """
    check_confidence(confidence)
    if not isinstance(release, Release):
        raise no_release(release)
    if release.spec.multi_class == "ovo":
        raise InputError(
            "Expected a release with negatives and positives of each class but this one has "
            'multi_class="ovo". Bands are made for multi_class="ovr".'
        )
    return release.overall


class Estimate(NamedTuple):
    """Unbiased values of one class, and their derivatives by its counts.

    Counts are negatives and positives; derivatives are ``(2, values)``.
    """

    values: Floats
    by_above: Floats
    """By the count at or above the threshold of each value."""
    by_total: Floats
    """By the count in all."""

    def bounds(self, counts: UncertainCounts, confidence: float) -> tuple[Floats, Floats]:
        """Return low and high bounds of the values that hold at once with this ``confidence``."""
        if counts.empty:
            unknown = np.full_like(self.values, np.inf)
            return -unknown, unknown
        above_draws = counts.draws[..., 1:]
        total_draws = counts.draws[..., :1]
        draws = self.by_above[:, None] * above_draws + self.by_total[:, None] * total_draws
        slack = (np.abs(self.by_above) * counts.slack[:, 1:]).sum(0)
        half_width = reach(draws.sum(0), confidence) + slack
        return self.values - half_width, self.values + half_width


def bounds_of_classes(
    estimators: Sequence[Callable[[Floats], Estimate]],
    values: Floats,
    *,
    thresholds: Floats,
    source: Readable,
    histograms: Histograms,
    confidence: float,
) -> tuple[Tensor, Tensor]:
    """Return low and high bounds of the values of each class, which hold at once in a class.

    Args:
        estimators: for each class, the estimate from its unbiased counts: in all, and at or above
            each threshold, ``(2, 1 + values)``.
        values: the values that were read, ``(classes, values)``; bounds hold them.
        thresholds: of each value, ``(values,)`` or ``(classes, values)``.
        source: a release.
        histograms: what was read from the release.
        confidence: probability that the bounds of a class hold.
    """
    release = check_uncertain(source, confidence)
    counts_of_classes = uncertain_counts(
        release,
        leaf=histograms.flat,
        edges=histograms.edges.numpy(),
        thresholds=thresholds,
    )
    lows = []
    highs = []
    for estimator, class_values, counts in zip(estimators, values, counts_of_classes, strict=True):
        low, high = estimator(counts.seen).bounds(counts, confidence)
        lows.append(np.minimum(low, class_values))
        highs.append(np.maximum(high, class_values))
    return histograms.shaped(np.stack(lows)), histograms.shaped(np.stack(highs))
