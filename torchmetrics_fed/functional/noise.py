"""A word where the noise of a release drowns what it says."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import numpy as np

from torchmetrics_fed.functional.band import average_precision_interval
from torchmetrics_fed.reconstruct.uncertainty.areas import noisy_areas
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Average

# Noise that moves an AUROC by more than this, with a probability of 95%, is worth a word; the normal law's 95%.
_MOST, _NORMAL = 0.05, 1.96
# Half the width of an average precision's interval that is worth a word; ties make it wide at any epsilon.
_MOST_PRECISION = 0.03


def warn_if_drowned(release: Release, average: Average | None) -> None:
    """Warn, once for each private release, if its noise moves the AUROC by much; of classes, the one it moves most."""
    release = release.overall
    if release in _known or release.spec.rows != 2:
        return
    _known.add(release)
    area, deviation = noisy_areas(release, pooled=average == "micro")
    worst = int(deviation.argmax())
    whose = f"The AUROC of class {worst} is" if len(area) > 1 else "The AUROC of this release is"
    value, reach = float(area[worst]), _NORMAL * float(deviation[worst])
    if average in ("macro", "weighted"):
        value, reach = float(area.mean()), _NORMAL * float(np.sqrt((deviation**2).mean() / len(deviation)))
        whose = "The mean AUROC of this release is"
    if reach <= _MOST:
        return
    spec = release.spec
    over = f" over {spec.classes} {'labels' if spec.task == 'multilabel' else 'classes'}" if spec.classes > 1 else ""
    fewer = ", fewer classes" if spec.classes > 1 else ""
    warnings.warn(
        f"{whose} about {value:.2f}, but the noise of epsilon {spec.epsilon:g}{over} moves it by about "
        f"{min(reach, 1.0):.2f} (95%): it may be anything from {max(value - reach, 0.0):.2f} to "
        f"{min(value + reach, 1.0):.2f}. More examples{fewer} or a larger epsilon would help; "
        "`python -m torchmetrics_fed plan` says how much.",
        UserWarning,
        stacklevel=4,
    )


def warn_of_precision(release: Release) -> None:
    """Warn, once for each release, if noise or scores that may be tied leave its average precision uncertain."""
    release = release.overall
    if release in _known_precision or release.spec.rows != 2:
        return
    _known_precision.add(release)
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
        UserWarning,
        stacklevel=4,
    )


_known: WeakSet[Release] = WeakSet()
_known_precision: WeakSet[Release] = WeakSet()
