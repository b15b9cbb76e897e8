"""The evaluation sheet: four pictures on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmetrics_fed.functional.calibration import Calibration, calibration_of
from torchmetrics_fed.functional.gain import PrecisionRecallGainCurve, precision_recall_gain_of
from torchmetrics_fed.functional.precision_recall import PrecisionRecallCurve, precision_recall_of
from torchmetrics_fed.functional.roc import ROCCurve, roc_of
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.plot.calibration import plot_calibration
from torchmetrics_fed.plot.canvas import figure, room
from torchmetrics_fed.plot.gain import plot_gain
from torchmetrics_fed.plot.histogram import plot_histograms
from torchmetrics_fed.plot.precision_recall import plot_precision_recall
from torchmetrics_fed.plot.roc import plot_roc
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release import Release

__all__ = ["calibration_if_probabilities", "draw_sheet", "evaluation_sheet"]


def evaluation_sheet(
    source: Release | Tensor,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    labels: Sequence[str] | None = None,
) -> Any:
    """Draw ROC, PR, calibration and score histograms of one release, and return ``(fig, axes)``, axes 2 by 2.

    Where scores are not probabilities, PR gain takes the place of calibration. This only reads the release: a private
    one costs nothing more.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        labels: names of the classes.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.plot import evaluation_sheet
        >>> fig, axes = evaluation_sheet(torch.tensor([[3, 1], [1, 3]]))
        >>> axes.shape
        (2, 2)
    """
    histograms = read(source, edges, reconstruction)
    third = calibration_if_probabilities(histograms) or precision_recall_gain_of(histograms)
    curves = roc_of(histograms), precision_recall_of(histograms)
    return draw_sheet(*curves, third, histograms.leaf, histograms.edges, labels)


def calibration_if_probabilities(histograms: Source) -> Calibration | None:
    """Return the calibration of scores that are probabilities, those whose edges are within [0, 1]."""
    return calibration_of(histograms) if histograms.edges[0] >= 0 and histograms.edges[-1] <= 1 else None


def draw_sheet(
    roc: ROCCurve,
    precision_recall: PrecisionRecallCurve,
    third: Calibration | PrecisionRecallGainCurve,
    leaf: Tensor,
    edges: Tensor,
    labels: Sequence[str] | None = None,
) -> Any:
    """Draw these on one sheet, and return ``(fig, axes)``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import evaluation_report
        >>> from torchmetrics_fed.plot import draw_sheet
        >>> report = evaluation_report(torch.tensor([[3, 1], [1, 3]]))
        >>> fig, axes = draw_sheet(report.roc, report.precision_recall, report.gain, report.leaf, report.edges)
        >>> axes.shape
        (2, 2)
    """
    fig, axes = figure(2, 2)
    plot_roc(roc, ax=axes[0, 0], labels=labels)
    plot_precision_recall(precision_recall, ax=axes[0, 1], labels=labels)
    if isinstance(third, Calibration):
        plot_calibration(third, ax=axes[1, 0], labels=labels)
    else:
        plot_gain(third, ax=axes[1, 0], labels=labels)
    plot_histograms(leaf, edges, ax=axes[1, 1])
    axes[1, 1].set_box_aspect(1)
    legends = [[room([text.get_text() for text in ax.get_legend().get_texts()]) for ax in row] for row in axes]
    fig.set_size_inches(6.6 + sum(map(max, zip(*legends, strict=True))), 6.4)
    return fig, axes
