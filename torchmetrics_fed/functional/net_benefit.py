"""Net benefit: whether acting on a model's scores does more good than acting on everybody, or on nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Band, bounds_at
from torchmetrics_fed.functional.calibration import check_probabilities
from torchmetrics_fed.functional.figures.canvas import (
    draw_bands,
    draw_chance,
    draw_curves,
    dress,
    entries,
    open_axes,
    rows,
)
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.reconstruct.uncertainty.thresholds import UncertainCounts, counts_above
from torchmetrics_fed.typing import Floats


class NetBenefit(NamedTuple):
    """A decision curve: true positives per example, less what false positives cost. Treating nobody has 0.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import net_benefit
        >>> net_benefit(torch.tensor([[3, 1], [1, 3]]), [0.5]).treat_all
        tensor([0.], dtype=torch.float64)
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
        """Draw the decision curve with its band, and return ``(fig, ax)``. Arguments are those of :meth:`ROCCurve.plot`.

        Treating all is drawn for a single curve.

        Example:
            >>> import torch
            >>> from torchmetrics_fed.functional import net_benefit
            >>> fig, ax = net_benefit(torch.tensor([[3, 1], [1, 3]])).plot()
            >>> ax.get_legend_handles_labels()[1]
            ['treat none', 'treat all', 'model']
        """
        model = rows(self.model)
        names = entries(len(model), ("model", label, labels), None, "")
        fig, ax = open_axes(ax, [*names, "treat none"])
        x = self.thresholds.cpu().expand_as(model)
        draw_chance(ax, [0, 1], [0, 0], "treat none")
        if len(model) == 1:
            ax.plot(x[0], rows(self.treat_all)[0], color="0.4", linewidth=1.0, label="treat all", gid="chance", zorder=1.5)
        colours = draw_curves(ax, x, model, names)
        if self.low is not None and self.high is not None:
            draw_bands(ax, colours, Band(x, self.low, self.high))
        top = max(model.max().item(), rows(self.treat_all).max().item(), 1e-3)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.25 * top, 1.1 * top))
        dress(ax, "Threshold probability", "Net benefit", rates=False)
        return fig, ax


def net_benefit(
    source: Readable,
    thresholds: Sequence[float] | Tensor | None = None,
    confidence: float | None = None,
    population: bool = False,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
) -> NetBenefit:
    r"""Return the decision curve (Vickers & Elkin 2006): :math:`\frac{TP}{n} - \frac{FP}{n} \frac{t}{1 - t}` at each t.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)`` of probabilities.
        thresholds: probabilities from 0 to below 1; if not given 0.01, 0.02, ... 0.99.
        confidence: probability that ``low`` and ``high`` hold the curve at all thresholds; needs a release.
        population: whether the curve of the population that the examples were drawn from is meant.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: what to do with noisy levels; the counts are read, whatever its method.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import net_benefit
        >>> net_benefit(torch.tensor([[3, 1], [1, 3]]), [0.25, 0.5]).model
        tensor([0.3750, 0.2500], dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    check_probabilities(histograms.edges)
    at = np.linspace(0.01, 0.99, 99) if thresholds is None else np.asarray(thresholds, dtype=np.float64).reshape(-1)
    if not (len(at) and ((at >= 0) & (at < 1)).all()):
        raise InputError("Expected argument `thresholds` to be probabilities from 0 to below 1. Acting at 1 has no cost.")
    everybody = np.r_[histograms.edges[0], at]
    negative, positive = counts_above(histograms.flat, histograms.edges.numpy(), everybody).swapaxes(0, 1)
    size, odds = np.maximum(positive[:, :1] + negative[:, :1], 1e-300), at / (1 - at)
    model = (positive[:, 1:] - odds * negative[:, 1:]) / size
    treat_all = (positive[:, :1] - odds * negative[:, :1]) / size

    def one(known: UncertainCounts, number: int) -> tuple[Floats, Floats, Floats]:
        size = max(known.seen[:, 0].sum(), 1.0)
        centre = (known.seen[1, 1:] - odds * known.seen[0, 1:]) / size
        moved = known.draws[1, :, 1:] - odds * known.draws[0, :, 1:] - centre * known.draws[:, :, :1].sum(0)
        return centre, moved / size, (known.slack[1, 1:] + odds * known.slack[0, 1:]) / size

    low, high = bounds_at(source, at, model, one, confidence, population)
    bounds = [None if end is None else histograms.shaped(end) for end in (low, high)]
    return NetBenefit(torch.from_numpy(at), *map(histograms.shaped, (model, treat_all)), *bounds)
