"""Histograms: what a release says about each class, counts on leaves or bins with their edges.

Every function that computes a curve reads :class:`Histograms`, and :func:`read` makes them.
Invariants:

- Row 0 has the negatives, row 1 the positives. Binary tasks have no axis of classes.
- Counts of a noisy release have gone through its :class:`~torchmetrics_fed.Reconstruction`: they
  are floats, and by default consistent and non-negative. Exact counts are the integers of the
  release.
- Histograms are a value. Nothing that reads them changes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchmetrics_fed.counting.edges import ABOVE_ONE
from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.reconstruct.tails import Aligned, Reconstruction, Tails
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.typing import Average, Floats

CELLS_OF_BLOCK = 131_072
"""The cells of a block of classes: 1 MB, half of the cache of a core."""


class Histograms(NamedTuple):
    """Histograms of negatives and positives, read from a release or from plain leaf counts.

    Example:
        >>> read(torch.tensor([[3, 1], [1, 3]])).edges
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    levels: list[Tensor]
    """Counts of each level, ``(..., 2, size)``, top level first; no class axis for binary tasks."""
    edges: Tensor
    """Ascending edges of the leaves, float64."""
    reconstruction: Reconstruction
    """How tails are read from the counts."""
    pairs: list[Tensor] | None = None
    """One-vs-one: the levels by column and true class, ``(K, K, size)``."""
    exclusive: bool = False
    """Whether every example has one of the classes.

    Recall of an absent class is NaN then, as in torchmetrics.
    """

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves, ``(..., 2, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]

    @property
    def flat(self) -> Floats:
        """Counts on the leaves, ``(classes, 2, leaves)``, none of them negative."""
        leaf = self.leaf.cpu().double().clamp(min=0.0)
        counts: Floats = leaf.reshape(-1, 2, leaf.shape[-1]).numpy()
        return counts

    def shaped(self, values: Floats) -> Tensor:
        """Return values of each class, ``(classes, ...)``, with the leading axes of the counts."""
        leading = self.leaf.shape[:-2]
        return torch.from_numpy(values).reshape((*leading, *values.shape[1:]))

    def pooled(self, average: Average | None = "micro") -> Histograms:
        """Return the histograms of all classes together for a micro-average, else themselves."""
        if average != "micro":
            return self
        levels = [level.sum(0) for level in self.levels]
        return self._replace(levels=levels, exclusive=False)

    @property
    def blocks(self) -> list[Histograms]:
        """The histograms of some classes at a time.

        A block fits the cache, with all that is computed from it. Areas of many classes take a
        quarter of the time in blocks, and no memory beyond a block.
        """
        leaf = self.leaf
        size = max(CELLS_OF_BLOCK // leaf[:1].numel(), 1)
        if leaf.ndim != 3 or size >= len(leaf):
            return [self]
        split_levels = [level.split(size) for level in self.levels]
        blocks = zip(*split_levels, strict=True)
        return [self._replace(levels=list(levels), pairs=None) for levels in blocks]

    @property
    def tails(self) -> Tails:
        """Tails of both classes at decreasing thresholds, made of some classes at a time."""
        blocks = self.blocks
        first = self.reconstruction.tails(blocks[0].levels, self.edges)
        if len(blocks) == 1:
            return first
        if first.of_all is not None:
            return self.reconstruction.tails(self.levels, self.edges)
        tail = first.tail.new_empty(len(self.leaf), *first.tail.shape[1:])
        total = first.total.new_empty(len(self.leaf), *first.total.shape[1:])
        sizes = [len(block.leaf) for block in blocks]
        rows = zip(blocks, tail.split(sizes), total.split(sizes), strict=True)
        for block, block_tail, block_total in rows:
            tails = self.reconstruction.tails(block.levels, self.edges)
            block_tail[:] = tails.tail
            block_total[:] = tails.total
        return Tails(first.thresholds, tail, total)


Readable: TypeAlias = Release | Tensor | Histograms
"""A release, leaf counts ``(..., 2, leaves)``, or histograms: the first argument of functions."""

Edges: TypeAlias = Tensor | None
"""Ascending edges of leaf counts, even over [0, 1] if None. A release has its own edges."""


def read(
    source: Readable, edges: Edges = None, reconstruction: Reconstruction | None = None
) -> Histograms:
    """Return the histograms of a release, or of leaf counts ``(..., 2, leaves)``.

    Args:
        source: the release or the counts. Histograms are returned as they are.
        edges: the ascending edges of leaf counts, even over [0, 1] if not given. A release has its
            own edges.
        reconstruction: how counts and tails are read, :class:`Aligned` if not given.

    Example:
        >>> read(torch.tensor([[3, 1], [1, 3]])).tails.tail[1]
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if isinstance(source, Histograms):
        return source
    if reconstruction is None:
        reconstruction = Aligned()
    if isinstance(source, Release):
        if ReleaseFlag.PARTIAL in source.flags:
            warnings.warn(
                "This release is partial: it was broken off after its first query, and its curves "
                "are coarse.",
                UserWarning,
                stacklevel=2,
            )
        if source.last.query.pools_classes:
            raise ReleaseError(
                "Cannot read a curve for each class: this release was broken off after its first "
                "query, which counts all classes together. Start a new round."
            )
        return _read_release(source.overall, reconstruction)
    if not isinstance(source, Tensor):
        raise no_release(source)
    if edges is None:
        edges = torch.linspace(0, 1, source.shape[-1] + 1, dtype=torch.float64)
    return Histograms([source], edges, reconstruction)


def _read_release(release: Release, reconstruction: Reconstruction) -> Histograms:
    """Return the histograms of a release without groups."""
    spec = release.spec
    reconstruction.check_grid(spec.grid)
    levels = reconstruction.levels(release) if spec.privacy.charges else release.levels
    are_bins = levels[-1].shape[-1] == spec.grid.bins
    edges = spec.grid.edges if are_bins else release.last.edges
    if spec.task == "binary":
        return Histograms([level[0] for level in levels], edges, reconstruction)
    if spec.multi_class == "ovo":
        return Histograms(
            levels=_one_against_rest(levels),
            edges=edges,
            reconstruction=reconstruction,
            pairs=levels,
            exclusive=True,
        )
    is_exclusive = spec.task == "multiclass"
    return Histograms(levels, edges, reconstruction, exclusive=is_exclusive)


def _one_against_rest(levels: Sequence[Tensor]) -> list[Tensor]:
    """Return negatives and positives of each class, ``(K, 2, size)``, from one-vs-one levels.

    The positives of a column are the examples of its own class, on the diagonal of ``(K, K,
    size)``.
    """
    rows = []
    for level in levels:
        positives = level.diagonal(dim1=0, dim2=1).T
        negatives = level.sum(1) - positives
        rows.append(torch.stack([negatives, positives], 1))
    return rows


def are_probabilities(edges: Tensor) -> bool:
    """Return whether these are edges of scores from 0 to 1.

    The upper edge of a bin for scores of exactly 1 is just above 1.
    """
    return bool(edges[0] >= 0 and edges[-1] <= ABOVE_ONE)


def nearest_edge(edges: Tensor, threshold: float) -> int:
    """Return the place of the edge nearest to a threshold, the lower of two.

    A threshold above 0 that is nearest to 0 has the edge above the bin of exact zeros: it does not
    select them.
    """
    score = torch.tensor(threshold, dtype=edges.dtype)
    place = torch.searchsorted(edges, score, right=True)
    upper = int(place.clamp(1, len(edges) - 1))
    lower = upper - 1
    if edges[upper] - score < score - edges[lower]:
        return upper
    return lower
