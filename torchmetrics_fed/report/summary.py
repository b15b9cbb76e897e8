"""The summary figure: ROC, PR, calibration and score histograms on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.band import Band
from torchmetrics_fed.functional.calibration import Calibration
from torchmetrics_fed.functional.figures.canvas import figure, room
from torchmetrics_fed.functional.figures.page import scale
from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve
from torchmetrics_fed.functional.histogram import plot_histograms
from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve
from torchmetrics_fed.functional.roc import ROCCurve


def summary_figure(
    roc: ROCCurve,
    precision_recall: PrecisionRecallCurve,
    third: Calibration | PrecisionRecallGainCurve,
    leaf: Tensor,
    edges: Tensor,
    labels: Sequence[str] | None = None,
    bands: tuple[Band | None, Band | None] = (None, None),
    caption: str = "",
) -> Any:
    """Draw these on one page, and return ``(fig, axes)``, axes 2 by 2.

    ``bands`` are those of the ROC and the PR curve, ``caption`` stands at the foot of the page.
    """
    fig, axes = figure(2, 2)
    roc.plot(ax=axes[0, 0], labels=labels, band=bands[0])
    precision_recall.plot(ax=axes[0, 1], labels=labels, band=bands[1])
    third.plot(ax=axes[1, 0], labels=labels)
    plot_histograms(leaf, edges, ax=axes[1, 1])
    axes[1, 1].set_box_aspect(1)
    fig.supxlabel(caption, fontsize=7.5 * scale())
    legends = [[room(ax.get_legend_handles_labels()[1]) for ax in row] for row in axes]
    wide, high = 6.6 + sum(map(max, zip(*legends, strict=True))), 6.4 + 0.2 * bool(caption)
    fig.set_size_inches(wide * scale(), high * scale())
    return fig, axes
