"""Table: leaves of two models' scores, counted together, cell by cell, or each model by itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.errors import InputError


@dataclass(frozen=True)
class Table(Tree):
    """Leaves on two axes, over counts of pairs of bins: ``bin of the first model * bins + bin of the second``.

    Args:
        branching: leaves of the first and of the second model.
        edges: the edges of the first model's leaves, then those of the second's, as places on the grid.
        weights: not to be given.
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
        if not sized or min(self.branching) < 2 or not ends or any(weight != 1 for weight in self.weights):
            raise InputError(
                "Expected two axes of at least 2 leaves, each with ascending edges from 0 to the number of bins, and "
                f"no weights, but got {self.branching} leaves and {len(rows)} and {len(columns)} edges."
            )
        sizes = (self.branching[0] * self.branching[1],) if self.joint else self.branching
        derived = {"sizes": sizes, "leaves": sizes[-1], "cells": sum(sizes), "weights": (1,) * len(sizes)}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def flat(cls, leaves: int) -> Table:
        """Return the table of all pairs of bins."""
        return cls((leaves, leaves), (*range(leaves + 1), *range(leaves + 1)))

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The edges of each model's leaves."""
        edges, first = self.edges or (), self.branching[0] + 1
        return edges[:first], edges[first:]

    @property
    def fields(self) -> Any:
        """Everything two parties must agree on, in plain JSON values."""
        return {"axes": [list(axis) for axis in self.axes], "joint": self.joint}

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
        """Return the cells: those of :meth:`leaf`."""
        return leaf
