"""Average precision: of a curve, and of a release."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.functional.average import averaged
from torchmetrics_fed.functional.curve import CurveOptions, count
from torchmetrics_fed.functional.precision_recall import average_precision_from_curve, precision_recall_from_counts
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.typing import Average, Task


def average_precision_from_counts(
    source: Readable,
    edges: Tensor | None = None,
    reconstruction: Reconstruction | None = None,
    average: Average | None = None,
) -> Tensor:
    """Return the average precision of a release or of leaf counts, in [0, 1]; 1 without negatives.

    Without positives it is 0, with a warning. A class that no example of a multi-class release has is NaN, and macro
    and weighted averages leave it out, as in torchmetrics.

    Args:
        source: as in :func:`roc_from_counts`, and likewise ``edges`` and ``reconstruction``.
        average: over classes, as in :func:`average_precision`; each class by itself if not given.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.average_precision import average_precision_from_counts
        >>> average_precision_from_counts(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.6875, dtype=torch.float64)
    """
    histograms = read(source, edges, reconstruction)
    return averaged(lambda each: average_precision_from_curve(precision_recall_from_counts(each)), histograms, average)


def average_precision(
    preds: Tensor,
    target: Tensor,
    task: Task = "binary",
    *,
    average: Average | None = "macro",
    **options: Unpack[CurveOptions],
) -> Tensor:
    """Return the average precision of binned scores; twin of :class:`~torchmetrics_fed.FederatedAveragePrecision`.

    Other arguments are those of :func:`~torchmetrics_fed.functional.roc`.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional import average_precision
        >>> preds, target = torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1])
        >>> average_precision(preds, target)
        tensor(0.8333, dtype=torch.float64)
    """
    average = None if task == "binary" else average
    return average_precision_from_counts(count(preds, target, task, **options), average=average)
