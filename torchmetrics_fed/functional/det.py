"""Detection error tradeoff: the two error rates against each other."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.average import Average
from torchmetrics_fed.functional.curve import CurveOptions, count, warn_if_empty
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.release import Release

__all__ = ["DETCurve", "det_curve", "det_from_counts", "det_from_tails", "det_of"]


class DETCurve(NamedTuple):
    """A DET curve in scikit-learn's order: thresholds increase, fpr falls from 1 to 0, fnr rises from 0 to 1.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import det_from_counts
        >>> det_from_counts(torch.tensor([[3, 1], [1, 3]])).fnr
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
    """

    fpr: Tensor
    fnr: Tensor
    thresholds: Tensor


def det_from_tails(tails: Tails) -> DETCurve:
    r"""Return DET curves of the tails of both classes: :math:`F` and :math:`1 - T`.

    All edges are points; scikit-learn leaves out those that repeat fnr = 0 or fpr = 0 at the ends. Without positives
    the true positive rate is set to 0, so fnr is 1 throughout; without negatives fpr is 0.
    """
    warn_if_empty(tails.total)
    return DETCurve(tails.tail[..., 0, :].flip(-1), 1 - tails.tail[..., 1, :].flip(-1), tails.thresholds.flip(0))


def det_from_counts(
    source: Release | Tensor | Source, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> DETCurve:
    """Return the DET curve of a release or of leaf counts.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.det import det_from_counts
        >>> fpr, fnr, thresholds = det_from_counts(torch.tensor([[3, 1], [1, 3]]))
        >>> fpr, fnr
        (tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64), tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64))
    """
    return det_from_tails(read(source, edges, reconstruction).tails)


def det_of(source: Source, average: Average | None = None) -> DETCurve:
    """Return the DET curve of histograms that were read, of each class or of all their scores together."""
    return det_from_tails((source.pooled() if average == "micro" else source).tails)


def det_curve(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Average | None = None,
    **options: Unpack[CurveOptions],
) -> DETCurve:
    """Return the DET curve of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedDET`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import det_curve
        >>> preds, target = torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])
        >>> det_curve(preds, target, score_edges=[0, 0.5, 1]).fnr
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    return det_of(count(preds, target, task, **options), average)
