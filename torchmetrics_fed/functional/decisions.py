"""Decisions: the net benefit of acting on scores, and the positives among the highest scores."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Estimate, bounds_of_classes, check_uncertain
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures.canvas import (
    RATE_LIMITS,
    Labels,
    ReferenceLine,
    plot_curves,
    rows,
)
from torchmetrics_fed.functional.figures.notebook import result_html
from torchmetrics_fed.functional.intervals import check_of, curve_bounds
from torchmetrics_fed.functional.source import read
from torchmetrics_fed.reconstruct.histograms import Histograms, Readable
from torchmetrics_fed.reconstruct.uncertainty.bands import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import counts_above
from torchmetrics_fed.typing import Floats, IntervalOf

Positions: TypeAlias = Sequence[float] | Tensor | None
"""Where to read a curve; at each hundredth if None."""

SLOPE_DISTANCE = 0.01
"""The slope of cumulative gains at a fraction is that between fractions this far to both sides."""


class NetBenefit(NamedTuple):
    """A decision curve: true positives per example, less the cost of false positives.

    Treating no example has net benefit 0.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> net_benefit(counts, [0.25, 0.5]).treat_all
        tensor([0.3333, 0.0000], dtype=torch.float64)
    """

    thresholds: Tensor
    """Probabilities from which on one would act, ``(thresholds,)``."""
    model: Tensor
    """Net benefit of acting on the scores of the model, ``(..., thresholds)``."""
    treat_all: Tensor
    """Net benefit of acting on every example, ``(..., thresholds)``."""
    low: Tensor | None = None
    """Bounds of ``model`` that hold at all these thresholds at once, if a confidence was given."""
    high: Tensor | None = None

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Mean advantage over the better of treating all and treating none."""
        return {"mean_advantage": (self.model - self.treat_all.clamp(min=0.0)).mean(-1)}

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw the curve with its band, and return ``(fig, ax)``.

        Treating all is drawn for a single class. Arguments are those of :meth:`ROCCurve.plot`.
        """
        x = self.thresholds.expand_as(self.model)
        treat_all = rows(self.treat_all)
        references = [ReferenceLine((0, 1), (0, 0), "treat none")]
        if len(treat_all) == 1:
            references.append(
                ReferenceLine(
                    self.thresholds.tolist(), treat_all[0].tolist(), "treat all", linestyle="-"
                )
            )
        band = None
        if self.low is not None and self.high is not None:
            band = Band(x, self.low, self.high)
        fig, ax = plot_curves(
            x,
            self.model,
            ax=ax,
            xlabel="Threshold probability",
            ylabel="Net benefit",
            name="model",
            label=label,
            labels=labels,
            references=references,
            band=band,
            rates=False,
            line_kwargs=line_kwargs,
        )
        highest = max(self.model.max().item(), treat_all.max().item(), 1e-3)
        ax.set(xlim=RATE_LIMITS, ylim=(-0.25 * highest, 1.1 * highest))
        return fig, ax


def net_benefit(
    source: Readable,
    thresholds: Positions = None,
    confidence: float | None = None,
    of: IntervalOf = "population",
) -> NetBenefit:
    r"""Return the decision curve (Vickers & Elkin 2006) of probabilities.

    The net benefit at threshold t is :math:`\frac{TP}{n} - \frac{FP}{n} \frac{t}{1 - t}`.

    Args:
        source: as in :func:`cumulative_gains`; scores are probabilities.
        thresholds: from 0 to below 1; 0.01, 0.02, ... 0.99 if not given.
        confidence: as in :func:`cumulative_gains`.
        of: as in :func:`cumulative_gains`.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> net_benefit(counts, [0.25, 0.5]).model
        tensor([0.3333, 0.2500], dtype=torch.float64)
    """
    histograms = read(source)
    check_probabilities(histograms.edges)
    t = _positions(thresholds, default=np.linspace(0.01, 0.99, 99))
    if not (len(t) and ((t >= 0) & (t < 1)).all()):
        raise InputError(
            "Expected argument `thresholds` to be from 0 to below 1 but some are not. "
            "Give probabilities."
        )
    curve = _net_benefit(histograms, t)
    if confidence is None:
        return curve
    check_of(of)
    if of == "population":
        release = check_uncertain(source, confidence)
        low, high = curve_bounds(release, lambda counts: _net_benefit(counts, t).model, confidence)
        return curve._replace(low=low, high=high)
    model = curve.model.reshape(-1, len(t)).numpy()
    low, high = bounds_of_classes(
        [partial(_net_benefit_estimate, odds=t / (1 - t))] * len(model),
        model,
        thresholds=t,
        source=source,
        histograms=histograms,
        confidence=confidence,
    )
    return curve._replace(low=low, high=high)


def _net_benefit(histograms: Histograms, t: Floats) -> NetBenefit:
    """Return the net benefit at thresholds t, without bounds."""
    odds = t / (1 - t)
    at_or_above = counts_above(
        histograms.flat, histograms.edges.numpy(), np.r_[histograms.edges[0], t]
    )
    fp, tp = at_or_above[..., 1:].swapaxes(0, 1)
    negatives, positives = at_or_above[..., :1].swapaxes(0, 1)
    n = np.maximum(negatives + positives, 1e-300)
    model = (tp - odds * fp) / n
    treat_all = (positives - odds * negatives) / n
    return NetBenefit(torch.from_numpy(t), histograms.shaped(model), histograms.shaped(treat_all))


def _net_benefit_estimate(counts: Floats, odds: Floats) -> Estimate:
    """Return the net benefit of the counts of a class, and its derivatives.

    The ``odds`` are t / (1 - t) at each threshold.
    """
    n = max(counts[:, 0].sum(), 1.0)
    fp, tp = counts[:, 1:]
    values = (tp - odds * fp) / n
    return Estimate(
        values=values,
        by_above=np.stack([-odds, np.ones_like(odds)]) / n,
        by_total=np.stack([-values, -values]) / n,
    )


class CumulativeGains(NamedTuple):
    """Recall (gain) and lift of selecting the highest scores, ``(..., fractions)``.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> cumulative_gains(counts, [0.25, 0.5]).lift
        tensor([1.5000, 1.5000], dtype=torch.float64)
    """

    selected: Tensor
    """The fraction of all examples that is selected, ``(fractions,)``."""
    recall: Tensor
    """The fraction of the positives that is among them."""
    lift: Tensor
    """How many times more positives are selected than among as many examples at random."""
    low: Tensor | None = None
    """Bounds of ``recall`` that hold at all these fractions at once, if a confidence was given."""
    high: Tensor | None = None

    def _repr_html_(self) -> str:
        return result_html(self)

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Recall and lift of the top tenth of the examples, or of the fraction nearest to it."""
        tenth = (self.selected - 0.1).abs().argmin()
        return {
            "recall_top_decile": self.recall[..., tenth],
            "lift_top_decile": self.lift[..., tenth],
        }

    def plot(
        self,
        ax: Any = None,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw recall against the selected fraction with its band, and return ``(fig, ax)``.

        Arguments are those of :meth:`ROCCurve.plot`.
        """
        x = _from_zero(self.selected.expand_as(self.recall))
        band = None
        if self.low is not None and self.high is not None:
            band = Band(x, _from_zero(self.low), _from_zero(self.high))
        return plot_curves(
            x,
            _from_zero(self.recall),
            ax=ax,
            xlabel="Selected examples",
            ylabel="Positives among them (recall)",
            name="gains",
            label=label,
            labels=labels,
            curve_score=self.scalars["lift_top_decile"],
            score_format="top tenth: lift {:.2f}",
            references=[ReferenceLine((0, 1), (0, 1), "at random")],
            band=band,
            has_mean=True,
            line_kwargs=line_kwargs,
        )


def _from_zero(values: Tensor) -> Tensor:
    """Return the coordinates of a curve with the point 0 in front."""
    return pad(values, (1, 0))


def cumulative_gains(
    source: Readable,
    fractions: Positions = None,
    confidence: float | None = None,
    of: IntervalOf = "population",
) -> CumulativeGains:
    """Return the recall of the fraction q of all examples with the highest scores, and recall / q.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``; within a leaf examples are taken at
            random.
        fractions: above 0, up to 1; 0.01, 0.02, ... 1 if not given.
        confidence: probability that ``low`` and ``high`` hold the curve at all fractions. The
            source is a release then.
        of: ``"population"`` for bounds of the curve of the population that the examples were drawn
            from, ``"examples"`` for those of the curve of the examples themselves.

    Example:
        >>> counts = read(torch.tensor([[3, 1], [1, 3]]), edges=torch.tensor([0, 0.5, 1]))
        >>> cumulative_gains(counts, [0.25, 0.5, 1.0]).recall
        tensor([0.3750, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source)
    q = _positions(fractions, default=np.linspace(0.01, 1, 100))
    if not (len(q) and ((q > 0) & (q <= 1)).all()):
        raise InputError(
            "Expected argument `fractions` to be above 0, up to 1, but not all are. "
            "The top tenth is 0.1."
        )
    recall, slope, thresholds = _gains(histograms, q)
    curve = CumulativeGains(
        torch.from_numpy(q), histograms.shaped(recall), histograms.shaped(recall / q)
    )
    if confidence is None:
        return curve
    check_of(of)
    if of == "population":
        release = check_uncertain(source, confidence)
        low, high = curve_bounds(release, lambda counts: _recall_at(counts, q), confidence)
    else:
        low, high = bounds_of_classes(
            [partial(_gains_estimate, q=q, slope=class_slope) for class_slope in slope],
            recall,
            thresholds=thresholds,
            source=source,
            histograms=histograms,
            confidence=confidence,
        )
    return curve._replace(low=low.clamp(0, 1), high=high.clamp(0, 1))


def _recall_at(histograms: Histograms, q: Floats) -> Tensor:
    """Return the recall of the fractions q of all examples."""
    recalls = []
    for fp, tp in above(histograms.flat)[..., ::-1]:
        selected = fp + tp
        recall = tp / max(tp[-1], 1e-300)
        recalls.append(np.interp(q, selected / max(selected[-1], 1e-300), recall))
    return histograms.shaped(np.stack(recalls))


def _gains(histograms: Histograms, q: Floats) -> tuple[Floats, Floats, Floats]:
    """Return recall, its slope, and the score threshold at each fraction, ``(classes, len(q))``."""
    before = np.maximum(q - SLOPE_DISTANCE, 0)
    after = np.minimum(q + SLOPE_DISTANCE, 1)
    descending_edges = histograms.edges.numpy()[::-1]
    recalls = []
    slopes = []
    thresholds = []
    for fp, tp in above(histograms.flat)[..., ::-1]:
        selected = fp + tp
        selected = selected / max(selected[-1], 1e-300)
        recall = tp / max(tp[-1], 1e-300)
        rise = np.interp(after, selected, recall) - np.interp(before, selected, recall)
        recalls.append(np.interp(q, selected, recall))
        slopes.append(rise / (after - before))
        thresholds.append(np.interp(q, selected, descending_edges))
    return np.stack(recalls), np.stack(slopes), np.stack(thresholds)


def _gains_estimate(counts: Floats, q: Floats, slope: Floats) -> Estimate:
    """Return the recall at the fraction q of all examples, and its derivatives.

    An error of the threshold moves a point along the curve, which does not matter. So the recall is
    corrected by the ``slope`` of the curve times the error of the selected fraction.
    """
    positives = max(counts[1, 0], 1.0)
    n = max(counts[:, 0].sum(), 1.0)
    recall = counts[1, 1:] / positives
    slope = slope / n
    excess = counts[:, 1:].sum(0) - q * n
    return Estimate(
        values=recall - slope * excess,
        by_above=np.stack([-slope, 1 / positives - slope]),
        by_total=np.stack([q * slope, q * slope - recall / positives]),
    )


def _positions(positions: Positions, default: Floats) -> Floats:
    if positions is None:
        return default
    return np.asarray(positions, dtype=np.float64).reshape(-1)
