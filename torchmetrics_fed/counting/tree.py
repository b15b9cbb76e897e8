"""Tree: the leaves of a release on the grid, and the levels over them; Table: those of two models."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError


@dataclass(frozen=True)
class Tree:
    """A hierarchy over leaves: level i has ``branching[0] * ... * branching[i]`` nodes. No root.

    Args:
        branching: children of each node, from the top level down.
        edges: the edges of the leaves as places among the grid's edges, ascending from 0 to the number of bins;
            evenly spaced over any grid if not given.

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
    """Number of nodes of all levels: what one histogram of a share holds."""

    def __post_init__(self) -> None:
        if not self.branching or any(b < 2 for b in self.branching):
            raise InputError(
                f"Expected argument `branching` to be ints of at least 2 but got {self.branching}."
            )
        sizes = tuple(accumulate(self.branching, mul))
        for name, value in (("sizes", sizes), ("leaves", sizes[-1]), ("cells", sum(sizes))):
            object.__setattr__(self, name, value)
        if self.edges is None:
            return
        ascending = all(left < right for left, right in pairwise(self.edges))
        if len(self.edges) != self.leaves + 1 or self.edges[0] != 0 or not ascending:
            raise InputError(
                f"Expected argument `edges` to be {self.leaves + 1} ascending places on the grid from 0 up, for "
                f"{self.leaves} leaves, but got {len(self.edges)}{'' if ascending else ' that do not ascend'}."
            )

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
        """Return a tree over all of a few bins, with a branching of at most 16.

        Few levels leave each a large part of epsilon, several keep sums over many leaves cheap. Where the bins are not
        a power of two (custom edges) they are the leaves of a single level.
        """
        if bins & (bins - 1):
            return cls.flat(bins)
        height = bins.bit_length() - 1
        levels = -(-height // 4)
        return cls(
            tuple(1 << height // levels + (level < height % levels) for level in range(levels))
        )

    def fits(self, bins: int) -> bool:
        """Whether the leaves are made of whole bins."""
        return bins % self.leaves == 0 if self.edges is None else self.edges[-1] == bins

    def places(self, bins: int) -> Tensor:
        """Return the edges of the leaves as places among the edges of a grid, int64."""
        if self.edges is None:
            return torch.arange(0, bins + 1, bins // self.leaves)
        return torch.tensor(self.edges)

    def leaf(self, counts: Tensor) -> Tensor:
        """Return the counts on the leaves, ``(..., leaves)``, of counts on the bins, ``(..., bins)``."""
        if self.edges is None:
            even: Tensor = counts.unflatten(-1, (self.leaves, -1)).sum(-1)
            return even
        below = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
        return torch.diff(below[..., torch.tensor(self.edges, device=counts.device)], dim=-1)

    def levels(self, leaf: Tensor) -> list[Tensor]:
        """Return every level's counts from the leaf counts ``(..., leaves)``, top level first."""
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
    """Leaves on two axes, over counts of pairs of bins: ``bin of the first model * bins + bin of the second``.

    Args:
        branching: leaves of the first and of the second model.
        edges: the edges of the first model's leaves, then those of the second's, as places on the grid.
        joint: whether an example is counted in one cell of the table, or in one leaf of each model: two levels.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.counting import Table
        >>> counts = torch.tensor([1, 2, 3, 4])  # of two bins
        >>> Table.flat(2).leaf(counts), Table((2, 2), (0, 1, 2, 0, 1, 2), joint=False).leaf(counts)
        (tensor([1, 2, 3, 4]), tensor([3, 7, 4, 6]))
    """

    joint: bool = True

    def __post_init__(self) -> None:
        rows, columns = self.axes
        ascending = all(left < right for axis in (rows, columns) for left, right in pairwise(axis))
        ends = ascending and rows[:1] == columns[:1] == (0,) and rows[-1] == columns[-1]
        sized = len(self.branching) == 2 and (len(rows) - 1, len(columns) - 1) == self.branching
        if not sized or min(self.branching) < 2 or not ends:
            raise InputError(
                "Expected two axes of at least 2 leaves, each with ascending edges from 0 to the number of bins, but "
                f"got {self.branching} leaves and {len(rows)} and {len(columns)} edges."
            )
        sizes = (self.branching[0] * self.branching[1],) if self.joint else self.branching
        for name, value in (("sizes", sizes), ("leaves", sizes[-1]), ("cells", sum(sizes))):
            object.__setattr__(self, name, value)

    @classmethod
    def flat(cls, leaves: int) -> Table:
        return cls((leaves, leaves), (*range(leaves + 1), *range(leaves + 1)))

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The edges of each model's leaves."""
        edges, first = self.edges or (), self.branching[0] + 1
        return edges[:first], edges[first:]

    def places(self, bins: int) -> Tensor:
        """Raise: what reads one model's curve cannot read two."""
        raise InputError(
            "Expected a release of one model's scores but this one compares two. Read it with "
            "`functional.compare_models(release)` or `FederatedModelComparison.from_release(release)`."
        )

    def leaf(self, counts: Tensor) -> Tensor:
        """Return the counts in the cells of the table, or on the leaves of both models side by side."""
        bins = (self.edges or (0,))[-1]
        pairs = counts.unflatten(-1, (bins, bins))
        first, second = (Tree((len(axis) - 1,), axis) for axis in self.axes)
        if self.joint:
            return first.leaf(second.leaf(pairs).transpose(-1, -2)).transpose(-1, -2).flatten(-2)
        return torch.cat([first.leaf(pairs.sum(-1)), second.leaf(pairs.sum(-2))], -1)

    def joined(self, leaf: Tensor) -> Tensor:
        return leaf
