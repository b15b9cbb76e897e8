"""Tree: the branching over the leaves of a release, and the way from leaves to levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from torch import Tensor

from torchmetrics_fed.errors import InputError

__all__ = ["Tree"]


@dataclass(frozen=True)
class Tree:
    """A hierarchy over evenly spaced leaves: level i has ``branching[0] * ... * branching[i]`` nodes. No root.

    Args:
        branching: children of each node, from the top level down.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import Tree
        >>> [level.tolist() for level in Tree((2, 2)).levels(torch.tensor([1, 2, 3, 4]))]
        [[3, 7], [1, 2, 3, 4]]
    """

    branching: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.branching or any(b < 2 for b in self.branching):
            raise InputError(f"Expected argument `branching` to be ints of at least 2 but got {self.branching}.")

    @classmethod
    def flat(cls, leaves: int) -> Tree:
        """Return the tree that is its leaves: what is sent where there is no noise."""
        return cls((leaves,))

    @classmethod
    def binary(cls, leaves: int) -> Tree:
        """Return the paper's tree: b = 2 at every level over a power of two of leaves."""
        height = leaves.bit_length() - 1
        if leaves != 1 << height:
            raise InputError(f"Expected argument `leaves` to be a power of two but got {leaves}.")
        return cls((2,) * height)

    @classmethod
    def balanced(cls, bins: int) -> Tree:
        """Return the default of a private release: branching of at most 16, over all the bins.

        Few levels leave each a large part of epsilon, several keep sums over many leaves cheap. Fewer leaves would do
        better on most data, and far worse on scores that crowd in a corner of the range. Where the bins are
        not a power of two (custom edges) they are the leaves of a single level.

        Example:
            >>> from torchmetrics_fed import Tree
            >>> Tree.balanced(4096).branching
            (16, 16, 16)
        """
        if bins & (bins - 1):
            return cls.flat(bins)
        height = bins.bit_length() - 1
        levels = -(-height // 4)
        return cls(tuple(1 << height // levels + (level < height % levels) for level in range(levels)))

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return math.prod(self.branching)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level, top level first."""
        return tuple(accumulate(self.branching, mul))

    @property
    def cells(self) -> int:
        """Number of nodes of all levels: what one histogram of a share holds."""
        return sum(self.sizes)

    def levels(self, leaf: Tensor) -> list[Tensor]:
        """Return every level's counts from the leaf counts ``(..., leaves)``, top level first."""
        if leaf.shape[-1] != self.leaves:
            raise InputError(f"Expected {self.leaves} leaves on the last axis but got shape {tuple(leaf.shape)}.")
        return [leaf.unflatten(-1, (size, -1)).sum(-1) for size in self.sizes]

    def split(self, cells: Tensor) -> list[Tensor]:
        """Return the levels that lie side by side in ``cells``: the inverse of concatenating :meth:`levels`."""
        return list(cells.split(self.sizes, dim=-1))
