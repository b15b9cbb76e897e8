"""Query: what is asked once.

A query names leaves (runs of bins), the levels over them, and the fraction of epsilon that the replies spend. It is
public: it is made from nothing, or from a private sum. These rules hold for every query:

- All cells of a share get noise of one law and one scale. A cell that counts an example w times is therefore known w
  times as well as a cell that counts it once, and costs w times as much: sensitivity is made of the weights.
- Weights are integers, so that noise stays integer.
- Fractions are multiples of 1/1024, so that the fractions of a release add up to 1 exactly.
- A query has one encoding. Its digest is bound to every reply.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.counting.tree import Table, Tree
from torchmetrics_fed.errors import InputError, ReleaseError, WireError
from torchmetrics_fed.release.wire import Kind, Reader, frame

LEAST_FRACTION = 2.0**-10
"""Fractions are multiples of it, so that they add up exactly. Less would take noise that no integer holds."""
MOST_WEIGHT = 1 << 20
"""The largest weight of a cell. Counts of up to 2^42 examples then fit into 63 bits."""

_MOST_LEVELS = 24
_MOST_LEAVES = 1 << 24
# The bits of the byte of flags.
_PLACED = 1
_POOLS_GROUPS = 2
_TABLE = 4
_JOINT = 8
_POOLS_CLASSES = 16
_ALL_FLAGS = 31


@dataclass(frozen=True)
class LevelWeights:
    """How many times one level counts an example, as a negative and as a positive, in each of its nodes.

    Args:
        negatives: one number for each node, or a single one for all of them.
        positives: likewise.

    Example:
        >>> from torchmetrics_fed.release.query import LevelWeights
        >>> LevelWeights.of(4)
        LevelWeights(negatives=(4,), positives=(4,))
        >>> LevelWeights(negatives=(1, 1, 1), positives=(8, 4, 2)).negatives
        (1,)
    """

    negatives: tuple[int, ...] = (1,)
    positives: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("negatives", "positives"):
            weights = getattr(self, name)
            if not weights or not all(map(_is_weight, weights)):
                raise InputError(
                    f"Expected argument `{name}` to be ints from 1 to {MOST_WEIGHT} but got {weights!r}."
                )
            if len(set(weights)) == 1:  # one encoding only
                object.__setattr__(self, name, weights[:1])

    @classmethod
    def of(cls, weight: int) -> LevelWeights:
        """Return the same weight for all nodes, negatives and positives."""
        return cls(negatives=(weight,), positives=(weight,))

    @property
    def single(self) -> int | None:
        """The weight of all cells of the level; None where they differ."""
        if len(self.negatives) == 1 and self.negatives == self.positives:
            return self.negatives[0]
        return None

    @property
    def largest(self) -> tuple[int, int]:
        """The largest weight of a negative and of a positive."""
        return max(self.negatives), max(self.positives)

    def fits(self, nodes: int) -> bool:
        """Return whether these are the weights of a level with this many nodes."""
        return len(self.negatives) in (1, nodes) and len(self.positives) in (1, nodes)

    def rows(self, nodes: int) -> NDArray[np.int64]:
        """Return the weights of negatives and of positives in each node, ``(2, nodes)``."""
        rows = np.empty((2, nodes), dtype=np.int64)
        rows[0] = self.negatives
        rows[1] = self.positives
        return rows


@dataclass(frozen=True)
class Query:
    """What the aggregator asks of every client. It is public, and made from nothing or from a private release.

    Args:
        tree: the leaves on the grid, and the levels over them; for two models a table.
        fraction: the fraction of epsilon that the replies spend.
        weights: for each level how many times it counts an example; once if not given.
        pools_groups: whether each client adds up the groups of the spec before it counts.
        pools_classes: whether each client adds up the histograms of all classes before it counts.

    Example:
        >>> from torchmetrics_fed import Query
        >>> from torchmetrics_fed.counting import Tree
        >>> query = Query(Tree.binary(4096))
        >>> Query.from_bytes(bytes(query)) == query
        True
    """

    tree: Tree
    fraction: float = 1.0
    weights: tuple[LevelWeights, ...] = ()
    pools_groups: bool = False
    pools_classes: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tree, Tree):
            raise InputError(
                f"Expected argument `tree` to be a Tree but got {type(self.tree).__name__}."
            )
        is_number = isinstance(self.fraction, int | float)
        if (
            not is_number
            or not LEAST_FRACTION <= self.fraction <= 1
            or self.fraction % LEAST_FRACTION
        ):
            raise InputError(
                f"Expected `fraction` to be a multiple of 1/1024, up to 1, but got {self.fraction!r}."
            )
        sizes = self.tree.sizes
        weights = self.weights or (LevelWeights(),) * len(sizes)
        object.__setattr__(self, "weights", weights)
        if len(weights) != len(sizes) or not all(
            level.fits(size) for level, size in zip(weights, sizes, strict=True)
        ):
            raise InputError(
                f"Expected argument `weights` to be a LevelWeights for each of {len(sizes)} levels, with one weight "
                f"for each of {sizes} nodes or a single one, but got {_short(weights)}."
            )

    @property
    def is_weighted(self) -> bool:
        """Whether some cell counts an example more than once."""
        return any(level != LevelWeights() for level in self.weights)

    @property
    def level_weights(self) -> tuple[int, ...]:
        """The one weight of each level; raises where a level has several."""
        weights = []
        for level in self.weights:
            if level.single is None:
                raise ReleaseError(
                    "Cannot read this sum: its query weighs the nodes of a level, or negatives and positives, "
                    "differently, and this reading knows one weight for each level."
                )
            weights.append(level.single)
        return tuple(weights)

    @cached_property
    def cell_weights(self) -> NDArray[np.int64]:
        """The weight of each cell, negatives and positives, ``(2, cells)``."""
        levels = zip(self.weights, self.tree.sizes, strict=True)
        return np.concatenate([level.rows(size) for level, size in levels], axis=1)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        return hashlib.sha256(bytes(self)).digest()

    def __bytes__(self) -> bytes:
        """The message that asks. It holds nothing that an earlier release did not."""
        branching = self.tree.branching
        head = struct.pack("<dBB", self.fraction, len(branching), self._flags)
        parts = [head, _packed(branching)]
        if self.tree.edges is not None:
            parts.append(_packed(self.tree.edges))
        for level in self.weights:
            for weights in (level.negatives, level.positives):
                parts.append(len(weights).to_bytes(4, "little"))
                parts.append(_packed(weights))
        return frame(Kind.QUERY, *parts)

    @property
    def _flags(self) -> int:
        flags = 0
        if self.tree.edges is not None:
            flags |= _PLACED
        if self.pools_groups:
            flags |= _POOLS_GROUPS
        if self.pools_classes:
            flags |= _POOLS_CLASSES
        if isinstance(self.tree, Table):
            flags |= _TABLE
            if self.tree.joint:
                flags |= _JOINT
        return flags

    @classmethod
    def from_bytes(cls, data: bytes) -> Query:
        """Return the query in ``data``. Bounds are checked before anything is allocated."""
        reader = Reader(data, Kind.QUERY)
        (fraction,) = struct.unpack("<d", reader.view(8))
        levels = reader.number(1)
        flags = reader.number(1)
        if not 1 <= levels <= _MOST_LEVELS:
            raise reader.error(f"1 to {_MOST_LEVELS} levels", f"{levels}")
        if flags & ~_ALL_FLAGS or not _flags_agree(flags, levels):
            raise reader.error("flags of a tree or of a table", f"{flags}")
        branching = _numbers(reader, levels)
        if math.prod(branching) > _MOST_LEAVES:
            raise reader.error(f"at most {_MOST_LEAVES} leaves", f"{math.prod(branching)}")
        edges = None
        if flags & _TABLE:
            edges = _numbers(reader, sum(branching) + 2)
        elif flags & _PLACED:
            edges = _numbers(reader, math.prod(branching) + 1)
        try:
            tree = _tree(branching, edges, flags)
            weights = tuple(_read_weights(reader, size) for size in tree.sizes)
            reader.end()
            query = cls(
                tree,
                fraction,
                weights=weights,
                pools_groups=bool(flags & _POOLS_GROUPS),
                pools_classes=bool(flags & _POOLS_CLASSES),
            )
        except InputError as error:
            raise WireError(f"Expected a query that can be answered. {error}") from None
        if bytes(query) != data:
            raise reader.error("the one encoding of a query", "another")
        return query


def _is_weight(weight: object) -> bool:
    is_int = isinstance(weight, int) and not isinstance(weight, bool)
    return is_int and 1 <= weight <= MOST_WEIGHT  # type: ignore[operator]


def _packed(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, dtype="<u4").tobytes()


def _numbers(reader: Reader, count: int) -> tuple[int, ...]:
    return tuple(np.frombuffer(reader.view(4 * count), dtype="<u4").tolist())


def _flags_agree(flags: int, levels: int) -> bool:
    """Return whether a byte of flags is one that a query can have."""
    if flags & _TABLE:
        return (
            levels == 2 and bool(flags & _PLACED) and not flags & (_POOLS_GROUPS | _POOLS_CLASSES)
        )
    return not flags & _JOINT


def _tree(branching: tuple[int, ...], edges: tuple[int, ...] | None, flags: int) -> Tree:
    if flags & _TABLE:
        return Table(branching, edges, joint=bool(flags & _JOINT))
    return Tree(branching, edges)


def _read_weights(reader: Reader, nodes: int) -> LevelWeights:
    rows = []
    for _ in range(2):
        count = reader.number(4)
        if count not in (1, nodes):
            raise reader.error(f"one weight or {nodes}", f"{count}")
        rows.append(_numbers(reader, count))
    return LevelWeights(negatives=rows[0], positives=rows[1])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
