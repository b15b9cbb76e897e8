"""Predictive values: what a call at a threshold is worth."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval, check_uncertain
from torchmetrics_fed.functional.confusion import confusion_at
from torchmetrics_fed.functional.figures import canvas
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.intervals import check_of
from torchmetrics_fed.functional.intervals import intervals as population_intervals
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.histograms import Histograms, Readable
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts, uncertain_counts
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, IntervalOf


class PredictiveValues(NamedTuple):
    """The share of positives among positive calls, and of negatives among negative calls.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> predictive_values(counts, 0.5).negative
        tensor(0.7500, dtype=torch.float64)
    """

    positive: Tensor
    """The positive predictive value, ``(...)``."""
    negative: Tensor
    """The negative predictive value, ``(...)``."""
    threshold: Tensor
    """The edge that was used, a float64 scalar."""
    prevalence: Tensor
    intervals: tuple[Interval, Interval] | None = None
    """Of both values, if a confidence was given."""

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Both values."""
        return {
            "positive_predictive_value": self.positive,
            "negative_predictive_value": self.negative,
        }

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: canvas.Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw both values, with their intervals if there are any, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        y = canvas.rows(torch.stack([self.positive, self.negative], -1))
        names = canvas.legend_entries(
            len(y),
            name="calls",
            label=label,
            labels=labels,
            score=y.T,
            score_format="PPV {:.3f}, NPV {:.3f}",
        )
        fig, ax = canvas.open_axes(ax, names)
        x = torch.tensor([0.0, 1.0]).expand_as(y)
        if len(y) > 1:
            x = torch.linspace(-0.2, 0.2, len(y))[:, None] + x
        colours = canvas.draw_curves(
            ax, x, y, names, style={"marker": "o", "linewidth": 0.4}, line_kwargs=line_kwargs
        )
        for number, interval in enumerate(self.intervals or ()):
            ax.vlines(
                x[:, number],
                interval.low.flatten(),
                interval.high.flatten(),
                colors=colours,
                alpha=0.5,
                linewidth=3,
            )
        ax.set(
            xticks=[0, 1],
            xticklabels=["positive", "negative"],
            xlim=(-0.5, 1.5),
            ylim=canvas.RATE_LIMITS,
        )
        xlabel = f"Call at threshold {self.threshold:.3g}"
        canvas.dress(ax, xlabel, "Predictive value", rates=False)
        return fig, ax


def predictive_values(
    source: Readable,
    threshold: float,
    prevalence: float | None = None,
    confidence: float | None = None,
    of: IntervalOf = "population",
) -> PredictiveValues:
    r"""Return the predictive values of "score >= threshold".

    :math:`PPV = \frac{\pi T}{\pi T + (1 - \pi) F}`, and NPV likewise with 1 - F and 1 - T. The
    value of a call that no example gets is 1. Intervals of the examples are Fieller's.

    Args:
        source: as in :func:`confusion_at`; a release if there is a ``confidence``.
        threshold: as in :func:`confusion_at`.
        prevalence: the share of positives :math:`\pi` where the model will be used; that of the
            counts if not given.
        confidence: probability that an interval holds its value.
        of: ``"population"`` for intervals of the values of the population that the examples were
            drawn from, ``"examples"`` for those of the examples themselves.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> predictive_values(counts, 0.5, prevalence=0.1).positive
        tensor(0.2500, dtype=torch.float64)
    """
    if prevalence is not None and not 0 <= prevalence <= 1:
        raise InputError(
            f"Expected argument `prevalence` to be in [0, 1] but got {prevalence!r}. "
            "Give a fraction."
        )
    histograms = read(source)
    matrix, edge = confusion_at(histograms, threshold)
    sizes = matrix.double().sum(-1)
    if prevalence is None:
        shares = sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-300)
    else:
        shares = torch.tensor([1 - prevalence, prevalence], dtype=torch.float64).expand_as(sizes)
    weighted = matrix * (shares / sizes.clamp(min=1e-300))[..., None]
    tn, fp = weighted[..., 0, :].unbind(-1)
    fn, tp = weighted[..., 1, :].unbind(-1)
    ppv = torch.where(tp + fp > 0, tp / (tp + fp), 1.0)
    npv = torch.where(tn + fn > 0, tn / (tn + fn), 1.0)
    intervals = None
    if confidence is not None and of == "population":
        release = check_uncertain(source, confidence)
        by_name = population_intervals(
            release,
            partial(predictive_values, threshold=threshold, prevalence=prevalence),
            confidence,
        )
        intervals = (
            by_name["positive_predictive_value"],
            by_name["negative_predictive_value"],
        )
    elif confidence is not None:
        check_of(of)
        release = check_uncertain(source, confidence)
        ends = _interval_ends(
            release,
            histograms,
            edge,
            prevalence=prevalence,
            confidence=confidence,
        )
        intervals = (
            _interval_around(ppv, ends[..., 0, :]),
            _interval_around(npv, ends[..., 1, :]),
        )
    return PredictiveValues(ppv, npv, edge, prevalence=shares[..., 1], intervals=intervals)


