"""Distance of the score distributions of both classes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmetrics_fed.functional.curve import warn_if_empty
from torchmetrics_fed.functional.source import Readable, read
from torchmetrics_fed.reconstruct import Reconstruction

__all__ = ["kolmogorov_smirnov"]


def kolmogorov_smirnov(
    source: Readable, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> Tensor:
    r"""Return the Kolmogorov-Smirnov distance ``(...)``, :math:`\max_s |T(s) - F(s)|`, in [0, 1].

    It is the largest over the edges, so at most that of the scores themselves. It is 0 where a class is empty.

    Args:
        source: as in :func:`roc_from_counts`, and likewise ``edges`` and ``reconstruction``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.functional.distance import kolmogorov_smirnov
        >>> kolmogorov_smirnov(torch.tensor([[3, 1], [1, 3]]))
        tensor(0.5000, dtype=torch.float64)
    """
    tails = read(source, edges, reconstruction).tails
    warn_if_empty(tails.total)
    farthest = tails.tail.diff(dim=-2).abs().amax((-2, -1))
    return torch.where((tails.total > 0).all(-1), farthest, 0.0)
