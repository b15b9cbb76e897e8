"""Net benefit: whether acting on a model's scores does more good than acting on everybody, or on nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, Estimate, bounds_at
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures import canvas
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts, counts_above


class NetBenefit(NamedTuple):
    """A decision curve: true positives per example, less what false positives cost. Treating none has 0.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import net_benefit
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

    def plot(self, ax: Any = None, label: str | None = None, labels: Sequence[str] | None = None) -> Any:
        """Draw the curve with its band, as :meth:`ROCCurve.plot` does; treating all is drawn for a single class."""
        x, model, everybody = self.thresholds.cpu(), canvas.rows(self.model), canvas.rows(self.treat_all)
        names = canvas.entries(len(model), ("model", label, labels), None, "")
        fig, ax = canvas.open_axes(ax, [*names, "treat all", "treat none"])
        canvas.draw_chance(ax, [0, 1], [0, 0], "treat none")
        if len(model) == 1:
            ax.plot(x, everybody[0], color="0.4", linewidth=0.9, label="treat all", gid="chance", zorder=1.5)
        colours = canvas.draw_curves(ax, x.expand_as(model), model, names)
        if self.low is not None and self.high is not None:
            canvas.draw_bands(ax, colours, names, Band(x.expand_as(model), self.low, self.high))
        top = max(model.max().item(), everybody.max().item(), 1e-3)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.25 * top, 1.1 * top))
        canvas.dress(ax, "Threshold probability", "Net benefit", rates=False)
        return fig, ax


def net_benefit(
    source: Readable,
    thresholds: Sequence[float] | Tensor | None = None,
    confidence: float | None = None,
    population: bool = False,
) -> NetBenefit:
    r"""Return the decision curve (Vickers & Elkin 2006): :math:`\frac{TP}{n} - \frac{FP}{n} \frac{t}{1 - t}` at each t.

    Args:
        source: a release of probabilities, or leaf counts ``(..., 2, leaves)``.
        thresholds: from 0 to below 1; 0.01, 0.02, ... 0.99 if not given.
        confidence: probability that ``low`` and ``high`` hold the curve at all thresholds. It needs a release.
        population: whether the curve of the population that the examples were drawn from is meant.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import net_benefit
        >>> net_benefit(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).model
        tensor([0.3333, 0.2500], dtype=torch.float64)
    """
    histograms = read(source)
    check_probabilities(histograms.edges)
    at = np.linspace(0.01, 0.99, 99) if thresholds is None else np.asarray(thresholds, dtype=np.float64).reshape(-1)
    if not (len(at) and ((at >= 0) & (at < 1)).all()):
        raise InputError("Expected argument `thresholds` to be from 0 to below 1 but some are not. Give probabilities.")
    places = np.r_[histograms.edges[0], at]
    odds = at / (1 - at)
    negative, positive = counts_above(histograms.flat, histograms.edges.numpy(), places).swapaxes(0, 1)
    size = np.maximum(negative[:, :1] + positive[:, :1], 1e-300)
    model, everybody = ((positive[:, k] - odds * negative[:, k]) / size for k in (slice(1, None), slice(1)))

    def estimate(known: UncertainCounts, _: int) -> Estimate:
        size = max(known.seen[:, 0].sum(), 1.0)
        (false, true), (negative, positive) = known.draws[..., 1:], known.draws[..., :1]
        value = (known.seen[1, 1:] - odds * known.seen[0, 1:]) / size
        moved = (true - odds * false - value * (negative + positive)) / size
        return value, moved, (known.slack[1, 1:] + odds * known.slack[0, 1:]) / size

    bounds = bounds_at(source, at, model, estimate, confidence, population)
    ends = (None if end is None else histograms.shaped(end) for end in bounds)
    return NetBenefit(torch.from_numpy(at), histograms.shaped(model), histograms.shaped(everybody), *ends)
