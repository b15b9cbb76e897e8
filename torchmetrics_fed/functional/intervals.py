"""Intervals of every number and bands of curves, at no further cost of privacy.

An interval is one of the population that the examples were drawn from: it allows for sampling and
for noise together. All of them come from one engine: plausible counts are drawn given the release
(:mod:`torchmetrics_fed.reconstruct.uncertainty.plausible`), the function of the number is applied
to all of them at once, and the spread of its values makes the interval. So any function of
histograms has intervals, with no code of its own.

With ``of="examples"``, areas and curves have an interval of another kind: of the value of all
clients' own examples, without bins and noise.

The sampling unit is the example. Where several examples of a person were counted, they are taken
as independent, and intervals are too narrow by what they have in common.

Two warnings are here, too: a release whose noise drowns its AUROC, or its average precision.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.functional.averages import Averaging
from torchmetrics_fed.functional.band import (
    Band,
    Interval,
    band_of_classes,
    check_uncertain,
    checked_binning,
    examples_area_interval,
    examples_precision_recall_band,
    examples_roc_band,
)
from torchmetrics_fed.functional.precision_recall import average_precision_from_counts
from torchmetrics_fed.functional.roc import auroc_from_counts
from torchmetrics_fed.reconstruct.histograms import Histograms, read
from torchmetrics_fed.reconstruct.tails import Aligned
from torchmetrics_fed.reconstruct.uncertainty.areas import average_precision_area, roc_area
from torchmetrics_fed.reconstruct.uncertainty.curves import precision_points, roc_points
from torchmetrics_fed.reconstruct.uncertainty.plausible import Plausible, plausible_counts
from torchmetrics_fed.reconstruct.uncertainty.spread import (
    correlated_mean,
    curve_ends,
    interval_ends,
    weighted_mean,
)
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Average, Floats, IntervalOf

ROC_BINNING = 0.1
"""Under privacy, the default ``binning`` of AUROC intervals of the examples."""

PRECISION_BINNING = 0.25
"""As :data:`ROC_BINNING`, of average precision: ties within leaves lower it more."""

WARNED_CONFIDENCE = 0.95
"""The confidence of the intervals that warnings are about."""

AREA_NOISE_WARNED_OF = 0.05
"""Noise that moves an AUROC by more than this, with a probability of 95%, is warned of."""

PRECISION_NOISE_WARNED_OF = 0.05
"""As :data:`AREA_NOISE_WARNED_OF`, of an average precision; ties count as noise."""

WIDE = 0.5
"""A number with a wider interval is shown with its interval only."""

Numbers: TypeAlias = Callable[[Histograms], Any]
"""A function of histograms: to a tensor, or to a result with ``.scalars``."""

_warned_releases: defaultdict[str, WeakSet[Release]] = defaultdict(WeakSet)


def intervals(
    release: Release,
    function: Numbers,
    confidence: float = 0.95,
    average: Averaging = None,
) -> dict[str, Interval]:
    """Return an interval for each number that a function makes of a release.

    It holds the value of the population that the examples were drawn from, with the probability
    ``confidence``: sampling and noise together, from exact counts and from private ones. The
    sampling unit is the example.

    Args:
        release: any, binary or with a class axis: then each class has its interval.
        function: of histograms, for instance :func:`~torchmetrics_fed.functional.youden`. It
            returns a tensor, whose interval is called ``"value"``, or a result with ``.scalars``.
        confidence: probability that an interval holds its value.
        average: None for an interval of each class, ``"micro"``, ``"macro"`` or ``"weighted"`` for
            one of the average.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.functional import youden
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> sorted(intervals(metric.release(), youden))
        ['threshold', 'value']
    """
    release = check_uncertain(release, confidence)
    check_choice("average", average or "none", ("none", "micro", "macro", "weighted"))
    return _intervals(release, function, confidence, average=average)


def _intervals(
    release: Release,
    function: Numbers,
    confidence: float,
    *,
    average: Averaging = None,
    sampling: bool = True,
) -> dict[str, Interval]:
    plausible = plausible_counts(release, sampling)
    histograms = read(release)
    if average == "micro":
        plausible = plausible.pooled()
        histograms = histograms.pooled()
    values = _values(plausible, function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the caller's own reading has warned
        read_values = _scalars(function(histograms))
    result = {}
    for name, rows in values.items():
        value = read_values[name].reshape(-1).double().cpu().numpy()
        sizes = plausible.sizes.min(-1)
        is_lost = plausible.lost
        if average in ("macro", "weighted"):
            weights = _weights(plausible, average)
            rows = correlated_mean(rows, weights)[:, None]
            value = weighted_mean(value[None], weights[:1])
            sizes = sizes.min(keepdims=True)
            is_lost = np.atleast_1d(is_lost.all())
        low, high = interval_ends(rows, value, confidence, size=sizes, is_lost=is_lost)
        ends = torch.from_numpy(np.stack([low, high]))
        has_classes = average in (None, "none") and release.spec.task != "binary"
        if not has_classes:
            ends = ends[:, 0]
        result[name] = Interval(ends[0], ends[1])
    return result


def _scalars(result: Any) -> dict[str, Tensor]:
    if isinstance(result, Tensor):
        return {"value": result}
    scalars: dict[str, Tensor] = result.scalars
    return scalars


def _values(plausible: Plausible, function: Numbers) -> dict[str, Floats]:
    """Return the function's numbers of all sets of counts, ``(sets, classes)``, by name."""
    sets = plausible.sets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # draws without a class are no news
        scalars = _scalars(function(_histograms(plausible, sets)))
    shape = sets.shape[:2]
    return {name: value.double().cpu().numpy().reshape(shape) for name, value in scalars.items()}


