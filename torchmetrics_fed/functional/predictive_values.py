"""Predictive values: what a positive or a negative call means where the model will be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.confusion import confusion_at
from torchmetrics_fed.functional.figures.canvas import draw_curves, dress, entries, open_axes
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts
from torchmetrics_fed.typing import Floats


class PredictiveValues(NamedTuple):
    """The positives' share of those called positive (PPV), the negatives' of the others (NPV), and their sources.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import predictive_values
        >>> predictive_values(torch.tensor([[3, 1], [1, 3]]), 0.5).positive
        tensor(0.7500, dtype=torch.float64)
    """

    positive: Tensor
    negative: Tensor
    sensitivity: Tensor
    specificity: Tensor
    prevalence: Tensor
    threshold: Tensor
    """The edge that was used, a float64 scalar."""
    intervals: tuple[Interval, Interval] | None = None
    """Of PPV and NPV, if asked for."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """PPV and NPV."""
        return {"positive_predictive_value": self.positive, "negative_predictive_value": self.negative}

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw both values at any prevalence, marked at this one with their intervals, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.

        Example:
            >>> import torch
            >>> from torchmetrics_fed.functional import predictive_values
            >>> fig, ax = predictive_values(torch.tensor([[3, 1], [1, 3]]), 0.5).plot()
            >>> ax.get_legend_handles_labels()[1]
            ['PPV', 'NPV']
        """
        x = torch.linspace(0, 1, 201, dtype=torch.float64)
        curves = torch.cat(_values(*(rate.cpu().reshape(-1, 1) for rate in (self.sensitivity, self.specificity)), x))
        names = entries(len(curves) // 2, ("", label, labels), None, "")
        both = [f"{name}, {kind}".removeprefix(", ") for kind in ("PPV", "NPV") for name in names]
        fig, ax = open_axes(ax, both)
        colours = draw_curves(ax, x.expand_as(curves), curves, both if len(names) * 2 == len(curves) else names)
        at = self.prevalence.expand_as(self.positive).cpu().reshape(-1).repeat(2)
        ax.scatter(at, torch.cat([value.cpu().reshape(-1) for value in self[:2]]), s=18, color=colours, zorder=3)
        if self.intervals is not None:
            ends = zip(*self.intervals, strict=True)
            low, high = (torch.cat([end.cpu().reshape(-1) for end in both]) for both in ends)
            ax.vlines(at, low, high, color=colours, linewidth=1.2, zorder=2.5)
        dress(ax, "Prevalence", "Predictive value")
        return fig, ax


def predictive_values(
    source: Readable,
    threshold: float,
    prevalence: float | None = None,
    confidence: float | None = None,
    population: bool = False,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
) -> PredictiveValues:
    r"""Return the predictive values of "score >= threshold" where the positives' share is ``prevalence``.

    :math:`PPV = \frac{\pi T}{\pi T + (1 - \pi) F}`, and NPV likewise with 1 - F and 1 - T. A call that nobody gets has
    the value 1.

    Args:
        source: as in :func:`confusion_at`, and likewise ``edges`` and ``reconstruction``.
        threshold: any finite score; the nearest edge is used.
        prevalence: :math:`\pi` where the model will be used; that of the counts if not given.
        confidence: probability of each interval (Fieller's, of the odds); needs a release.
        population: whether the values of the population that the examples were drawn from are meant.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import predictive_values
        >>> predictive_values(torch.tensor([[3, 1], [1, 3]]), 0.5, prevalence=0.1).positive
        tensor(0.2500, dtype=torch.float64)
    """
    if prevalence is not None and not 0 <= prevalence <= 1:
        raise InputError(f"Expected argument `prevalence` to be in [0, 1] but got {prevalence!r}. Give a fraction.")
    histograms = read(source, edges, reconstruction)
    matrix, edge = confusion_at(histograms, threshold)
    negatives, positives = matrix.double().sum(-1).unbind(-1)
    specificity = torch.where(negatives > 0, matrix[..., 0, 0] / negatives, 1.0)
    sensitivity = torch.where(positives > 0, matrix[..., 1, 1] / positives, 0.0)
    own = positives / (negatives + positives).clamp(min=1e-300)
    share = own if prevalence is None else torch.full_like(own, prevalence)
    values, intervals = _values(sensitivity, specificity, share), None
    if confidence is not None:
        release, at = check_uncertain(source, confidence), edge.numpy()[None]
        counts = UncertainCounts.of(release, population, histograms.flat, histograms.edges.numpy(), at)
        ends = histograms.shaped(np.array([_bounds(known, prevalence, confidence) for known in counts])).unbind(-2)
        first, second = (
            Interval(torch.minimum(end[..., 0], value), torch.maximum(end[..., 1], value))
            for end, value in zip(ends, values, strict=True)
        )
        intervals = first, second
    return PredictiveValues(*values, sensitivity, specificity, share, edge, intervals)


def _values(sensitivity: Tensor, specificity: Tensor, prevalence: Tensor) -> tuple[Tensor, Tensor]:
    true, false = prevalence * sensitivity, (1 - prevalence) * (1 - specificity)
    rejected, missed = (1 - prevalence) * specificity, prevalence * (1 - sensitivity)
    first, second = (torch.where(a + b > 0, a / (a + b), 1.0) for a, b in ((true, false), (rejected, missed)))
    return first, second


def _bounds(known: UncertainCounts, prevalence: float | None, confidence: float) -> list[list[float]]:
    """Return the ends of PPV and of NPV of one class."""
    if known.empty:
        return [[0.0, 1.0]] * 2
    total, above, totals, draws = known.seen[:, 0], known.seen[:, 1], known.draws[..., 0], known.draws[..., 1]
    ends = []
    for counts, moved, rows in ((above, draws, [1, 0]), (total - above, totals - draws, [0, 1])):
        weight = np.ones(2)
        if prevalence is not None:
            moved, weight = moved - (counts / total)[:, None] * totals, np.array([1 - prevalence, prevalence]) / total
        parts = weight * counts, weight[:, None] * moved, weight * known.slack[:, 1]
        ends.append(_share(*(part[rows] for part in parts), confidence))
    return ends


def _share(counts: Floats, moved: Floats, slack: Floats, confidence: float) -> list[float]:
    """Return Fieller's interval of the first count's share of both: of their ratio r, where a - r b may be 0."""
    a, b = np.maximum(counts, 0)
    off = np.abs(b * moved[0] - a * moved[1])
    c = order_statistic(off, confidence) / max(np.sqrt((off**2).mean()), 1e-300)
    va, vb = (c * moved.std(-1)) ** 2
    ends = []
    for sign in (-1, 1):
        a, b = np.maximum(counts + sign * slack * [1, -1], 0)
        middle = a * b + np.sqrt(max(a**2 * vb + b**2 * va - va * vb, 0))
        top, bottom = (max(a**2 - va, 0), middle) if sign < 0 else (middle, max(b**2 - vb, 0))
        ends.append(top / (top + bottom) if top + bottom > 0 else (1 + sign) / 2)
    return ends
