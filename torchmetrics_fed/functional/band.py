"""Confidence bands of curves and intervals of areas, at no further cost of privacy; a word where noise drowns them."""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.reconstruct.histograms import Readable, read
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
from torchmetrics_fed.reconstruct.uncertainty.thresholds import reach, uncertain_counts
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.typing import Average, Floats

# Recalls at which the lower bound of precision, a hyperbola between steps, is evaluated; lines between lie below it.
_RECALLS = np.linspace(0, 1, 129)
# Noise that moves an AUROC by more than this, with a probability of 95%, is worth a word; the normal law's 95%.
_MOST, _NORMAL = 0.05, 1.96
# Half the width of an average precision's interval that is worth a word; ties make it wide at any epsilon.
_MOST_PRECISION = 0.03
_said: defaultdict[str, WeakSet[Release]] = defaultdict(WeakSet)


class Band(NamedTuple):
    """What a curve is at least and at most, for all x at once.

    Lines through the points are the bounds; where a bound jumps, an x stands twice.

    Example:
        >>> band = Band(x=torch.tensor([0.0, 1.0]), low=torch.tensor([0.0, 0.8]), high=torch.tensor([0.5, 1.0]))
        >>> band.contains(torch.tensor([0.5, 0.5]), torch.tensor([0.3, 0.6]))
        tensor([False,  True])
    """

    x: Tensor
    """False positive rate or recall, ``(..., points)``, ascending from 0 to 1."""
    low: Tensor
    high: Tensor

    def contains(self, x: Tensor, y: Tensor) -> Tensor:
        """Return whether points lie in the band (of a single class), one bool for each; its border belongs to it."""
        at, low, high, point, value = (
            each.detach().cpu().double().numpy() for each in (*self, x, y)
        )
        slack, inside = 1e-9, np.ones(point.shape, dtype=np.bool_)
        for bound, sign in ((low, 1), (high, -1)):
            # where a bound jumps, both of its limits are border
            limits = [
                np.interp(point + off, at, sign * bound) for off in (-slack / 1_000, slack / 1_000)
            ]
            inside &= sign * value >= np.minimum(*limits) - slack
        return torch.from_numpy(inside)


class Interval(NamedTuple):
    """What a number is at least and at most.

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

    It holds the exact curve of all clients' scores, that nobody pooled: it allows for the privacy noise and for what
    happens between the release's edges, and is that second part alone where there is no noise.

    Args:
        release: any, binary or with a class axis: a band for each class then, each with this confidence.
        confidence: probability that the band holds the whole curve.
        population: whether the curve of the population that the examples were drawn from is meant.

    Example:
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> roc_band(metric.release()).contains(torch.tensor([0.5]), torch.tensor([1.0]))
        tensor([True])
    """

    def one(tails: UncertainTails) -> Sequence[Floats]:
        fpr, tpr = tails.ratios(((0, 0), (1, 1)), confidence)
        return staircase(straight(fpr, tails.ties), straight(tpr, tails.ties))

    return _band(release, confidence, population, one)


def precision_recall_band(
    release: Release, confidence: float = 0.95, population: bool = False
) -> Band:
    """Return a band that holds the whole PR curve, read as the step that average precision is the area of.

    Arguments are those of :func:`roc_band`.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> band = precision_recall_band(metric.release(), confidence=0.9)
    """

    def one(tails: UncertainTails) -> Sequence[Floats]:
        recall, false = tails.ratios(((1, 1), (0, 1)), confidence)
        steps, reached = staircase(recall, false, _RECALLS), staircase(recall, recall, _RECALLS)
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
        flat = (
            (tails.ties.first, 0, x > recall.high[1]),
            (tails.ties.last, -2, (x > 0) & (x < recall.low[-2])),
        )
        for tied, edge, inside in flat:
            if tied:
                low = np.where(inside, np.maximum(low, precision.low[edge]), low)
                high = np.where(inside, np.minimum(high, precision.high[edge]), high)
        return x, np.where(x > 0, low, 0.0), np.maximum(high, low)

    return _band(release, confidence, population, one)


def _band(
    release: Release,
    confidence: float,
    population: bool,
    one: Callable[[UncertainTails], Sequence[Floats]],
) -> Band:
    release = check_uncertain(release, confidence)
    classes = [one(tails) for tails in UncertainTails.of(release, population)]
    points = max(len(bounds[0]) for bounds in classes)  # classes with ties at an end have more
    padded = [
        [np.pad(each, (0, points - len(each)), "edge") for each in bounds] for bounds in classes
    ]
    x, low, high = (torch.from_numpy(np.stack(each)) for each in zip(*padded, strict=True))
    return Band(x[0], low[0], high[0]) if release.spec.task == "binary" else Band(x, low, high)


def auroc_interval(
    release: Release,
    confidence: float = 0.95,
    population: bool = False,
    binning: float | None = None,
) -> Interval:
    """Return an interval for the area under the ROC curve, with arguments as in :func:`roc_band`, and ``binning``.

    That is which part of what the order of scores within leaves can do is allowed for. 1 holds for any scores, and is
    the default without noise. Under privacy it is 0.1, enough for scores that run through leaves smoothly or are all
    tied; leaves that hold far more than others count in full in any case.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> auroc_interval(metric.release())
        Interval(low=tensor(0.7500, dtype=torch.float64), high=tensor(0.7500, dtype=torch.float64))
    """
    return _interval(release, confidence, population, binning, roc_area, 0.1)


def average_precision_interval(
    release: Release,
    confidence: float = 0.95,
    population: bool = False,
    binning: float | None = None,
) -> Interval:
    """Return an interval for the average precision; arguments are those of :func:`auroc_interval`.

    Under privacy ``binning`` is 0.25 if not given: ties within leaves lower the average precision, not the AUROC.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedAUROC
        >>> metric = FederatedAUROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> low, high = average_precision_interval(metric.release())
    """
    return _interval(release, confidence, population, binning, average_precision_area, 0.25)


