"""ROC curve from scores, from leaf counts, from quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.curve import CurveOptions, Quantiles, count_leaves, tails_of_levels, warn_if_empty
from torchmetrics_fed.reconstruct import Interpolation, Reconstruction, Tails, tails_from_quantiles
from torchmetrics_fed.spec import Task

__all__ = ["ROCCurve", "roc", "roc_from_counts", "roc_from_levels", "roc_from_quantiles", "roc_from_tails"]


class ROCCurve(NamedTuple):
    """A ROC curve in torchmetrics' order: thresholds decrease, from (0, 0) to (1, 1)."""

    fpr: Tensor
    tpr: Tensor
    thresholds: Tensor


def roc(preds: Tensor, target: Tensor, task: Task = "binary", **options: Unpack[CurveOptions]) -> ROCCurve:
    """Return the ROC curve of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedROC`.

    Args:
        preds: scores, any floating dtype and shape.
        target: 0 or 1 for each score.
        task: ``"binary"``.
        options: as in :class:`~torchmetrics_fed.FederatedROC`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc
        >>> roc(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]), score_edges=[0, 0.25, 0.5, 0.75, 1]).tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """
    return roc_from_counts(*count_leaves(preds, target, task, **options))


def roc_from_counts(
    leaf: Tensor, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> ROCCurve:
    r"""Return ROC curves of leaf counts ``(..., 2, leaves)``: :math:`T(s) = \Pr[S \ge s \mid y = 1]` against F.

    Args:
        leaf: counts, row 0 negatives, row 1 positives.
        edges: ascending edges of the leaves; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> roc_from_counts(torch.tensor([[3, 1], [1, 3]])).fpr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """
    return roc_from_levels([leaf], edges, reconstruction)


def roc_from_levels(
    levels: Sequence[Tensor], edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> ROCCurve:
    """Return ROC curves of the levels of a tree, ``(..., 2, size)`` each, top level first."""
    return roc_from_tails(tails_of_levels(levels, edges, reconstruction))


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
