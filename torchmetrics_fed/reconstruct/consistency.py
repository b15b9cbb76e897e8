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
from numpy.typing import NDArray
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


def least_squares(
    levels: Sequence[Tensor], weights: Sequence[NDArray[np.int64]] | None = None
) -> list[Tensor]:
    r"""Return the consistent tree closest to noisy ``levels``, by generalised least squares.

    Two passes. Upwards, the value y of a node, with variance u, is averaged with the sum of its
    children, each with a variance :math:`v_c`, by inverse variance. Downwards, the difference to
    the parent p is divided in proportion to the variances:

    .. math:: z = \frac{v\, y + u \sum_c z_c}{v + u}, \qquad v = \sum_c v_c, \qquad
        u' = \frac{v\, u}{v + u}; \qquad
        \hat z_c = z_c + \frac{v_c}{v} \Big(p - \sum_j z_j\Big).

    For b-ary trees of equal weights this is the solution of Hay et al. (2010).

    Args:
        levels: the cells of each level, ``(..., size)``, top level first.
        weights: how many times the cells of each level were counted, :math:`w`, as
            :meth:`Spec.weights` returns them; once if not given. The variance of a cell is
            :math:`1 / w^2` of the noise.
    """
    tree = [level.double() for level in levels]
    if weights is None:
        weights = [np.ones(1, dtype=np.int64)] * len(levels)
    variances = [torch.from_numpy(1 / weight.astype(np.float64) ** 2) for weight in weights]
    for index in range(len(levels) - 1, 0, -1):
        children = siblings(tree, index)
        node = tree[index - 1]
        node_variance = variances[index - 1]
        sum_variance = _sum_of_families(variances[index], children)
        divisor = sum_variance + node_variance
        tree[index - 1] = (node * sum_variance + children.sum(-1) * node_variance) / divisor
        variances[index - 1] = sum_variance * node_variance / divisor
    for index in range(1, len(levels)):
        children = siblings(tree, index)
        lack = tree[index - 1] - children.sum(-1)
        tree[index] = (children + _divided(lack, variances[index], children)).flatten(-2)
    return tree


def _sum_of_families(variance: Tensor, families: Tensor) -> Tensor:
    """Return the sum of the variances of each family; of one variance, if all nodes have one."""
    if variance.shape[-1] == 1:
        return families.shape[-1] * variance
    total: Tensor = variance.unflatten(-1, families.shape[-2:]).sum(-1)
    return total


def _divided(lack: Tensor, variance: Tensor, families: Tensor) -> Tensor:
    """Return what each member of a family gets of its lack: ``(..., parents, branching)``."""
    if variance.shape[-1] == 1:
        return (lack / families.shape[-1])[..., None]
    members = variance.unflatten(-1, families.shape[-2:])
    part: Tensor = lack[..., None] * members / members.sum(-1, keepdim=True)
    return part


def posterior(
    levels: Sequence[Floats], variances: Sequence[float | Floats], expected: Floats
) -> Floats:
    r"""Return the mean of leaf counts given noisy levels, where Poisson counts are expected.

    Upwards, a node has the mean m and the variance p of its children together, or those that are
    expected of a leaf. It takes in its own level y, with noise of variance v:

    .. math:: g = \frac{p}{p + v}, \qquad m' = m + g (y - m), \qquad p' = g v.

    Downwards, the difference to the parent is divided in proportion to the variances of the family.

    Args:
        levels: the cells of each level, ``(rows, size)``, top level first.
        variances: the variance of the noise of each level, which broadcasts to its cells.
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
