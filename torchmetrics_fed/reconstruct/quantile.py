"""Quantiles of a histogram by descent of its tree, with the rules of the paper's own code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    r"""Return the score at or below which a fraction ``q`` lies, as the left edge of the bin where the descent ends.

    From the root, each level's counts are divided by that level's total; earlier siblings are added (negative ones
    count as nothing) until the next would pass q, then the descent goes on below that sibling. It stops early where
    :math:`|q - \text{cumulated}| < 1 / (2 \cdot \text{leaves})`.

    Args:
        levels: counts of each level, top first, one histogram: shapes ``(size,)``.
        edges: ascending edges of the leaves.
        q: fractions in [0, 1].
    """
    leaves = levels[-1].shape[-1]
    q = q.double()
    node = torch.zeros(q.shape, dtype=torch.int64)
    cumulated = torch.zeros_like(q)
    left = torch.zeros_like(node)
    going = torch.ones(q.shape, dtype=torch.bool)
    above = 1
    for level in levels:
        size = level.shape[-1]
        total = level.sum().double()
        if total <= 0:  # nothing here to divide by: an empty class has all its quantiles at the lowest edge
            return edges[left]
        fraction = (level / total).clamp(min=0.0)
        node, siblings, above = node * (size // above), size // above, size
        passing = going
        for _ in range(siblings - 1):
            step = fraction[node]
            passing = passing & (cumulated + step < q)
            if not passing.any():
                break
            cumulated = torch.where(passing, cumulated + step, cumulated)
            node = node + passing.long()
        left = torch.where(going, node * (leaves // size), left)
        going = going & ((q - cumulated).abs() >= 1 / (2 * leaves))
    return edges[left]
