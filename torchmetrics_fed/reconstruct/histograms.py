"""Histograms: what a release says about each class, counts on leaves or bins with their edges."""

from __future__ import annotations

import warnings
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchmetrics_fed.counting.binning import ABOVE_ONE
from torchmetrics_fed.reconstruct.tails import Aligned, Reconstruction, Tails
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.typing import Average, Floats


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
    pairs: list[Tensor] | None = None
    """One-vs-one: the levels by column and true class, ``(K, K, size)``."""
    exclusive: bool = False
    """Whether every example has one of the classes. Recall of an absent one is NaN then, as in torchmetrics."""

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves, ``(..., 2, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]

    @property
    def flat(self) -> Floats:
        """Counts on the leaves, ``(classes, 2, leaves)``, none of them negative."""
        counts: Floats = (
            self.leaf.cpu().double().clamp(min=0.0).reshape(-1, 2, self.leaf.shape[-1]).numpy()
        )
        return counts

    def shaped(self, values: Floats) -> Tensor:
        """Return values of each class, ``(classes, ...)``, with the leading axes of the counts."""
        return torch.from_numpy(values).reshape((*self.leaf.shape[:-2], *values.shape[1:]))

    def pooled(self, average: Average | None = "micro") -> Histograms:
        """Return the histograms of all classes together for a micro-average, and themselves for any other."""
        if average != "micro":
            return self
        return self._replace(levels=[level.sum(0) for level in self.levels], exclusive=False)

    @property
    def tails(self) -> Tails:
        """Tails of both classes at decreasing thresholds."""
        return self.reconstruction.tails(self.levels, self.edges)


Readable: TypeAlias = Release | Tensor | Histograms
"""What functions take: a release, leaf counts ``(..., 2, leaves)``, or what was read of either."""
Edges: TypeAlias = Tensor | None
"""Ascending edges of leaf counts, even over [0, 1] if None. A release knows its own."""


def read(
    source: Readable, edges: Edges = None, reconstruction: Reconstruction | None = None
) -> Histograms:
    """Return the histograms of a release, or of leaf counts ``(..., 2, leaves)``.

    What was read already is returned as it is. The ``edges`` are those of leaf counts, even over [0, 1] if not given; a
    release knows its own. The ``reconstruction`` says how to read between them, at the edges if not given.

    Example:
        >>> read(torch.tensor([[3, 1], [1, 3]])).tails.tail[1]
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """
    if isinstance(source, Histograms):
        return source
    reconstruction = reconstruction or Aligned()
    if isinstance(source, Release):
        if ReleaseFlag.PARTIAL in source.flags:
            text = "This release is partial: it was broken off after its first query, and its curves are coarse."
            warnings.warn(text, UserWarning, stacklevel=2)
        source = source.overall
        spec = source.spec
        reconstruction.check_grid(spec.grid)
        levels = reconstruction.levels(source) if spec.privacy.charges else source.levels
        edges = spec.grid.edges if levels[-1].shape[-1] == spec.grid.bins else source.last.edges
        if spec.task == "binary":
            levels = [level[0] for level in levels]
        elif spec.multi_class == "ovo":
            positive = [level.diagonal(dim1=0, dim2=1).T for level in levels]
            rows = [
                torch.stack([each.sum(1) - own, own], 1)
                for each, own in zip(levels, positive, strict=True)
            ]
            return Histograms(rows, edges, reconstruction, levels, True)
        return Histograms(levels, edges, reconstruction, exclusive=spec.task == "multiclass")
    if not isinstance(source, Tensor):
        raise no_release(source)
    if edges is None:
        edges = torch.linspace(0, 1, source.shape[-1] + 1, dtype=torch.float64)
    return Histograms([source], edges, reconstruction)


def are_probabilities(edges: Tensor) -> bool:
    """Whether these are edges of scores from 0 to 1. The upper edge of a bin for exactly 1 is just above 1."""
    return bool(edges[0] >= 0 and edges[-1] <= ABOVE_ONE)


def nearest_edge(edges: Tensor, threshold: float) -> int:
    """Return the place of the edge nearest to a threshold, the lower of two.

    A threshold above 0 that is nearest to 0 has the edge above the bin of exact zeros: it does not select them.
    """
    at = torch.tensor(threshold, dtype=edges.dtype)
    upper = int(torch.searchsorted(edges, at, right=True).clamp(1, len(edges) - 1))
    lower = upper - 1
    return upper if edges[upper] - at < at - edges[lower] else lower
