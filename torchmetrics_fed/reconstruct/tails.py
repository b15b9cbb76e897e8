r"""Tails of both classes, from a release: the rates that every curve is made of.

With :math:`\Phi^\pm` the distribution functions of the scores of positives and negatives,

.. math:: F(s) = 1 - \Phi^-(s), \qquad T(s) = 1 - \Phi^+(s)

are the false and the true positive rate. Tails rise from 0 at the highest threshold to 1 at the
lowest one, whatever the noise. A :class:`Reconstruction` says how they are read: :class:`Aligned`
at the edges of the bins, the same for both classes, :class:`torchmetrics_fed.paper.Quantiles` as
the paper does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts
from torchmetrics_fed.release.release import Release


class Tails(NamedTuple):
    """Fraction of each histogram's examples above each threshold.

    The first threshold is the highest score there can be, where every tail is 0. The last threshold
    is the lowest score, where every tail is 1 (an empty histogram has a tail of 0 throughout).
    """

    thresholds: Tensor
    """Decreasing scores, ``(points,)``."""
    tail: Tensor
    """Tails, ``(..., rows, points)``, float64."""
    total: Tensor
    """Examples of each histogram, ``(..., rows)``, float64."""
    of_all: Tensor | None = None
    """Tails of all rows together, ``(..., points)``, if they were read by themselves.

    None if they are the sum of the rows.
    """


@runtime_checkable
class Reconstruction(Protocol):
    """How curves are read from a release.

    An object with these three methods can be passed to every metric.

    Example:
        >>> from torchmetrics_fed import FederatedROC, Reconstruction, paper
        >>> metric = FederatedROC(grid="even", reconstruction=paper.Quantiles(1024))
        >>> isinstance(metric.reconstruction, Reconstruction)
        True
    """

    def check_grid(self, grid: ScoreGrid) -> None:
        """Raise unless curves can be read from counts on this grid."""

    def levels(self, release: Release) -> list[Tensor]:
        """Return the counts of each level, ``(classes, rows, size)``, top level first."""

    def tails(self, levels: Sequence[Tensor], edges: Tensor) -> Tails:
        """Return the tails of each histogram.

        Thresholds depend on the edges alone, so that classes can be read some at a time.

        Args:
            levels: counts of each level, ``(..., size)``, top level first.
            edges: ascending edges of the leaves.
        """


@dataclass(frozen=True)
class Aligned:
    """Tails at every edge of the leaves, both classes at the same scores.

    Args:
        least_squares: whether noisy levels are first made consistent with each other.
        non_negative: whether negative cells of noisy levels are then projected away.

    Example:
        >>> import torch
        >>> from torchmetrics_fed.reconstruct import Aligned
        >>> Aligned().tails([torch.tensor([[3, 1], [1, 3]])], torch.tensor([0.0, 0.5, 1.0])).tail[1]
        tensor([0.0000, 0.7500, 1.0000], dtype=torch.float64)
    """

    least_squares: bool = True
    non_negative: bool = True

    def check_grid(self, grid: ScoreGrid) -> None:
        """Accept every grid."""

    def levels(self, release: Release) -> list[Tensor]:
        """Return the release's levels, made consistent and non-negative if they are noisy."""
        return consistent_levels(
            release, makes_consistent=self.least_squares, projects=self.non_negative
        )

    def tails(self, levels: Sequence[Tensor], edges: Tensor) -> Tails:
        """Return the tails of each histogram at the edges of its leaves."""
        leaf = levels[-1]
        above = torch.nn.functional.pad(leaf.flip(-1).cumsum(-1), (1, 0))
        # the last cumulated value, so that the last tail is 1 to the bit
        total = above[..., -1:].double().clone()
        # in place, because curves of many classes are as large as their counts
        tail = above.double()
        tail /= total
        tail.masked_fill_(total <= 0, 0.0)
        if bool((leaf < 0).any()):
            # noise that was not projected away can make a tail fall or leave [0, 1]
            tail = tail.cummax(-1).values.clamp(0.0, 1.0)
        return Tails(thresholds=edges.flip(0), tail=tail, total=total[..., 0])


def consistent_levels(release: Release, *, makes_consistent: bool, projects: bool) -> list[Tensor]:
    """Return the levels of a release, ``(classes, rows, size)``.

    Args:
        release: a release without groups. Exact levels are returned as they are.
        makes_consistent: whether noisy levels are made consistent with each other.
        projects: whether noisy levels are made non-negative.
    """
    levels = release.levels
    if not release.spec.privacy.charges:
        return levels
    has_placed_leaves = release.last.query.tree.edges is not None
    if has_placed_leaves and makes_consistent and projects:
        return [bin_counts(release)]
    if makes_consistent:
        levels = least_squares(levels, release.last.weights)
    if projects:
        levels = non_negative(levels)
    return levels
