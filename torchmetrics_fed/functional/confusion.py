"""The confusion matrix at a threshold."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction


class Confusion(NamedTuple):
    """Counts and the edge at which they were taken.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import confusion_at
        >>> confusion_at(torch.tensor([[3, 1], [1, 3]]), 0.5).matrix
        tensor([[3, 1],
                [1, 3]])
    """

    matrix: Tensor
    """``(..., 2, 2)``: [[tn, fp], [fn, tp]] as in scikit-learn, of the counts' dtype."""
    threshold: Tensor
    """The edge that was used, a float64 scalar."""


def confusion_at(
    source: Readable, threshold: float, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> Confusion:
    """Return the confusion matrix of "score >= threshold" at the edge nearest to ``threshold``, the lower of two.

    Nothing is known inside a leaf, so the edge that was used comes with the counts. The highest edge selects nothing,
    not even scores equal to it: these are counted in the last leaf.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        threshold: any finite score.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: what to do with noisy levels; the counts are read, whatever its method.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.confusion import confusion_at
        >>> confusion_at(torch.tensor([[3, 1], [1, 3]]), 0.4)
        Confusion(matrix=tensor([[3, 1],
                [1, 3]]), threshold=tensor(0.5000, dtype=torch.float64))
    """
    if not math.isfinite(threshold):
        raise InputError(
            f"Expected argument `threshold` to be a finite score but got {threshold!r}. The lowest edge selects "
            "everything, the highest nothing."
        )
    histograms = read(source, edges, reconstruction)
    nearest = int((histograms.edges - threshold).abs().argmin())
    leaf = histograms.leaf.clamp(min=0)
    below, above = leaf[..., :nearest].sum(-1), leaf[..., nearest:].sum(-1)
    return Confusion(torch.stack([below, above], -1), histograms.edges[nearest])