def _histograms(plausible: Plausible, sets: Floats) -> Histograms:
    """Return all sets of counts as histograms, the sets as if they were classes."""
    counts = torch.from_numpy(sets.reshape(-1, *sets.shape[2:]))
    return Histograms([counts], torch.from_numpy(plausible.edges), Aligned())


def _weights(plausible: Plausible, average: Average) -> Floats:
    """Return the weight of each class in an average, ``(sets, classes)``."""
    positives: Floats = plausible.sets[:, :, 1].sum(-1)
    if average == "macro":
        return np.ones_like(positives)
    return np.maximum(positives, 0.0)


class CurveBounds(NamedTuple):
    """Bounds of a curve at its points, ``(..., points)``."""

    low: Tensor
    high: Tensor


def curve_bounds(
    release: Release, function: Callable[[Histograms], Tensor], confidence: float
) -> CurveBounds:
    """Return bounds of a population's curve that hold at all of its points at once.

    Args:
        release: any, binary or with a class axis.
        function: from histograms to the points of a curve, ``(..., points)``.
        confidence: probability that the bounds of a class hold.
    """
    release = check_uncertain(release, confidence)
    plausible = plausible_counts(release)
    sets = plausible.sets
    points = function(_histograms(plausible, sets)).double().numpy()
    rows = points.reshape(*sets.shape[:2], -1)
    histograms = read(release)
    curve = function(histograms).double().numpy().reshape(sets.shape[1], -1)
    lows = []
    highs = []
    for number, class_curve in enumerate(curve):
        low, high = curve_ends(rows[:, number], class_curve, confidence)
        if plausible.lost[number]:
            low = np.full_like(low, -np.inf)
            high = np.full_like(high, np.inf)
        lows.append(low)
        highs.append(high)
    return CurveBounds(histograms.shaped(np.stack(lows)), histograms.shaped(np.stack(highs)))


def roc_band(
    release: Release,
    confidence: float = 0.95,
    of: IntervalOf = "population",
    average: Averaging = None,
) -> Band:
    """Return a band that holds the whole ROC curve with this probability.

    Args:
        release: any, binary or with a class axis: then there is a band for each class, each with
            this confidence.
        confidence: probability that the band holds the whole curve.
        of: ``"population"`` for the curve of the population that the examples were drawn from:
            noise and sampling together. ``"examples"`` for the exact curve of all clients' own
            scores, whatever they are: noise, and any order of scores between the edges of the
            release.
        average: ``"micro"`` for the band of the scores of all classes together, of a population.

    Example:
        >>> from torchmetrics_fed import FederatedROC, ScoreGrid
        >>> metric = FederatedROC(grid=ScoreGrid.from_edges([0, 0.5, 1]))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> band = roc_band(metric.release(), of="examples")
        >>> band.contains(torch.tensor([0.5]), torch.tensor([1.0]))
        tensor([True])
    """
    release = _checked(release, confidence, of, average)
    if of == "examples":
        return examples_roc_band(release, confidence)
    plausible = _averaged_counts(release, average)
    classes = [roc_points(plausible, number, confidence) for number in _classes(plausible)]
    return band_of_classes(classes, is_binary=_is_single(release, average))


