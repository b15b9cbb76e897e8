"""Area under the ROC curve: of a curve, of a release, and the rank statistic behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.average import Average, averaged
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.roc import ROCCurve, roc_from_tails
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.reconstruct import Reconstruction, Tails
from torchmetrics_fed.release import Release

__all__ = ["auroc", "auroc_from_counts", "auroc_from_curve", "auroc_of", "checked_max_fpr", "mann_whitney_u"]


def auroc_from_curve(curve: ROCCurve, max_fpr: float | None = None) -> Tensor:
    r"""Return the area ``(...)`` under ROC curves by the trapezoidal rule, in [0, 1], 0 where a class is empty.

    With ``max_fpr``, the area A up to :math:`m` = ``max_fpr`` on McClish's scale, where 1/2 is chance and 1 perfect:
    :math:`\frac12 \left(1 + \frac{A - m^2/2}{m - m^2/2}\right)`, as in scikit-learn and torchmetrics.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import roc_from_counts
        >>> from torchmetrics_fed.functional.auroc import auroc_from_curve
        >>> curve = roc_from_counts(torch.tensor([[3, 1], [1, 3]]))
        >>> auroc_from_curve(curve)
        tensor(0.7500, dtype=torch.float64)
        >>> auroc_from_curve(curve, max_fpr=0.25)
        tensor(0.6429, dtype=torch.float64)
    """
    max_fpr = checked_max_fpr(max_fpr)
    if max_fpr is None:
        return torch.trapezoid(curve.tpr, curve.fpr).clamp(0.0, 1.0)
    left, low = curve.fpr[..., :-1], curve.tpr[..., :-1]
    run, rise = curve.fpr.diff(), curve.tpr.diff()
    width = torch.minimum(run, (max_fpr - left).clamp(min=0.0))
    part = torch.where(run > 0, width / run, 0.0)  # how much of the step lies below max_fpr
    area = (width * (low + rise * part / 2)).sum(-1)
    chance = max_fpr**2 / 2
    scaled = (1 + (area - chance) / (max_fpr - chance)) / 2
    empty = (curve.fpr[..., -1] <= 0) | (curve.tpr[..., -1] <= 0)
    return torch.where(empty, 0.0, scaled).clamp(0.0, 1.0)


def auroc_from_counts(
    source: Release | Tensor | Source,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    max_fpr: float | None = None,
) -> Tensor:
    """Return the AUROC of a release or of leaf counts, in [0, 1]; scores of one leaf are ties, which count half.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.
        max_fpr: as in :func:`auroc_from_curve`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.auroc import auroc_from_counts
        >>> auroc_from_counts(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.7500, dtype=torch.float64)
    """
    return auroc_from_curve(roc_from_tails(read(source, edges, reconstruction).tails), max_fpr)


def mann_whitney_u(
    source: Release | Tensor | Source, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
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


def auroc_of(
    source: Source,
    average: Average | None = None,
    max_fpr: float | None = None,
    pairs: Sequence[Tensor] | None = None,
) -> Tensor:
    """Return the AUROC of histograms that were read, of each class or averaged.

    Args:
        source: the histograms.
        average: as in :func:`auroc`.
        max_fpr: as in :func:`auroc_from_curve`.
        pairs: levels of the counts by column and true class, ``(K, K, size)``: the areas of all pairs of classes are
            averaged then (Hand and Till 2001), weighted by the pairs' examples for ``"weighted"``, as in scikit-learn.
    """
    if pairs is not None and average in ("macro", "weighted"):
        return _over_pairs(source.reconstruction.tails(pairs, source.edges), average, max_fpr)
    return averaged(lambda histograms: auroc_from_counts(histograms, max_fpr=max_fpr), source, average)


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


def checked_max_fpr(max_fpr: float | None) -> float | None:
    """Return ``max_fpr`` if an area can end there."""
    if max_fpr is not None and not 0 < max_fpr <= 1:
        raise InputError(
            f"Expected argument `max_fpr` to be in (0, 1] but got {max_fpr!r}. Leave it out for the whole area."
        )
    return max_fpr


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
    if options.get("multi_class") == "ovo":
        raise InputError("Expected FederatedAUROC for one-vs-one areas: the function reads one class against the rest.")
    return auroc_of(count(preds, target, task, **options), None if task == "binary" else average, max_fpr)
