r"""What noise does to the area under the ROC curve, in closed form: no simulation, one pass over the leaves.

To first order, noise :math:`z_k` in the leaves moves the area A by
:math:`\sum_k z^-_k (T_k - A) / N^- + \sum_k z^+_k (B_k - A) / N^+`, with T the positives above a leaf and B the
negatives below it, as fractions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats


class NoisyArea(NamedTuple):
    """Areas ``(classes,)`` as the leaves show them, and the standard deviations that noise gives them."""

    area: Floats
    deviation: Floats


def noisy_areas(release: Release, pooled: bool = False) -> NoisyArea:
    """Return each class's area and what the noise does to it; of all classes' scores together if ``pooled``."""
    last = release.last
    leaf = non_negative(least_squares(last.levels, last.query.tree.weights))[-1].numpy()
    variance = last.noise_variance
    if pooled:
        leaf, variance = leaf.sum(0, keepdims=True), variance * len(leaf)
    negative, positive = leaf[:, 0], leaf[:, 1]
    sizes = [np.maximum(row.sum(-1, keepdims=True), 1.0) for row in (negative, positive)]
    above = (positive[:, ::-1].cumsum(-1)[:, ::-1] - positive / 2) / sizes[1]
    below = (negative.cumsum(-1) - negative / 2) / sizes[0]
    area = (negative * above).sum(-1, keepdims=True) / sizes[0]
    weights = (above - area) / sizes[0], (below - area) / sizes[1]
    squares = sum(_least_squares_gain(weight, last.query.tree) for weight in weights)
    return NoisyArea(area[:, 0], np.sqrt(variance * squares))


def _least_squares_gain(weight: Floats, tree: Tree) -> Floats:
    r"""Return the variance of a weighted sum of leaves ``(..., leaves)`` after least squares, per variance of a cell.

    It is the least :math:`\sum c^2` of cells' coefficients c that add up to a leaf's weight on its way from the top. Of
    a subtree that is given :math:`a` from above, the least sum is a parabola :math:`\alpha (a - \beta)^2 + \gamma`.
    """
    own = [1 / times**2 for times in tree.weights]
    alpha, beta, gamma = np.full_like(weight, own[-1]), weight, np.zeros_like(weight)
    for level in range(len(own) - 1, 0, -1):
        shape = *weight.shape[:-1], tree.sizes[level - 1], tree.branching[level]
        alpha, beta, gamma = (value.reshape(shape) for value in (alpha, beta, gamma))
        total = alpha.sum(-1)
        centre = (alpha * beta).sum(-1) / total
        gamma = gamma.sum(-1) + (alpha * (beta - centre[..., None]) ** 2).sum(-1)
        alpha, beta = own[level - 1] * total / (own[level - 1] + total), centre
    gain: Floats = (alpha * beta**2 + gamma).sum(-1)
    return gain