def _interval_around(value: Tensor, ends: Tensor) -> Interval:
    """Return the interval of these ends, ``(..., 2)``, widened if the value is outside."""
    low, high = ends.unbind(-1)
    return Interval(torch.minimum(low, value), torch.maximum(high, value))


def _interval_ends(
    release: Release,
    histograms: Histograms,
    edge: Tensor,
    *,
    prevalence: float | None,
    confidence: float,
) -> Tensor:
    """Return low and high end of PPV and NPV of each class, ``(..., 2 values, 2 ends)``."""
    counts_of_classes = uncertain_counts(
        release,
        leaf=histograms.flat,
        edges=histograms.edges.numpy(),
        thresholds=edge.numpy()[None],
    )
    ends = []
    for counts in counts_of_classes:
        if counts.empty:
            ends.append([(0.0, 1.0), (0.0, 1.0)])
        else:
            ends.append(_class_ends(counts, prevalence, confidence))
    return histograms.shaped(np.array(ends))


def _class_ends(
    counts: UncertainCounts, prevalence: float | None, confidence: float
) -> list[tuple[float, float]]:
    """Return low and high end of PPV and of NPV of one class."""
    total, above = counts.seen.T
    total_draws, above_draws = np.moveaxis(counts.draws, -1, 0)
    slack = counts.slack[:, 1]
    ends = []
    for calls, draws, right, wrong in (
        (above, above_draws, 1, 0),
        (total - above, total_draws - above_draws, 0, 1),
    ):
        weight = np.ones(2)
        if prevalence is not None:
            draws = draws - (calls / total)[:, None] * total_draws
            weight = np.array([1 - prevalence, prevalence]) / total
        calls = weight * calls
        draws = weight[:, None] * draws
        calls_slack = weight * slack
        ends.append(
            _fieller_ends(
                calls[[right, wrong]],
                draws[[right, wrong]],
                calls_slack[[right, wrong]],
                confidence,
            )
        )
    return ends


def _fieller_ends(
    calls: Floats, draws: Floats, slack: Floats, confidence: float
) -> tuple[float, float]:
    r"""Return Fieller's bounds of the share of right calls.

    They are the shares r / (1 + r) of all ratios r for which right - r wrong may be 0: with the
    variances a and b of right and wrong, :math:`(x - r y)^2 \le a + r^2 b`.

    Args:
        calls: right and wrong calls, ``(2,)``.
        draws: noise, and sampling error, of both, ``(2, vectors)``.
        slack: how far the order of scores within a leaf may move both, ``(2,)``.
        confidence: probability that the bounds hold.
    """
    right, wrong = calls
    slack_right, slack_wrong = slack
    deviation = np.abs(max(wrong, 0) * draws[0] - max(right, 0) * draws[1])
    c = order_statistic(deviation, confidence) / max(np.sqrt((deviation**2).mean()), 1e-300)
    a, b = (c * draws.std(-1)) ** 2

    x = max(right - slack_right, 0)
    y = max(wrong + slack_wrong, 0)
    low = _share(max(x**2 - a, 0), _fieller_root(x, y, a, b), if_empty=0.0)

    x = max(right + slack_right, 0)
    y = max(wrong - slack_wrong, 0)
    high = _share(_fieller_root(x, y, a, b), max(y**2 - b, 0), if_empty=1.0)
    return low, high


def _fieller_root(x: float, y: float, a: float, b: float) -> float:
    return float(x * y + np.sqrt(max(x**2 * b + y**2 * a - a * b, 0)))


def _share(part: float, rest: float, if_empty: float) -> float:
    if part + rest > 0:
        return part / (part + rest)
    return if_empty
