"""One consistent, non-negative tree from the noisy levels of a release. Pure post-processing: it costs no privacy."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.typing import Floats


def siblings(levels: Sequence[Tensor], index: int) -> Tensor:
    """Return level ``index`` as families: ``(..., parents, branching)``."""
    parents = levels[index - 1].shape[-1] if index else 1
    families: Tensor = levels[index].unflatten(-1, (parents, -1))
    return families


def least_squares(levels: Sequence[Tensor], weights: Sequence[int] | None = None) -> list[Tensor]:
    r"""Return the consistent tree closest to ``levels``, ``(..., size)`` each.

    Generalised least squares in two passes. Upwards each node becomes the inverse-variance mean of itself (variance v)
    and of the sum of its b children (variance b w): variance :math:`1 / (1/v + 1/(b w))`. Downwards what a family lacks
    to its parent is divided equally, for its members have equal variance. For b-ary trees this is Hay et al. 2010.
    ``weights`` are how many times each level was counted: the variance of its cells is the inverse square of it.
    """
    up = [level.double() for level in levels]
    own = [1 / weight**2 for weight in weights or (1,) * len(up)]
    variance = own[-1]
    for index in range(len(levels) - 1, 0, -1):
        children = siblings(up, index)
        below = children.shape[-1] * variance
        up[index - 1] = (up[index - 1] * below + children.sum(-1) * own[index - 1]) / (
            below + own[index - 1]
        )
        variance = below * own[index - 1] / (below + own[index - 1])
    for index in range(1, len(levels)):
        children = siblings(up, index)
        lack = (up[index - 1] - children.sum(-1)) / children.shape[-1]
        up[index] = (children + lack[..., None]).flatten(-2)
    return up


def posterior(levels: Sequence[Floats], variances: Sequence[float], expected: Floats) -> Floats:
    r"""Return the mean of leaf counts given noisy levels, ``(rows, size)`` each, where Poisson counts are expected.

    Upwards each node's mean m and variance p, of its children together or of what is expected of a leaf, take in its
    own level: with :math:`g = p / (p + v)` they become :math:`m + g (y - m)` and :math:`g v`. Downwards what a family
    lacks to its parent is divided by its members' variances.
    """
    known: list[tuple[Floats, Floats]] = []
    mean, spread = expected, expected
    for level, variance in zip(reversed(levels), reversed(variances), strict=True):
        if known:
            mean, spread = (each.reshape(*level.shape, -1).sum(-1) for each in (mean, spread))
        gain = spread / (spread + variance)
        mean, spread = mean + gain * (level - mean), gain * variance
        known.append((mean, spread))
    result, _ = known.pop()
    while known:
        mean, spread = known.pop()
        family, width = (each.reshape(*result.shape, -1) for each in (mean, spread))
        lack = (result - family.sum(-1)) / np.maximum(width.sum(-1), 1e-300)
        result = (family + width * lack[..., None]).reshape(mean.shape)
    return result


def non_negative(levels: Sequence[Tensor]) -> list[Tensor]:
    """Return a tree whose cells are non-negative: top-down, each family projected onto its parent's value.

    The top level's total stays as it is (0 if it is negative), so the class sizes remain unbiased where they matter.
    """
    result: list[Tensor] = []
    parent = levels[0].double().sum(-1, keepdim=True).clamp(min=0.0)
    for index in range(len(levels)):
        parent = _onto_simplex(siblings(levels, index).double(), parent).flatten(-2)
        result.append(parent)
    return result


def _onto_simplex(family: Tensor, total: Tensor) -> Tensor:
    """Euclidean projection of each family ``(..., b)`` onto {x >= 0, sum x = total}: a common shift, cut off at 0.

    Sorted descending, the k largest stay positive for the largest k with x_k > (x_1 + ... + x_k - total) / k.
    """
    ordered = family.sort(-1, descending=True).values
    shift = (ordered.cumsum(-1) - total[..., None]) / torch.arange(
        1, family.shape[-1] + 1, dtype=torch.float64
    )
    kept = (ordered > shift).sum(-1, keepdim=True).clamp(min=1)
    projected = (family - shift.gather(-1, kept - 1)).clamp(min=0.0)
    return torch.where(total[..., None] > 0, projected, 0.0)
