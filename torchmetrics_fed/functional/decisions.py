"""Decisions: what acting on a model's scores is worth, and how many of the positives the highest scores hold."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Estimate, bounds_at
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures.canvas import Labels, plot_curves, rows
from torchmetrics_fed.reconstruct.histograms import Readable, read
from torchmetrics_fed.reconstruct.uncertainty.bands import above
from torchmetrics_fed.reconstruct.uncertainty.thresholds import counts_above
from torchmetrics_fed.typing import Floats

Positions: TypeAlias = Sequence[float] | Tensor | None
"""Where to read a curve; at each hundredth if None."""

# The slope of cumulative gains is that between this much less and this much more of the examples.
_NEAR = 0.01


class NetBenefit(NamedTuple):
    """A decision curve: true positives per example, less what false positives cost. Treating none has 0.

    Example:
        >>> net_benefit(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).treat_all
        tensor([0.3333, 0.0000], dtype=torch.float64)
    """

    thresholds: Tensor
    """Probabilities from which on one would act, ``(thresholds,)``."""
    model: Tensor
    """Net benefit of acting on the model's scores, ``(..., thresholds)``."""
    treat_all: Tensor
    """Net benefit of acting on everybody, ``(..., thresholds)``."""
    low: Tensor | None = None
    """Bounds of ``model``, if asked for, that hold at all these thresholds at once."""
    high: Tensor | None = None

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Mean over the thresholds of what the model has beyond the better of treating all and treating none."""
        return {"mean_advantage": (self.model - self.treat_all.clamp(min=0.0)).mean(-1)}

    def plot(self, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw the curve with its band, as :meth:`ROCCurve.plot` does; treating all is drawn for a single class."""
        x, everybody, names = (
            self.thresholds.expand_as(self.model),
            rows(self.treat_all),
            ("model", label, labels),
        )
        band = None if self.low is None or self.high is None else Band(x, self.low, self.high)
        lines: list[tuple[Any, ...]] = [([0, 1], [0, 0], "treat none")]
        if len(everybody) == 1:
            lines.append((self.thresholds.tolist(), everybody[0].tolist(), "treat all", "-"))
        axes = "Threshold probability", "Net benefit"
        fig, ax = plot_curves(
            (x, self.model), (None, None, ""), axes, ax, names, *lines, band=band, rates=False
        )
        top = max(self.model.max().item(), everybody.max().item(), 1e-3)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.25 * top, 1.1 * top))
        return fig, ax


def net_benefit(
    source: Readable,
    thresholds: Positions = None,
    confidence: float | None = None,
    population: bool = False,
) -> NetBenefit:
    r"""Return the decision curve (Vickers & Elkin 2006): :math:`\frac{TP}{n} - \frac{FP}{n} \frac{t}{1 - t}` at each t.

    Its ``thresholds`` are from 0 to below 1; 0.01, 0.02, ... 0.99 if not given. Other arguments are those of
    :func:`cumulative_gains`; scores are probabilities.

    Example:
        >>> net_benefit(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).model
        tensor([0.3333, 0.2500], dtype=torch.float64)
    """
    histograms = read(source)
    check_probabilities(histograms.edges)
    at = (
        np.linspace(0.01, 0.99, 99)
        if thresholds is None
        else np.asarray(thresholds, dtype=np.float64).reshape(-1)
    )
    if not (len(at) and ((at >= 0) & (at < 1)).all()):
        raise InputError(
            "Expected argument `thresholds` to be from 0 to below 1 but some are not. Give probabilities."
        )
    odds = at / (1 - at)
    counts = counts_above(histograms.flat, histograms.edges.numpy(), np.r_[histograms.edges[0], at])
    negative, positive = counts.swapaxes(0, 1)
    size = np.maximum(negative[:, :1] + positive[:, :1], 1e-300)
    model, everybody = (
        (positive[:, k] - odds * negative[:, k]) / size for k in (slice(1, None), slice(1))
    )

    def estimate(seen: Floats, _: int) -> Estimate:
        size = max(seen[:, 0].sum(), 1.0)
        value = (seen[1, 1:] - odds * seen[0, 1:]) / size
        return (
            value,
            np.stack([-odds, np.ones_like(odds)]) / size,
            np.stack([-value, -value]) / size,
        )

    ends = bounds_at(source, at, model, estimate, confidence, population)
    return NetBenefit(
        torch.from_numpy(at), histograms.shaped(model), histograms.shaped(everybody), *ends
    )


