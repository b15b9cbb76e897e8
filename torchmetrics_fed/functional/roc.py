"""ROC curve from scores, from leaf counts, from quantiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.average import Average, macro_curve
from torchmetrics_fed.functional.curve import CurveOptions, Quantiles, count, warn_if_empty
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.reconstruct import Interpolation, Reconstruction, Tails, tails_from_quantiles
from torchmetrics_fed.release import Release

__all__ = ["ROCCurve", "roc", "roc_from_counts", "roc_from_quantiles", "roc_from_tails", "roc_of"]


class ROCCurve(NamedTuple):
    """A ROC curve in torchmetrics' order: thresholds decrease, from (0, 0) to (1, 1).

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> roc_from_counts(torch.tensor([[3, 1], [1, 3]])).tpr
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor


def roc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Average | None = None,
    **options: Unpack[CurveOptions],
) -> ROCCurve:
    """Return the ROC curve of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedROC`.

    Args:
        preds: scores: any shape for binary tasks, ``(N, classes, ...)`` for others.
        target: 0 or 1 for each score, or for multi-class tasks the class of each of N.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        average: as in :func:`roc_from_counts`.
        options: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc
        >>> edges = [0, 0.25, 0.5, 0.75, 1]
        >>> roc(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]), score_edges=edges).tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """
    return roc_of(count(preds, target, task, **options), average)


def roc_from_counts(
    source: Release | Tensor | Source,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    average: Average | None = None,
) -> ROCCurve:
    r"""Return the ROC curve of a release or of leaf counts: :math:`T(s) = \Pr[S \ge s \mid y = 1]` against F.

    Args:
        source: a release, or counts ``(..., 2, leaves)``, row 0 negatives, row 1 positives.
        edges: ascending edges of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        average: None for one curve per class, ``"micro"`` for the curve of all classes' scores together, ``"macro"``
            for the mean of the curves at all their false positive rates (thresholds then have no meaning).

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> roc_from_counts(torch.tensor([[3, 1], [1, 3]])).fpr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    return roc_of(read(source, edges, reconstruction), average)


def roc_of(source: Source, average: Average | None = None) -> ROCCurve:
    """Return the ROC curve of histograms that were read."""
    curve = roc_from_tails((source.pooled() if average == "micro" else source).tails)
    if average != "macro":
        return curve
    fpr, tpr = macro_curve(curve.fpr, curve.tpr)
    return ROCCurve(fpr, tpr, curve.thresholds.repeat(len(curve.fpr)).sort(descending=True).values)


def roc_from_quantiles(
    quantiles: Quantiles,
    score_range: tuple[float, float] = (0.0, 1.0),
    interpolation: Interpolation = "pchip",
) -> ROCCurve:
    """Return the ROC curve through evenly spaced quantiles of each class, as in the paper.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import Quantiles, roc_from_quantiles
        >>> even, high = torch.linspace(0, 1, 9).double(), torch.linspace(0.5, 1, 9).double()
        >>> curve = roc_from_quantiles(Quantiles(negative=even, positive=high))
        >>> round(torch.trapezoid(curve.tpr, curve.fpr).item(), 3)
        0.75
    """
    return roc_from_tails(
        tails_from_quantiles(torch.stack(quantiles), torch.ones(2), score_range, interpolation),
    )


def roc_from_tails(tails: Tails) -> ROCCurve:
    """Return the ROC curve of the tails of both classes, ``(..., 2, points)``."""
    warn_if_empty(tails.total)
    return ROCCurve(tails.tail[..., 0, :], tails.tail[..., 1, :], tails.thresholds)
