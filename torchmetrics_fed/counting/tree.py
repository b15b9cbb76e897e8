"""Tree: the leaves of a release on the grid, and the levels over them. Table: those of two models.

Invariants:

- A leaf is a run of whole bins. Every bin is in exactly one leaf.
- Every level of a tree holds every example once. There is no root: its count is the sum of the top
  level.
- A share holds the counts of all levels of one histogram side by side, the top level first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError

LARGEST_BITS = 4
"""Logarithm, to base 2, of the largest branching of a balanced tree."""


@dataclass(frozen=True)
class Tree:
    """A hierarchy over leaves: level i has ``branching[0] * ... * branching[i]`` nodes. No root.

    Args:
        branching: children of each node, from the top level down.
        edges: the edges of the leaves as places among the edges of the grid, ascending from 0 to
            the number of bins; evenly spaced over any grid if None.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.counting import Tree
        >>> [level.tolist() for level in Tree((2, 2)).levels(torch.tensor([1, 2, 3, 4]))]
        [[3, 7], [1, 2, 3, 4]]
    """

    branching: tuple[int, ...]
    edges: tuple[int, ...] | None = None
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Number of nodes of each level, top level first."""
    leaves: int = field(init=False, repr=False, compare=False)
    """Number of leaves."""
    cells: int = field(init=False, repr=False, compare=False)
    """Number of nodes of all levels: the size of one histogram of a share."""

    def __post_init__(self) -> None:
        if not self.branching or any(children < 2 for children in self.branching):
            raise InputError(
                f"Expected argument `branching` to be ints of at least 2 but got {self.branching}."
            )
        self._set_sizes(tuple(accumulate(self.branching, mul)))
        if self.edges is None:
            return
        ascends = _ascends(self.edges)
        if len(self.edges) != self.leaves + 1 or self.edges[0] != 0 or not ascends:
            order = "" if ascends else " that do not ascend"
            raise InputError(
                f"Expected argument `edges` to be {self.leaves + 1} ascending places on the grid "
                f"from 0 up, for {self.leaves} leaves, but got {len(self.edges)}{order}."
            )

    def _set_sizes(self, sizes: tuple[int, ...]) -> None:
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "leaves", sizes[-1])
        object.__setattr__(self, "cells", sum(sizes))

    @classmethod
    def flat(cls, leaves: int) -> Tree:
        """Return the tree of one level, for counts without noise."""
        return cls((leaves,))

    @classmethod
    def binary(cls, leaves: int) -> Tree:
        """Return the paper's tree: branching b = 2 at every level; leaves are a power of two."""
        height = leaves.bit_length() - 1
        if leaves != 1 << height:
            raise InputError(f"Expected argument `leaves` to be a power of two but got {leaves}.")
        return cls((2,) * height)

    @classmethod
    def balanced(cls, bins: int) -> Tree:
        """Return a tree whose leaves are the bins, for few bins, with a branching of at most 16.

        Few levels leave a large part of epsilon to each level; several levels keep the noise of
        sums over many leaves small. If the number of bins is no power of two (custom edges), the
        bins are the leaves of a single level.
        """
        is_power_of_two = bins & (bins - 1) == 0
        if not is_power_of_two:
            return cls.flat(bins)
        height = bins.bit_length() - 1
        levels = -(-height // LARGEST_BITS)
        bits, wider_levels = divmod(height, levels)
        branching = [1 << bits + 1] * wider_levels + [1 << bits] * (levels - wider_levels)
        return cls(tuple(branching))

    def fits(self, bins: int) -> bool:
        """Whether the leaves are made of whole bins."""
        if self.edges is None:
            return bins % self.leaves == 0
        return self.edges[-1] == bins

    def places(self, bins: int) -> Tensor:
        """Return the edges of the leaves as places among the edges of a grid, int64."""
        if self.edges is None:
            return torch.arange(0, bins + 1, bins // self.leaves)
        return torch.tensor(self.edges)

    def leaf(self, counts: Tensor) -> Tensor:
        """Return the counts on the leaves, ``(..., leaves)``, from counts on the bins."""
        if self.edges is None:
            even: Tensor = counts.unflatten(-1, (self.leaves, -1)).sum(-1)
            return even
        counts_below = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
        edges = torch.tensor(self.edges, device=counts.device)
        return torch.diff(counts_below[..., edges], dim=-1)

    def levels(self, leaf: Tensor) -> list[Tensor]:
        """Return the counts of every level from the leaf counts ``(..., leaves)``, top first."""
        if leaf.shape[-1] != self.leaves:
            raise InputError(
                f"Expected {self.leaves} leaves on the last axis but got shape {tuple(leaf.shape)}."
            )
        return [leaf.unflatten(-1, (size, -1)).sum(-1) for size in self.sizes]

    def joined(self, leaf: Tensor) -> Tensor:
        """Return the levels over leaf counts side by side, ``(..., cells)``."""
        return torch.cat(self.levels(leaf), -1)

    def split(self, cells: Tensor) -> list[Tensor]:
        """Return the levels that lie side by side in ``cells``: the inverse of :meth:`joined`."""
        return list(cells.split(self.sizes, dim=-1))


@dataclass(frozen=True)
class Table(Tree):
    """Leaves on two axes, over counts of pairs of bins.

    The pair number is ``bin of the first model * bins + bin of the second model``.

    Args:
        branching: leaves of the first and of the second model.
        edges: the edges of the leaves of the first model, then those of the second model, as places
            on the grid.
        joint: whether an example is counted in one cell of the table, or in one leaf of each model:
            two levels.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.counting import Table
        >>> counts = torch.tensor([1, 2, 3, 4])  # of two bins
        >>> Table.flat(2).leaf(counts), Table((2, 2), (0, 1, 2, 0, 1, 2), joint=False).leaf(counts)
        (tensor([1, 2, 3, 4]), tensor([3, 7, 4, 6]))
    """

    joint: bool = True

    def __post_init__(self) -> None:
        first, second = self.axes
        if not self._has_two_axes(first, second):
            raise InputError(
                "Expected two axes of at least 2 leaves, each with ascending edges from 0 to the "
                f"number of bins, but got {self.branching} leaves and {len(first)} and "
                f"{len(second)} edges."
            )
        if self.joint:
            self._set_sizes((self.branching[0] * self.branching[1],))
        else:
            self._set_sizes(self.branching)

    def _has_two_axes(self, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        """Whether the edges of both models are those of leaves on one grid."""
        if self.branching != (len(first) - 1, len(second) - 1) or min(self.branching) < 2:
            return False
        if not _ascends(first) or not _ascends(second):
            return False
        return first[0] == second[0] == 0 and first[-1] == second[-1]

    @classmethod
    def flat(cls, leaves: int) -> Table:
        return cls((leaves, leaves), (*range(leaves + 1), *range(leaves + 1)))

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The edges of the leaves of the first model, and of the second model."""
        edges = self.edges or ()
        edges_of_first = self.branching[0] + 1
        return edges[:edges_of_first], edges[edges_of_first:]

    def places(self, bins: int) -> Tensor:
        """Raise: a reader of one model's curve cannot read two models."""
        raise InputError(
            "Expected a release of one model's scores but this release compares two. Read it with "
            "`comparison.compare_models(release)` or "
            "`FederatedModelComparison.from_release(release)`."
        )

    def leaf(self, counts: Tensor) -> Tensor:
        """Return the counts in the cells of the table, or on the leaves of both models."""
        first_edges, second_edges = self.axes
        bins = first_edges[-1]
        pairs = counts.unflatten(-1, (bins, bins))
        first = Tree((len(first_edges) - 1,), first_edges)
        second = Tree((len(second_edges) - 1,), second_edges)
        if self.joint:
            by_second = second.leaf(pairs).transpose(-1, -2)
            return first.leaf(by_second).transpose(-1, -2).flatten(-2)
        return torch.cat([first.leaf(pairs.sum(-1)), second.leaf(pairs.sum(-2))], -1)

    def joined(self, leaf: Tensor) -> Tensor:
        """Return the leaf counts: there is no level over them."""
        return leaf


def _ascends(edges: tuple[int, ...]) -> bool:
    return all(low < high for low, high in pairwise(edges))
