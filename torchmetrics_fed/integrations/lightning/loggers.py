"""What loggers get beside scalars: figures for TensorBoard, Weights & Biases and MLflow, counts for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger
from torch import Tensor

from torchmetrics_fed.functional import PrecisionRecallCurve, Source, confusion_at, read
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.release import Release


def log_curve(
    loggers: Sequence[Logger], name: str, step: int, metric: FederatedMetric, result: Any, release: Release
) -> None:
    """Hand what a release says to the loggers, on rank zero: a figure, and of a PR curve the counts behind it."""
    boards: list[Any] = [getattr(logger, "experiment", None) for logger in loggers]
    if isinstance(result, PrecisionRecallCurve) and metric.average in (None, "micro"):
        source = read(release, reconstruction=metric.reconstruction)
        for end, rows in _pr_counts(source.pooled() if metric.average == "micro" else source):
            for board in (board for board in boards if hasattr(board, "add_pr_curve_raw")):
                board.add_pr_curve_raw(name + end, *rows.tolist(), step, num_thresholds=rows.shape[-1])
    if find_spec("matplotlib") is None:
        return
    import matplotlib.pyplot as plt

    sure = metric.confidence
    fig, ax = result.plot(**({} if sure is None else {"band": metric.bands_of(release, sure, metric.population)}))
    caption(ax, provenance(metric.spec.privacy, sure))
    fig.set_dpi(200)  # loggers show pixels
    for logger, board in zip(loggers, boards, strict=True):
        if isinstance(logger, WandbLogger):
            logger.log_image(name, [fig], step)
        elif isinstance(logger, MLFlowLogger):
            board.log_figure(logger.run_id, fig, f"{name}/{step:08}.png")
        elif hasattr(board, "add_figure"):
            board.add_figure(name, fig, step)
    plt.close(fig)


def _pr_counts(source: Source) -> Iterator[tuple[str, Tensor]]:
    """For each class what stands behind its name, and TP, FP, TN, FN, precision, recall, as TensorBoard has them.

    It shows them at even thresholds from 0 to 1. Only edges of the grid are, or nothing comes: no count is guessed.
    """
    edges = source.edges
    even = [torch.linspace(0, 1, parts + 1, dtype=edges.dtype) for parts in (64, 32, 16, 8)]
    thresholds = next((some for some in even if bool(torch.isin(some, edges).all())), None)
    if thresholds is None or edges[0] < 0 or edges[-1] > 1:
        return
    matrix = torch.stack([confusion_at(source, at).matrix for at in thresholds.tolist()], -1).double()
    (tn, fp), (fn, tp) = (row.unbind(-2) for row in matrix.unbind(-3))
    precision = torch.where(tp + fp > 0, tp / (tp + fp), 1.0)  # as at the end of a PR curve
    recall = torch.where(tp + fn > 0, tp / (tp + fn), 0.0)
    rows = torch.stack([tp, fp, tn, fn, precision, recall], -2)
    yield from [("", rows)] if rows.ndim == 2 else ((f"_{index}", one) for index, one in enumerate(rows))
