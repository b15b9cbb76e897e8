"""One consistent, non-negative tree from the noisy levels of a release.

All of this is post-processing of a private sum, so it costs no privacy. Invariants, with the
symbols of ``docs/mathematics.md``:

- Consistent: the cells of a node's children add up to its own.
- :func:`least_squares` is unbiased and linear in the levels: of all consistent trees the nearest
one.
- :func:`non_negative` keeps the total of the top level, so that class sizes stay unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.typing import Floats

LEAST_DIVISOR = 1e-300
"""In place of a divisor of 0, so that parts of an empty class are 0 and not NaN."""


def siblings(levels: Sequence[Tensor], index: int) -> Tensor:
    """Return level ``index`` as families: ``(..., parents, branching)``."""
    parents = 1
    if index > 0:
        parents = levels[index - 1].shape[-1]
    families: Tensor = levels[index].unflatten(-1, (parents, -1))
    return families


def least_squares(levels: Sequence[Tensor], weights: Sequence[int] | None = None) -> list[Tensor]:
    r"""Return the consistent tree closest to noisy ``levels``, by generalised least squares.

    Two passes. Upwards, the value y of a node, with variance u, is averaged with the sum of its b
    children, each with variance v, by inverse variance. Downwards, the difference to the parent p
    is divided equally, because the members of a family have equal variance:

    .. math:: z = \frac{b v\, y + u \sum_c z_c}{b v + u}, \qquad
        v' = \frac{b v\, u}{b v + u}; \qquad
        \hat z_c = z_c + \frac1b \Big(p - \sum_j z_j\Big).

    For b-ary trees this is the solution of Hay et al. (2010).

    Args:
        levels: the cells of each level, ``(..., size)``, top level first.
        weights: how many times each level was counted, :math:`w_i`; once if not given. The variance
            of its cells is :math:`1 / w_i^2` of the noise.
    """
    if weights is None:
        weights = (1,) * len(levels)
    tree = [level.double() for level in levels]
    level_variances = [1 / weight**2 for weight in weights]
    child_variance = level_variances[-1]
    for index in range(len(levels) - 1, 0, -1):
        children = siblings(tree, index)
        node = tree[index - 1]
        node_variance = level_variances[index - 1]
        sum_variance = children.shape[-1] * child_variance
        divisor = sum_variance + node_variance
        tree[index - 1] = (node * sum_variance + children.sum(-1) * node_variance) / divisor
        child_variance = sum_variance * node_variance / divisor
    for index in range(1, len(levels)):
        children = siblings(tree, index)
        lack = (tree[index - 1] - children.sum(-1)) / children.shape[-1]
        tree[index] = (children + lack[..., None]).flatten(-2)
    return tree


def posterior(levels: Sequence[Floats], variances: Sequence[float], expected: Floats) -> Floats:
    r"""Return the mean of leaf counts given noisy levels, where Poisson counts are expected.

    Upwards, a node has the mean m and the variance p of its children together, or those that are
    expected of a leaf. It takes in its own level y, with noise of variance v:

    .. math:: g = \frac{p}{p + v}, \qquad m' = m + g (y - m), \qquad p' = g v.

    Downwards, the difference to the parent is divided in proportion to the variances of the family.

    Args:
        levels: the cells of each level, ``(rows, size)``, top level first.
        variances: the variance of the noise of each level.
        expected: the expected counts of the leaves, ``(rows, leaves)``, which are also their
            variances.
    """
    nodes: list[tuple[Floats, Floats]] = []
    mean = expected
    variance = expected
    for level, noise in zip(reversed(levels), reversed(variances), strict=True):
        if nodes:
            mean = mean.reshape(*level.shape, -1).sum(-1)
            variance = variance.reshape(*level.shape, -1).sum(-1)
        gain = variance / (variance + noise)
        mean = mean + gain * (level - mean)
        variance = gain * noise
        nodes.append((mean, variance))
    result, _ = nodes.pop()
    while nodes:
        mean, variance = nodes.pop()
        family = mean.reshape(*result.shape, -1)
        family_variance = variance.reshape(*result.shape, -1)
        lack = result - family.sum(-1)
        lack = lack / np.maximum(family_variance.sum(-1), LEAST_DIVISOR)
        result = (family + family_variance * lack[..., None]).reshape(mean.shape)
    return result


def non_negative(levels: Sequence[Tensor]) -> list[Tensor]:
    """Return a tree whose cells are non-negative: from the top, each family is projected.

    The projection is onto the families that add up to the value of their parent. The total of the
    top level stays (0 if it is negative), so the class sizes remain unbiased where they matter.
    """
    result: list[Tensor] = []
    parent = levels[0].double().sum(-1, keepdim=True).clamp(min=0.0)
    for index in range(len(levels)):
        families = siblings(levels, index).double()
        parent = _onto_simplex(families, parent).flatten(-2)
        result.append(parent)
    return result


def _onto_simplex(family: Tensor, total: Tensor) -> Tensor:
    r"""Return the Euclidean projection of each family, ``(..., b)``, onto a simplex.

    The simplex is :math:`\{x \ge 0, \sum x = p\}`, with p the total. The projection is a common
    shift, cut off at 0. Sorted descending, the k largest stay positive, for the largest k with
    :math:`x_k > (x_1 + \dots + x_k - p) / k`.
    """
    ordered = family.sort(-1, descending=True).values
    lengths = torch.arange(1, family.shape[-1] + 1, dtype=torch.float64)
    shift = (ordered.cumsum(-1) - total[..., None]) / lengths
    positive = (ordered > shift).sum(-1, keepdim=True).clamp(min=1)
    projected = (family - shift.gather(-1, positive - 1)).clamp(min=0.0)
    return torch.where(total[..., None] > 0, projected, 0.0)
