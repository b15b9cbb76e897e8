"""Figures of an evaluation for the loggers that take some, and counts for TensorBoard's PR curves.

A figure that cannot be logged is a warning, not an error: an error on rank zero would end the
training for want of a figure and leave the other ranks waiting.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
from torch import Tensor

from torchmetrics_fed.functional import (
    Histograms,
    PrecisionRecallCurve,
    confusion_at,
    read,
)
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.integrations.lightning.names import by_class
from torchmetrics_fed.metrics import CountsMetric, FederatedMetric
from torchmetrics_fed.reconstruct.histograms import are_probabilities
from torchmetrics_fed.release import Release

FIGURE_DPI = 200
"""The resolution of logged figures, in pixels per inch: loggers show pixels."""

PR_INTERVALS = (64, 32, 16, 8)
"""Numbers of even intervals of [0, 1] that TensorBoard's PR curves may have; the first that fits
the grid is used."""


class Drawing(NamedTuple):
    """One result for the loggers that take figures, with the release that it was read from."""

    name: str
    metric: CountsMetric
    result: Any
    release: Release


def log_drawing(trainer: lightning.Trainer, drawing: Drawing) -> None:
    """Hand a drawing to the loggers, on rank zero. Warn if that fails."""
    try:
        _log_pr_counts(trainer, drawing)
        _log_figure(trainer, drawing)
    except Exception as error:
        warnings.warn(
            f"The figure {drawing.name!r} was not logged: {type(error).__name__}: {error}. "
            "The scalars of this evaluation were.",
            stacklevel=2,
        )


def _log_pr_counts(trainer: lightning.Trainer, drawing: Drawing) -> None:
    """Log the counts behind a PR curve on TensorBoard's page of PR curves."""
    metric = drawing.metric
    boards = [_client(logger) for logger in trainer.loggers]
    boards = [board for board in boards if hasattr(board, "add_pr_curve_raw")]
    if not boards or not isinstance(drawing.result, PrecisionRecallCurve):
        return
    if metric.average not in (None, "micro"):
        return
    assert isinstance(metric, FederatedMetric)  # as every metric with a PR curve
    histograms = read(drawing.release, reconstruction=metric.reconstruction)
    if metric.average == "micro":
        histograms = histograms.pooled()
    for suffix, rows in _pr_counts(histograms):
        tp, fp, tn, fn, precision, recall = rows.tolist()
        for board in boards:
            board.add_pr_curve_raw(
                drawing.name + suffix,
                tp,
                fp,
                tn,
                fn,
                precision,
                recall,
                trainer.global_step,
                num_thresholds=rows.shape[-1],
            )


def _pr_counts(histograms: Histograms) -> Iterator[tuple[str, Tensor]]:
    """Yield each class's suffix and the rows tp, fp, tn, fn, precision, recall for TensorBoard.

    TensorBoard shows them at even thresholds from 0 to 1. If no even thresholds are edges of the
    grid, nothing is yielded: no count is guessed.
    """
    thresholds = _even_edges(histograms.edges)
    if thresholds is None:
        return
    matrices = [confusion_at(histograms, threshold).matrix for threshold in thresholds.tolist()]
    matrix = torch.stack(matrices, -1).double()
    tn = matrix[..., 0, 0, :]
    fp = matrix[..., 0, 1, :]
    fn = matrix[..., 1, 0, :]
    tp = matrix[..., 1, 1, :]
    precision = torch.where(tp + fp > 0, tp / (tp + fp), 1.0)  # as at the end of a PR curve
    recall = torch.where(tp + fn > 0, tp / (tp + fn), 0.0)
    yield from by_class(torch.stack([tp, fp, tn, fn, precision, recall], -2), ndim=2)


def _even_edges(edges: Tensor) -> Tensor | None:
    """Return the finest even thresholds from 0 to 1 that are edges of the grid, if any are."""
    if not are_probabilities(edges):
        return None
    for intervals in PR_INTERVALS:
        thresholds = torch.linspace(0, 1, intervals + 1, dtype=edges.dtype)
        if bool(torch.isin(thresholds, edges).all()):
            return thresholds
    return None


def _log_figure(trainer: lightning.Trainer, drawing: Drawing) -> None:
    """Draw a result, with a band if its metric has a confidence, for loggers that take figures."""
    loggers = [logger for logger in trainer.loggers if _takes_figures(logger)]
    if not loggers or find_spec("matplotlib") is None:
        return
    import matplotlib.pyplot as plt

    metric = drawing.metric
    make_band = metric.definition.band
    has_band = make_band is not None and metric.average in (None, "micro")
    if metric.confidence is None or make_band is None or not has_band:
        fig, ax = drawing.result.plot()  # a comparison shows its interval itself
        words = provenance(metric.spec.privacy)
    else:
        band = make_band(drawing.release, metric.confidence, average=metric.average)
        fig, ax = drawing.result.plot(band=band)
        words = provenance(metric.spec.privacy, metric.confidence)
    caption(ax, words)
    fig.set_dpi(FIGURE_DPI)
    try:
        for logger in loggers:
            _hand_over(logger, drawing.name, fig, step=trainer.global_step)
    finally:
        plt.close(fig)


def _hand_over(logger: Any, name: str, fig: Any, *, step: int) -> None:
    if isinstance(logger, WandbLogger):
        logger.log_image(name, [fig], step)
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_figure(logger.run_id, fig, f"{name}/{step:08}.png")
    else:
        _client(logger).add_figure(name, fig, step)


def _takes_figures(logger: Any) -> bool:
    if isinstance(logger, WandbLogger | MLFlowLogger):
        return True
    return hasattr(_client(logger), "add_figure")


def _client(logger: Any) -> Any:
    """Return the client behind a logger, for instance TensorBoard's SummaryWriter."""
    return getattr(logger, "experiment", None)
