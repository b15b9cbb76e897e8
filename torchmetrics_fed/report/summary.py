"""The summary figure: ROC, PR, calibration and score histograms on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed import functional as F
from torchmetrics_fed.functional.figures.canvas import figure, room
from torchmetrics_fed.functional.figures.page import scale


def summary_figure(
    roc: F.ROCCurve,
    precision_recall: F.PrecisionRecallCurve,
    third: F.Calibration | F.PrecisionRecallGainCurve,
    leaf: Tensor,
    edges: Tensor,
    labels: Sequence[str] | None = None,
    bands: tuple[F.Band | None, F.Band | None] = (None, None),
    caption: str = "",
) -> Any:
    """Draw these on one page, and return ``(fig, axes)``, axes 2 by 2.

    ``bands`` are those of the ROC and the PR curve, ``caption`` stands at the foot of the page.
    """
    fig, axes = figure(2, 2)
    roc.plot(ax=axes[0, 0], labels=labels, band=bands[0])
    precision_recall.plot(ax=axes[0, 1], labels=labels, band=bands[1])
    third.plot(ax=axes[1, 0], labels=labels)
    F.plot_histograms(leaf, edges, ax=axes[1, 1])
    axes[1, 1].set_box_aspect(1)
    fig.supxlabel(caption, fontsize=7.5 * scale())
    legends = [[room(ax.get_legend_handles_labels()[1]) for ax in row] for row in axes]
    wide, high = 6.6 + sum(map(max, zip(*legends, strict=True))), 6.4 + 0.2 * bool(caption)
    fig.set_size_inches(wide * scale(), high * scale())
    return fig, axes
