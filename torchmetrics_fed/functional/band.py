"""Confidence bands of curves and intervals of areas, at no further cost of privacy.

Two warnings are here, too: a release whose noise drowns its AUROC, or its average precision.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.histograms import Histograms, Readable
from torchmetrics_fed.reconstruct.uncertainty.areas import (
    Area,
    area_interval,
    average_precision_area,
    noisy_areas,
    roc_area,
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
from torchmetrics_fed.typing import Average, Floats

PRECISION_RECALLS = np.linspace(0, 1, 129)
"""Recalls at which the lower bound of precision is evaluated.

The bound is a hyperbola between steps; lines between these recalls lie below it.
"""

ROC_BINNING = 0.1
"""Under privacy, the default ``binning`` of AUROC intervals; `benchmarks.bands` measures them."""

PRECISION_BINNING = 0.25
"""Under privacy, the default ``binning`` of average precision intervals: ties lower it more."""

BORDER = 1e-9
"""A point this far outside of a band is on its border: rounding moves points that much."""

NORMAL_QUANTILE = 1.96
"""95% of a normal law lie within this many standard deviations."""

AREA_NOISE_WARNED_OF = 0.05
"""Noise that moves an AUROC by more than this, with a probability of 95%, is warned of."""

PRECISION_WIDTH_WARNED_OF = 0.06
"""A wider interval of an average precision is warned of; ties make it wide at any epsilon."""

_warned_releases: defaultdict[str, WeakSet[Release]] = defaultdict(WeakSet)


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


def roc_band(release: Release, confidence: float = 0.95, population: bool = False) -> Band:
    """Return a band that holds the whole ROC curve with this probability, whatever the scores.

    It holds the exact curve of the scores of all clients together. It allows for the privacy noise
    and for the unknown order of scores between the edges of the release; without noise for the
    order alone.

    Args:
        release: any, binary or with a class axis: then there is a band for each class, each with
            this confidence.
        confidence: probability that the band holds the whole curve.
        population: whether the band holds the curve of the population that the examples were drawn
            from.

    Example:
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> roc_band(metric.release()).contains(torch.tensor([0.5]), torch.tensor([1.0]))
        tensor([True])
    """
    release = check_uncertain(release, confidence)
    classes = [_roc_bounds(tails, confidence) for tails in UncertainTails.of(release, population)]
    return _band(classes, is_binary=release.spec.task == "binary")


def _roc_bounds(tails: UncertainTails, confidence: float) -> Sequence[Floats]:
    """Return x, low and high of the band of one class."""
    fpr, tpr = tails.ratios(((0, 0), (1, 1)), confidence)
    return staircase(straight(fpr, tails.ties), straight(tpr, tails.ties))


def precision_recall_band(
    release: Release, confidence: float = 0.95, population: bool = False
) -> Band:
    """Return a band that holds the whole PR curve, read as the step whose area is the AP.

    Arguments are those of :func:`roc_band`.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> band = precision_recall_band(metric.release(), confidence=0.9)
    """
    release = check_uncertain(release, confidence)
    classes = [
        _precision_bounds(tails, confidence) for tails in UncertainTails.of(release, population)
    ]
    return _band(classes, is_binary=release.spec.task == "binary")


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


def _band(classes: Sequence[Sequence[Floats]], is_binary: bool) -> Band:
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


def auroc_interval(
    release: Release,
    confidence: float = 0.95,
    population: bool = False,
    binning: float | None = None,
) -> Interval:
    """Return an interval for the area under the ROC curve.

    Args:
        release: as in :func:`roc_band`.
        confidence: as in :func:`roc_band`.
        population: as in :func:`roc_band`.
        binning: the part of the effect of the order of scores within leaves that is allowed for. 1
            holds for any scores, and is the default without noise. Under privacy the default is
            0.1, enough for scores that run through leaves smoothly or are all tied. Leaves that
            hold far more than others count in full in any case.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> print(auroc_interval(metric.release()))
        0.7500 to 0.7500
    """
    release = check_uncertain(release, confidence)
    binning = _checked_binning(release, binning, default=ROC_BINNING)
    return _area_interval(release, roc_area, confidence, population=population, binning=binning)


def average_precision_interval(
    release: Release,
    confidence: float = 0.95,
    population: bool = False,
    binning: float | None = None,
) -> Interval:
    """Return an interval for the average precision; arguments are those of :func:`auroc_interval`.

    Under privacy the default of ``binning`` is 0.25: ties within leaves lower the average
    precision, not the AUROC.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedAUROC
        >>> metric = FederatedAUROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> low, high = average_precision_interval(metric.release())
    """
    release = check_uncertain(release, confidence)
    binning = _checked_binning(release, binning, default=PRECISION_BINNING)
    return _area_interval(
        release, average_precision_area, confidence, population=population, binning=binning
    )


def _checked_binning(release: Release, binning: float | None, default: float) -> float:
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


def _area_interval(
    release: Release, area: Area, confidence: float, *, population: bool, binning: float
) -> Interval:
    ends = torch.from_numpy(area_interval(release, confidence, population, binning, area))
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
    population: bool,
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
        population: whether they hold the values of the population.
    """
    release = check_uncertain(source, confidence)
    counts_of_classes = uncertain_counts(
        release,
        population,
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


def said_before(release: Release, topic: str) -> bool:
    """Return whether this function was called before for the release and the topic.

    So a release is warned of once.
    """
    before = release in _warned_releases[topic]
    _warned_releases[topic].add(release)
    return before


def warn_if_drowned(release: Release, average: Average | None) -> None:
    """Warn, once for each private release, if its noise moves the AUROC by much.

    Without ``average`` the warning is about the class whose AUROC the noise moves most.
    """
    release = release.overall
    spec = release.spec
    if spec.rows != 2 or said_before(release, "area"):
        return
    areas, deviations = noisy_areas(release, pooled=average == "micro")
    if average in ("macro", "weighted"):
        subject = "The mean AUROC of this release is"
        area = float(areas.mean())
        deviation = float(np.sqrt((deviations**2).mean() / len(deviations)))
    else:
        worst = int(deviations.argmax())
        subject = "The AUROC of this release is"
        if len(areas) > 1:
            subject = f"The AUROC of class {worst} is"
        area = float(areas[worst])
        deviation = float(deviations[worst])
    half_width = NORMAL_QUANTILE * deviation
    if half_width <= AREA_NOISE_WARNED_OF:
        return
    over_classes = ""
    fewer_classes = ""
    if spec.classes > 1:
        kind = "classes"
        if spec.task == "multilabel":
            kind = "labels"
        over_classes = f" over {spec.classes} {kind}"
        fewer_classes = ", fewer classes"
    warnings.warn(
        f"{subject} about {area:.2f}, but the noise of epsilon {spec.epsilon:g}{over_classes} "
        f"moves it by about {min(half_width, 1.0):.2f} (95%): it may be anything from "
        f"{max(area - half_width, 0.0):.2f} to {min(area + half_width, 1.0):.2f}. More examples"
        f"{fewer_classes} or a larger epsilon would help; `python -m torchmetrics_fed plan` says "
        "how much.",
        stacklevel=4,
    )


def warn_of_precision(release: Release) -> None:
    """Warn, once for each release, if its average precision is uncertain.

    Noise makes it uncertain, and so do scores that may be tied.
    """
    release = release.overall
    if release.spec.rows != 2 or said_before(release, "precision"):
        return
    interval = average_precision_interval(release)
    lows = interval.low.reshape(-1)
    highs = interval.high.reshape(-1)
    worst = int((highs - lows).argmax())
    if float(highs[worst] - lows[worst]) <= PRECISION_WIDTH_WARNED_OF:
        return
    of_class = ""
    if len(lows) > 1:
        of_class = f" of class {worst}"
    warnings.warn(
        f"The average precision{of_class} may be anything from {lows[worst]:.2f} to "
        f"{highs[worst]:.2f} (95%): noise of epsilon {release.spec.epsilon:g}, or scores that seem "
        "to be tied where no edge of the release tells them apart. Report it with its interval, "
        "`functional.average_precision_interval(metric.release())`. More examples or a larger "
        "epsilon would help, and for tied scores `grid=ScoreGrid.from_edges(...)`, with an edge "
        "between any two of their values.",
        stacklevel=4,
    )