class CumulativeGains(NamedTuple):
    """Recall (gain) and lift of selecting the highest scores, ``(..., fractions)``.

    Example:
        >>> cumulative_gains(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).lift
        tensor([1.5000, 1.5000], dtype=torch.float64)
    """

    selected: Tensor
    """The fraction of all examples that is selected, ``(fractions,)``."""
    recall: Tensor
    """The fraction of the positives that is among them."""
    lift: Tensor
    """How many times more positives these are than among as many examples taken at random."""
    low: Tensor | None = None
    """Bounds of ``recall``, if asked for, that hold at all these fractions at once."""
    high: Tensor | None = None

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Recall and lift of the top tenth of the examples, or of the fraction nearest to it."""
        tenth = (self.selected - 0.1).abs().argmin()
        return {
            "recall_top_decile": self.recall[..., tenth],
            "lift_top_decile": self.lift[..., tenth],
        }

    def plot(self, ax: Any = None, label: str | None = None, labels: Labels = None) -> Any:
        """Draw recall against the selected fraction with its band, as :meth:`ROCCurve.plot` does."""
        x, y = (pad(each.expand_as(self.recall), (1, 0)) for each in (self.selected, self.recall))
        ends = [pad(end, (1, 0)) for end in (self.low, self.high) if end is not None]
        score = None, self.scalars["lift_top_decile"], "top tenth: lift {:.2f}"
        axes, chance = (
            ("Selected examples", "Positives among them (recall)"),
            ([0, 1], [0, 1], "at random"),
        )
        names, band = ("gains", label, labels), Band(x, *ends) if ends else None
        return plot_curves((x, y), score, axes, ax, names, chance, band=band, mean=True)


def cumulative_gains(
    source: Readable,
    fractions: Positions = None,
    confidence: float | None = None,
    population: bool = False,
) -> CumulativeGains:
    """Return the cumulative gains: recall of the fraction q of all examples with the highest scores, and recall / q.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``; within a leaf examples are taken at random.
        fractions: above 0, up to 1; 0.01, 0.02, ... 1 if not given.
        confidence: probability that ``low`` and ``high`` hold the curve at all fractions. It needs a release.
        population: whether the curve of the population that the examples were drawn from is meant.

    Example:
        >>> cumulative_gains(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5, 1.0]).recall
        tensor([0.3750, 0.7500, 1.0000], dtype=torch.float64)
    """
    histograms = read(source)
    q = (
        np.linspace(0.01, 1, 100)
        if fractions is None
        else np.asarray(fractions, dtype=np.float64).reshape(-1)
    )
    if not (len(q) and ((q > 0) & (q <= 1)).all()):
        raise InputError(
            "Expected argument `fractions` to be above 0, up to 1, but not all are. The top tenth is 0.1."
        )
    before, after = np.maximum(q - _NEAR, 0), np.minimum(q + _NEAR, 1)
    recall, slope, at = np.empty((3, len(histograms.flat), len(q)))
    for number, (negative, positive) in enumerate(above(histograms.flat)[..., ::-1]):
        share, found = (tail / max(tail[-1], 1e-300) for tail in (negative + positive, positive))
        recall[number], ends, start = (np.interp(x, share, found) for x in (q, after, before))
        slope[number] = (ends - start) / (after - before)
        at[number] = np.interp(q, share, histograms.edges.numpy()[::-1])

    def estimate(seen: Floats, number: int) -> Estimate:
        # what moves a point along the curve does not matter: of the selected fraction, slope times what is off
        positives, size = max(seen[1, 0], 1.0), max(seen[:, 0].sum(), 1.0)
        part, steep = seen[1, 1:] / positives, slope[number] / size
        value = part - steep * (seen[:, 1:].sum(0) - q * size)
        return (
            value,
            np.stack([-steep, 1 / positives - steep]),
            np.stack([q * steep, q * steep - part / positives]),
        )

    ends = bounds_at(source, at, recall, estimate, confidence, population, limits=(0, 1))
    return CumulativeGains(
        torch.from_numpy(q), histograms.shaped(recall), histograms.shaped(recall / q), *ends
    )
