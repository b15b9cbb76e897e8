"""Query: what is asked once. Leaves, the tree over them, and the fraction of epsilon that the answer spends."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchmetrics_fed.counting.tree import Table, Tree
from torchmetrics_fed.errors import InputError, WireError
from torchmetrics_fed.release.wire import Kind, Reader, frame

LEAST_FRACTION = 2.0**-10
"""Fractions are multiples of it, so that they add up exactly. Less would take noise that no integer holds."""

_MOST_LEVELS = 24
_MOST_LEAVES = 1 << 24


@dataclass(frozen=True)
class Query:
    """What the aggregator asks of every client. It is public, and made from nothing or from a private release.

    Args:
        tree: the leaves on the grid, and the levels over them; of two models a table.
        fraction: the fraction of epsilon that the answer spends.
        pooled: whether the groups of the spec are added up before they are counted, each client's own.

    Example:
        >>> from torchmetrics_fed import Query
        >>> from torchmetrics_fed.counting import Tree
        >>> query = Query(Tree.binary(4096))
        >>> Query.from_bytes(bytes(query)) == query
        True
    """

    tree: Tree
    fraction: float = 1.0
    pooled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tree, Tree):
            raise InputError(
                f"Expected argument `tree` to be a Tree but got {type(self.tree).__name__}."
            )
        known = isinstance(self.fraction, int | float) and LEAST_FRACTION <= self.fraction <= 1
        if not known or self.fraction % LEAST_FRACTION:
            raise InputError(
                f"Expected `fraction` to be a multiple of 1/1024, up to 1, but got {self.fraction!r}."
            )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        return hashlib.sha256(bytes(self)).digest()

    def __bytes__(self) -> bytes:
        """The message that asks. It holds nothing that an earlier release did not."""
        branching, edges = self.tree.branching, self.tree.edges
        flags = (edges is not None) + 2 * self.pooled
        if isinstance(self.tree, Table):
            flags += 4 + 8 * self.tree.joint
        weights = (
            self.tree.weights if len(self.tree.weights) == len(branching) else (1,) * len(branching)
        )
        levels = len(branching)
        head = struct.pack(
            f"<dBB{levels}I{levels}B", self.fraction, levels, flags, *branching, *weights
        )
        places = b"" if edges is None else np.asarray(edges, dtype="<u4").tobytes()
        return frame(Kind.QUERY, head, places)

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """Return the query in ``data``. Bounds are checked before anything is allocated."""
        reader = Reader(data, Kind.QUERY)
        (fraction,) = struct.unpack("<d", reader.view(8))
        levels, flags = reader.number(1), reader.number(1)
        placed, pooled, table, joint = (bool(flags & flag) for flag in (1, 2, 4, 8))
        if (
            not 1 <= levels <= _MOST_LEVELS
            or flags not in (0, 1, 2, 3, 5, 13)
            or (table and levels != 2)
        ):
            raise reader.error(f"1 to {_MOST_LEVELS} levels", f"{levels}")
        branching = struct.unpack(f"<{levels}I", reader.view(4 * levels))
        weights, leaves = tuple(reader.take(levels)), math.prod(branching)
        if leaves > _MOST_LEAVES:
            raise reader.error(f"at most {_MOST_LEAVES} leaves", f"{leaves}")
        edges = None
        if placed:
            places = sum(branching) + 2 if table else leaves + 1
            edges = tuple(np.frombuffer(reader.view(4 * places), dtype="<u4").tolist())
        reader.end()
        try:
            tree = (
                Table(branching, edges, weights, joint)
                if table
                else Tree(branching, edges, weights)
            )
            return cls(tree, fraction, pooled)
        except InputError as error:
            raise WireError(f"Expected a query that can be answered. {error}") from None
