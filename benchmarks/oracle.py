r"""Oracle: flat leaves that are placed and read by the true densities, a floor for plans of leaves.

The oracle knows where the scores are. So it needs no pilot: one query spends all of epsilon, on
leaves of equal mean mass. It reads the noisy count y of a leaf, with noise of variance v, around
the count :math:`\lambda` that the density expects. A sample has a Poisson count n around that, so

.. math:: E(n \mid y) = \lambda + \frac{\lambda}{\lambda + v} (y - \lambda)

with the variance :math:`\lambda v / (\lambda + v)`. Between the edges of leaves the oracle knows no
more than the package, and interpolates as the package does.

A score file has counts, and no density. The counts themselves will not do: an oracle that expects
the very counts returns them, with any noise, as soon as leaves are many. So each release has a
density that the counts may be a sample of: :math:`\lambda` is drawn from a gamma distribution with
mean and variance n. Then the error of a leaf has the variance above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed import Query, Release
from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.exchange.placement import snapped
from torchmetrics_fed.reconstruct import Aligned, Tails
from torchmetrics_fed.reconstruct.consistency import LEAST_DIVISOR, posterior
from torchmetrics_fed.reconstruct.leaves import EndTies, on_bins, with_ties
from torchmetrics_fed.typing import Floats

__all__ = ["LEAVES", "Oracle"]

LEAVES = (8, 16, 32, 64, 128, 256, 512)
"""Numbers of leaves that the oracle is measured with. Its error is that of the best one."""


class Oracle:
    """A query, and a reconstruction of its releases, by the exact counts of binary scores.

    Args:
        exact: the exact release of the scores: counts on all bins.
        leaves: the number of leaves.
        generator: draws the densities.
    """

    def __init__(self, exact: Release, leaves: int, generator: np.random.Generator) -> None:
        self._counts: Floats = exact.leaf[0].double().numpy()
        self._grid = exact.spec.grid
        self._generator = generator
        self.query = self._placed(leaves)

    def _placed(self, leaves: int) -> Query:
        """Return the query for leaves of equal mean mass of both classes."""
        sizes = np.maximum(self._counts.sum(1, keepdims=True), LEAST_DIVISOR)
        mass = (self._counts / sizes).mean(0)
        below = np.r_[0.0, mass.cumsum()]
        even = np.linspace(0, below[-1], leaves + 1)
        places = snapped(np.interp(even, below, self._grid.coordinate), self._grid)
        return Query(Tree((leaves,), tuple(places.tolist())))

    def leaf_counts(self, release: Release) -> Floats:
        """Return the posterior mean of the counts on the leaves, ``(2, leaves)``."""
        last = release.last
        exact = np.add.reduceat(self._counts, last.places[:-1], axis=1)
        expected = np.maximum(self._generator.standard_gamma(exact), LEAST_DIVISOR)
        noisy = last.leaf[0].double().numpy()
        return posterior([noisy], last.variances, expected)

    def check_grid(self, grid: ScoreGrid) -> None:
        """Accept every grid."""

    def levels(self, release: Release) -> list[Tensor]:
        """Return the counts on all bins, ``(1, 2, bins)``, interpolated between the leaves."""
        leaf = np.maximum(self.leaf_counts(release), 0)
        places = release.last.places
        u = self._grid.coordinate
        counts = on_bins(leaf, places, u)
        ends = EndTies.of(self._grid, places)
        return [torch.from_numpy(with_ties(counts, leaf, places, u, ends=ends))[None]]

    def tails(self, levels: Sequence[Tensor], edges: Tensor) -> Tails:
        """Return the tails of both classes at the edges of the bins."""
        return Aligned().tails(levels, edges)