def precision_recall_band(
    release: Release,
    confidence: float = 0.95,
    of: IntervalOf = "population",
    average: Averaging = None,
) -> Band:
    """Return a band that holds the whole PR curve, read as the step whose area is the AP.

    Arguments are those of :func:`roc_band`.

    Example:
        >>> from torchmetrics_fed import CentralDP, FederatedROC
        >>> metric = FederatedROC(privacy=CentralDP(epsilon=1.0))
        >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        >>> band = precision_recall_band(metric.release(), confidence=0.9)
    """
    release = _checked(release, confidence, of, average)
    if of == "examples":
        return examples_precision_recall_band(release, confidence)
    plausible = _averaged_counts(release, average)
    classes = [precision_points(plausible, number, confidence) for number in _classes(plausible)]
    return band_of_classes(classes, is_binary=_is_single(release, average))


def _checked(release: Release, confidence: float, of: IntervalOf, average: Averaging) -> Release:
    """Return the release of all groups together; raise unless it has such bands."""
    check_of(of)
    if average not in (None, "none", "micro"):
        raise InputError(
            f'Expected argument `average` to be None or "micro" but got {average!r}: a mean of '
            "curves has no band. Each class has its own."
        )
    if of == "examples" and average == "micro":
        raise InputError(
            'Expected no argument `average` with of="examples" but got "micro". The band of a '
            'population has it: of="population".'
        )
    return check_uncertain(release, confidence)


def check_of(of: IntervalOf) -> None:
    """Raise unless an interval can be of this."""
    check_choice("of", of, ("population", "examples"))


def _averaged_counts(release: Release, average: Averaging) -> Plausible:
    plausible = plausible_counts(release)
    if average == "micro":
        return plausible.pooled()
    return plausible


def _classes(plausible: Plausible) -> range:
    return range(len(plausible.estimate))


def _is_single(release: Release, average: Averaging) -> bool:
    return release.spec.task == "binary" or average == "micro"


def auroc_interval(
    release: Release,
    confidence: float = 0.95,
    of: IntervalOf = "population",
    binning: float | None = None,
) -> Interval:
    """Return an interval for the area under the ROC curve.

    Args:
        release: as in :func:`roc_band`.
        confidence: as in :func:`roc_band`.
        of: as in :func:`roc_band`.
        binning: with ``of="examples"``, the part of the effect of the order of scores within leaves
            that is allowed for. 1 holds for any scores, and is the default without noise. Under
            privacy the default is 0.1, enough for scores that run through leaves smoothly or are
            all tied. Leaves that hold far more than others count in full in any case.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC
        >>> metric = FederatedAUROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> print(auroc_interval(metric.release(), of="examples"))
        0.7500 to 0.7500
    """
    check_of(of)
    release = check_uncertain(release, confidence)
    if of == "population":
        return _intervals(release, auroc_from_counts, confidence)["value"]
    binning = checked_binning(release, binning, default=ROC_BINNING)
    return examples_area_interval(release, roc_area, confidence, binning=binning)


