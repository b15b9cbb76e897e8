"""Area under the ROC curve: of a curve, of a release, and the rank statistic behind it."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.average import averaged
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.roc import ROCCurve, auroc_from_curve, roc_from_tails
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.typing import Average, Task


def auroc_from_counts(
    source: Readable,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    max_fpr: float | None = None,
    average: Average | None = None,
) -> Tensor:
    """Return the AUROC of a release or of leaf counts, in [0, 1]; scores of one leaf are ties, which count half.

    Averaged one-vs-one counts give the mean over pairs of classes (Hand and Till 2001), as in scikit-learn.

    Args:
        source: as in :func:`roc_from_counts`, and likewise ``edges`` and ``reconstruction``.
        max_fpr: as in :func:`auroc_from_curve`.
        average: over classes, as in :func:`auroc`; each class by itself if not given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.auroc import auroc_from_counts
        >>> auroc_from_counts(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.7500, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    if histograms.pairs is not None and average in ("macro", "weighted"):
        tails = histograms.reconstruction.tails(histograms.pairs, histograms.edges)
        return _over_pairs(tails, average, max_fpr)
    return averaged(lambda each: auroc_from_curve(roc_from_tails(each.tails), max_fpr), histograms, average)


def mann_whitney_u(
    source: Readable, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> Tensor:
    r"""Return Mann and Whitney's U of the positives: :math:`\sum_k c^+_k (C^-_{<k} + c^-_k / 2)`, in [0, n+ n-].

    It counts the pairs in which the positive scores higher, pairs of one leaf half. It needs no edges, and reads the
    counts themselves, whatever the ``reconstruction``'s method.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.auroc import mann_whitney_u
        >>> mann_whitney_u(torch.tensor([[3, 1], [1, 3]]))
        tensor(12., dtype=torch.float64)
    """
    negative, positive = read(source, edges, reconstruction).leaf.double().clamp(min=0.0).unbind(-2)
    return (positive * (negative.cumsum(-1) - negative / 2)).sum(-1)


def _over_pairs(tails: Tails, average: Average, max_fpr: float | None) -> Tensor:
    """Mean over a < b of the areas of a against b by the scores of a, and of b against a by the scores of b."""
    own = tails.tail.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    curve = ROCCurve(tails.tail, own[:, None].expand_as(tails.tail), tails.thresholds)
    area = auroc_from_curve(curve, max_fpr)
    first, second = torch.triu_indices(len(area), len(area), offset=1)
    both = (area[first, second] + area[second, first]) / 2
    size = tails.total.diagonal()
    weight = size[first] + size[second] if average == "weighted" else torch.ones_like(both)
    return (both * weight).sum() / weight.sum() if weight.sum() > 0 else both.mean()


def auroc(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    max_fpr: float | None = None,
    average: Average | None = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the AUROC of binned scores; the functional twin of :class:`~torchmetrics_fed.FederatedAUROC`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`, ``max_fpr`` is that of
    :func:`auroc_from_curve`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import auroc
        >>> preds, target = torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])
        >>> auroc(preds, target)
        tensor(0.7500, dtype=torch.float64)
    """
    average = None if task == "binary" else average
    return auroc_from_counts(count(preds, target, task, **options), max_fpr=max_fpr, average=average)