def _interval(
    release: Release,
    confidence: float,
    population: bool,
    binning: float | None,
    area: Area,
    usual: float,
) -> Interval:
    release = check_uncertain(release, confidence)
    if binning is None:
        binning = usual if release.spec.privacy.charges else 1.0
    if not 0 <= binning <= 1:
        raise InputError(
            f"Expected argument `binning` to be from 0 to 1 but got {binning!r}. 1 holds for any scores."
        )
    ends = torch.from_numpy(area_interval(release, confidence, population, binning, area))
    return Interval(*(ends[0] if release.spec.task == "binary" else ends.T))


def check_confidence(confidence: float) -> None:
    """Raise unless ``confidence`` is a probability that simulated noise can tell."""
    if (
        isinstance(confidence, bool)
        or not isinstance(confidence, int | float)
        or not 0 < confidence <= 0.99
    ):
        raise InputError(
            f"Expected argument `confidence` to be a number above 0, up to 0.99, but got {confidence!r}. 0.95 is usual."
        )


def check_uncertain(release: object, confidence: float) -> Release:
    """Return the release of everybody; raise unless what may be off in it is known with this confidence."""
    check_confidence(confidence)
    if not isinstance(release, Release):
        raise no_release(release)
    if release.spec.multi_class == "ovo":
        raise InputError(
            'Expected a release with negatives and positives of each class but this one has multi_class="ovo". Bands '
            'are made for multi_class="ovr".'
        )
    return release.overall


Estimate: TypeAlias = tuple[Floats, Floats, Floats]
"""Values without bias, and how they change with each class's count above its threshold, and in all, ``(2, values)``."""


def bounds_at(
    source: Readable,
    thresholds: Floats,
    values: Floats,
    estimate: Callable[[Floats, int], Estimate],
    confidence: float | None,
    population: bool,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return bounds of values, ``(classes, values)``, that hold at once; None if there is no ``confidence``.

    ``estimate`` is given what is seen of the counts of a class, and its number. Values as they were read are within.
    """
    if confidence is None:
        return None, None
    release, histograms = check_uncertain(source, confidence), read(source)
    counts = uncertain_counts(
        release, population, histograms.flat, histograms.edges.numpy(), thresholds
    )
    ends = []
    for number, known in enumerate(counts):
        centre, above, total = estimate(known.seen, number)
        moved = above[:, None] * known.draws[..., 1:] + total[:, None] * known.draws[..., :1]
        slack = (np.abs(above) * known.slack[:, 1:]).sum(0)
        half = np.inf if known.empty else reach(moved.sum(0), confidence) + slack
        ends.append(
            [np.minimum(centre - half, values[number]), np.maximum(centre + half, values[number])]
        )
    low, high = (histograms.shaped(end.clip(*limits)) for end in np.stack(ends, 1))
    return low, high


def said_before(release: Release, what: str) -> bool:
    """Return whether this was asked of the release before: a warning is given once."""
    before = release in _said[what]
    _said[what].add(release)
    return before


def warn_if_drowned(release: Release, average: Average | None) -> None:
    """Warn, once for each private release, if its noise moves the AUROC by much; of classes, the one it moves most."""
    release = release.overall
    if release.spec.rows != 2 or said_before(release, "area"):
        return
    area, deviation = noisy_areas(release, pooled=average == "micro")
    worst = int(deviation.argmax())
    whose = f"The AUROC of class {worst} is" if len(area) > 1 else "The AUROC of this release is"
    value, reach = float(area[worst]), _NORMAL * float(deviation[worst])
    if average in ("macro", "weighted"):
        value, reach = (
            float(area.mean()),
            _NORMAL * float(np.sqrt((deviation**2).mean() / len(deviation))),
        )
        whose = "The mean AUROC of this release is"
    if reach <= _MOST:
        return
    spec = release.spec
    over = (
        f" over {spec.classes} {'labels' if spec.task == 'multilabel' else 'classes'}"
        if spec.classes > 1
        else ""
    )
    fewer = ", fewer classes" if spec.classes > 1 else ""
    warnings.warn(
        f"{whose} about {value:.2f}, but the noise of epsilon {spec.epsilon:g}{over} moves it by about "
        f"{min(reach, 1.0):.2f} (95%): it may be anything from {max(value - reach, 0.0):.2f} to "
        f"{min(value + reach, 1.0):.2f}. More examples{fewer} or a larger epsilon would help; "
        "`python -m torchmetrics_fed plan` says how much.",
        stacklevel=4,
    )


def warn_of_precision(release: Release) -> None:
    """Warn, once for each release, if noise or scores that may be tied leave its average precision uncertain."""
    release = release.overall
    if release.spec.rows != 2 or said_before(release, "precision"):
        return
    low, high = (ends.reshape(-1) for ends in average_precision_interval(release))
    worst = int((high - low).argmax())
    if float(high[worst] - low[worst]) <= 2 * _MOST_PRECISION:
        return
    whose = f" of class {worst}" if len(low) > 1 else ""
    warnings.warn(
        f"The average precision{whose} may be anything from {low[worst]:.2f} to {high[worst]:.2f} (95%): noise of "
        f"epsilon {release.spec.epsilon:g}, or scores that seem to be tied where no edge of the release tells them "
        "apart. Report it with its interval, `functional.average_precision_interval(metric.release())`. More examples "
        "or a larger epsilon would help, and for tied scores `grid=ScoreGrid.from_edges(...)`, with an edge between "
        "any two of their values.",
        stacklevel=4,
    )