def average_precision_interval(
    release: Release,
    confidence: float = 0.95,
    of: IntervalOf = "population",
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
    check_of(of)
    release = check_uncertain(release, confidence)
    if of == "population":
        return _intervals(release, average_precision_from_counts, confidence)["value"]
    binning = checked_binning(release, binning, default=PRECISION_BINNING)
    return examples_area_interval(release, average_precision_area, confidence, binning=binning)


def is_wide(interval: Interval) -> bool:
    """Return whether an interval is so wide that its number is shown with the interval only."""
    return bool((interval.high - interval.low > WIDE).any())


def said_before(release: Release, topic: str) -> bool:
    """Return whether this function was called before for the release and the topic.

    So a release is warned of once.
    """
    before = release in _warned_releases[topic]
    _warned_releases[topic].add(release)
    return before


class _Drowned(NamedTuple):
    """A number that noise alone moves, and where it may be in the population."""

    subject: str
    value: float
    low: float
    high: float
    noise: float
    """How far noise alone moves it, to either side."""


def _worst(
    release: Release,
    function: Callable[..., Tensor],
    name: str,
    *,
    average: Average | None,
    least: float,
) -> _Drowned | None:
    """Return the number of a release that noise moves most, of all classes or of an average.

    None if noise moves it by at most ``least``.
    """
    if average == "none":
        average = None
    of_noise = _intervals(release, function, WARNED_CONFIDENCE, average=average, sampling=False)[
        "value"
    ]
    widths = (of_noise.high - of_noise.low).reshape(-1)
    worst = int(widths.argmax())
    if float(widths[worst]) / 2 <= least:
        return None
    whole = _intervals(release, function, WARNED_CONFIDENCE, average=average)["value"]
    subject = f"The {name}"
    if average in ("macro", "weighted"):
        subject = f"The mean {name}"
    elif len(widths) > 1:
        subject = f"The {name} of class {worst}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the caller's own reading has warned
        values = function(read(release), average=average).reshape(-1)
    return _Drowned(
        subject,
        value=float(values[worst]),
        low=float(whole.low.reshape(-1)[worst]),
        high=float(whole.high.reshape(-1)[worst]),
        noise=float(widths[worst]) / 2,
    )


def warn_if_drowned(release: Release, average: Average | None) -> None:
    """Warn, once for each private release, if its noise moves the AUROC by much.

    Without ``average`` the warning is about the class whose AUROC the noise moves most. The warning
    quotes the value that is returned, and the interval of the population around it.
    """
    release = release.overall
    spec = release.spec
    if spec.rows != 2 or said_before(release, "area"):
        return
    drowned = _worst(
        release, auroc_from_counts, "AUROC", average=average, least=AREA_NOISE_WARNED_OF
    )
    if drowned is None:
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
        f"{drowned.subject} of this release is {drowned.value:.2f}, but in the population it may "
        f"be anything from {drowned.low:.2f} to {drowned.high:.2f} (95%): the noise of epsilon "
        f"{spec.epsilon:g}{over_classes} alone moves it by about {drowned.noise:.2f}. More examples"
        f"{fewer_classes} or a larger epsilon would help; `python -m torchmetrics_fed plan` says "
        "how much.",
        stacklevel=4,
    )


def warn_of_precision(release: Release) -> None:
    """Warn, once for each release, if noise or ties leave its average precision uncertain."""
    release = release.overall
    if release.spec.rows != 2 or said_before(release, "precision"):
        return
    drowned = _worst(
        release,
        average_precision_from_counts,
        "average precision",
        average=None,
        least=PRECISION_NOISE_WARNED_OF,
    )
    if drowned is None:
        return
    warnings.warn(
        f"{drowned.subject} is {drowned.value:.2f}, but in the population it may be anything from "
        f"{drowned.low:.2f} to {drowned.high:.2f} (95%): noise of epsilon "
        f"{release.spec.epsilon:g}, or scores that seem to be tied where no edge of the release "
        "tells them apart. Report it with its interval, "
        "`functional.average_precision_interval(metric.release())`. More examples or a larger "
        "epsilon would help, and for tied scores `grid=ScoreGrid.from_edges(...)`, with an edge "
        "between any two of their values.",
        stacklevel=4,
    )


def warn_of_persons(release: Release) -> None:
    """Warn, once for each release, if a person may have several examples in it."""
    examples = release.spec.privacy.examples_per_person
    if examples == 1 or said_before(release, "persons"):
        return
    warnings.warn(
        f"Intervals take examples as independent, but a person has up to {examples} of them in "
        "this release. They do not cluster by person: read them as too narrow by what the examples "
        "of a person have in common.",
        stacklevel=3,
    )
