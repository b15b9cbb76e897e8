"""Distance of the score distributions of both classes."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmetrics_fed.functional.curve import warn_if_empty
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release.release import Release

__all__ = ["kolmogorov_smirnov"]


def kolmogorov_smirnov(
    source: Release | Tensor | Source, edges: Tensor | None = None, reconstruction: Reconstruction | None = None
) -> Tensor:
    r"""Return the Kolmogorov-Smirnov distance ``(...)``, :math:`\max_s |T(s) - F(s)|`, in [0, 1].

    It is the largest over the edges, so at most that of the scores themselves. It is 0 where a class is empty.

    Args:
        source: a release, or leaf counts ``(..., 2, leaves)``.
        edges: of leaf counts; even over [0, 1] if not given.
        reconstruction: how to read between the edges; ``"aligned"`` if not given.

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
