"""Query: one question of the aggregator to every client.

A query names leaves (runs of bins), the levels over them, and the fraction of epsilon that the
replies spend. A query is public: it is made without any data, or from a private sum. These rules
hold for every query:

- All cells of a share get noise of one law and one scale. A cell that counts an example w times is
  therefore known w times as well as a cell that counts it once, and costs w times as much:
  sensitivity is made of the weights (:meth:`~torchmetrics_fed.Spec.sensitivity`).
- Weights are integers, so that noise stays integer.
- Fractions are multiples of 1/1024, so that the fractions of a release add up to 1 exactly.
- A query has one encoding. Every reply is bound to its digest.
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
from torchmetrics_fed.errors import InputError, WireError
from torchmetrics_fed.release.wire import Kind, Reader, frame

LEAST_FRACTION = 2.0**-10
"""All fractions are multiples of it, so that they add up exactly. A smaller fraction would take
noise that no 64-bit integer holds."""

MOST_WEIGHT = 1 << 20
"""The largest weight of a cell. Counts of up to 2^42 examples then fit into 63 bits."""

_MOST_LEVELS = 24
"""The most levels of a query that is read. A binary tree over the most leaves has as many."""

_MOST_LEAVES = 1 << 24
"""The most leaves of a query that is read."""

# The bits of the byte of flags.
_PLACED = 1
_POOLS_GROUPS = 2
_TABLE = 4
_JOINT = 8
_POOLS_CLASSES = 16
_ALL_FLAGS = 31


@dataclass(frozen=True)
class LevelWeights:
    """How many times one level counts an example, in each of its nodes.

    Args:
        negatives: the weights of negatives: one for each node, or one for all nodes.
        positives: the weights of positives, likewise.

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
                    f"Expected argument `{name}` to be ints from 1 to {MOST_WEIGHT} but got "
                    f"{weights!r}."
                )
            if len(set(weights)) == 1:  # so that equal weights have one encoding
                object.__setattr__(self, name, weights[:1])

    @classmethod
    def of(cls, weight: int) -> LevelWeights:
        """Return one weight for all nodes, negatives and positives."""
        return cls(negatives=(weight,), positives=(weight,))

    @property
    def single(self) -> int | None:
        """The weight of all cells of the level; None where they differ."""
        if len(self.negatives) == 1 and self.negatives == self.positives:
            return self.negatives[0]
        return None

    def fits(self, nodes: int) -> bool:
        """Return whether these are the weights of a level with this many nodes."""
        return len(self.negatives) in (1, nodes) and len(self.positives) in (1, nodes)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The weights of negatives and of positives, ``(2, nodes)``; ``(2, 1)`` if all nodes have
        the same."""
        rows = np.broadcast_arrays(self.negatives, self.positives)
        return np.stack(rows).astype(np.int64)


@dataclass(frozen=True)
class Query:
    """One question of the aggregator to every client.

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
        if not _is_fraction(self.fraction):
            raise InputError(
                "Expected argument `fraction` to be a multiple of 1/1024, up to 1, but got "
                f"{self.fraction!r}."
            )
        sizes = self.tree.sizes
        if not self.weights:
            object.__setattr__(self, "weights", (LevelWeights(),) * len(sizes))
        if not _fit(self.weights, sizes):
            raise InputError(
                f"Expected argument `weights` to be a LevelWeights for each of {len(sizes)} "
                f"levels, with one weight for each of {sizes} nodes or a single one, but got "
                f"{_short(self.weights)}."
            )

    @property
    def is_weighted(self) -> bool:
        """Whether a cell counts an example more than once."""
        return any(level != LevelWeights() for level in self.weights)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes."""
        return hashlib.sha256(bytes(self)).digest()

    def __bytes__(self) -> bytes:
        """The message that asks. It tells nothing that an earlier release did not tell."""
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
        branching = _read_numbers(reader, levels)
        if math.prod(branching) > _MOST_LEAVES:
            raise reader.error(f"at most {_MOST_LEAVES} leaves", f"{math.prod(branching)}")
        edges = None
        if flags & _TABLE:
            edges = _read_numbers(reader, sum(branching) + 2)
        elif flags & _PLACED:
            edges = _read_numbers(reader, math.prod(branching) + 1)
        try:
            tree = _make_tree(branching, edges, flags)
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


def _is_fraction(fraction: object) -> bool:
    if not isinstance(fraction, int | float):
        return False
    return LEAST_FRACTION <= fraction <= 1 and fraction % LEAST_FRACTION == 0


def _fit(weights: tuple[LevelWeights, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether these are weights of levels with as many nodes as ``sizes`` says."""
    if len(weights) != len(sizes):
        return False
    return all(level.fits(size) for level, size in zip(weights, sizes, strict=True))


def _is_weight(weight: object) -> bool:
    if not isinstance(weight, int) or isinstance(weight, bool):
        return False
    return 1 <= weight <= MOST_WEIGHT


def _packed(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, dtype="<u4").tobytes()


def _read_numbers(reader: Reader, count: int) -> tuple[int, ...]:
    return tuple(np.frombuffer(reader.view(4 * count), dtype="<u4").tolist())


def _read_weights(reader: Reader, nodes: int) -> LevelWeights:
    negatives = _read_row(reader, nodes)
    positives = _read_row(reader, nodes)
    return LevelWeights(negatives=negatives, positives=positives)


def _read_row(reader: Reader, nodes: int) -> tuple[int, ...]:
    count = reader.number(4)
    if count not in (1, nodes):
        raise reader.error(f"one weight or {nodes}", f"{count}")
    return _read_numbers(reader, count)


def _flags_agree(flags: int, levels: int) -> bool:
    """Return whether a query can have this byte of flags."""
    if not flags & _TABLE:
        return not flags & _JOINT
    is_placed = bool(flags & _PLACED)
    pools = bool(flags & (_POOLS_GROUPS | _POOLS_CLASSES))
    return levels == 2 and is_placed and not pools


def _make_tree(branching: tuple[int, ...], edges: tuple[int, ...] | None, flags: int) -> Tree:
    if flags & _TABLE:
        return Table(branching, edges, joint=bool(flags & _JOINT))
    return Tree(branching, edges)


def _short(value: object) -> str:
    text = repr(value)
    if len(text) > 100:
        return text[:97] + "..."
    return text
