"""The tails of both classes, :math:`F(s) = 1 - \\Phi^-(s)` and :math:`T(s) = 1 - \\Phi^+(s)`, from a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.errors import InputError, check_choice
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts
from torchmetrics_fed.release.release import Release

Method = Literal["aligned", "quantile"]
Interpolation = Literal["pchip", "linear"]

# The paper evaluates its curves at this many even scores.
_EVALUATION_SCORES = 10_000


class Tails(NamedTuple):
    """Fraction of each histogram's examples above each threshold.

    The first threshold is the highest score there can be, where every tail is 0; the last is the lowest, where every
    tail is 1 (0 throughout for an empty histogram).
    """

    thresholds: Tensor
    """Decreasing scores, ``(points,)``."""
    tail: Tensor
    """Tails, ``(..., points)``, float64."""
    total: Tensor
    """Examples of each histogram, ``(...)``, float64."""


@dataclass(frozen=True)
class Reconstruction:
    """How tails are rebuilt from the levels of a release.

    Args:
        method: ``"aligned"``: the tails at every edge, both classes at the same scores. ``"quantile"``: the paper's
            Algorithm 1, evenly spaced quantiles of each class from its tree, interpolated between.
        quantiles: the paper's Q; a quarter of the leaves if not given.
        interpolation: between quantiles, ``"pchip"`` (monotone cubic) or ``"linear"``.
        least_squares: under privacy, whether the levels are first made consistent with each other.
        non_negative: under privacy, whether negative cells are then projected away.

    Example:
        >>> from torchmetrics_fed import FederatedROC, Reconstruction
        >>> metric = FederatedROC(quantiles=64, grid="even", reconstruction=Reconstruction(method="quantile"))
        >>> metric.reconstruction.quantiles
        64
    """

    method: Method = "aligned"
    quantiles: int | None = None
    interpolation: Interpolation = "pchip"
    least_squares: bool = True
    non_negative: bool = True

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Method))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))

    @classmethod
    def sized(cls, given: Reconstruction | None, quantiles: int) -> Reconstruction:
        """Return the given reconstruction, or the default one, with ``quantiles`` unless it has its own."""
        if given is None:
            return cls(quantiles=quantiles)
        if not isinstance(given, cls):
            raise InputError(
                f"Expected argument `reconstruction` to be a Reconstruction but got {given!r}."
            )
        return replace(given, quantiles=given.quantiles or quantiles)

    def check_grid(self, grid: ScoreGrid) -> None:
        """Raise unless curves of this grid can be read so."""
        if self.method == "quantile" and grid.kind == "two_sided":
            raise InputError(
                'Expected even bins with method="quantile", which reads curves at even scores as the paper does, but '
                'got a two-sided grid. Pass `grid="even"`, or leave `method` out.'
            )

    def levels(self, release: Release) -> list[Tensor]:
        """Return the release's levels, ``(classes, 2, size)``, made consistent and non-negative if they are noisy."""
        if not release.spec.privacy.charges:
            return release.levels
        if release.last.query.tree.edges is not None and self.least_squares and self.non_negative:
            return [bin_counts(release)]
        levels = release.levels
        if self.least_squares:
            levels = least_squares(levels, release.last.query.level_weights)
        return non_negative(levels) if self.non_negative else levels

    def tails(self, levels: Sequence[Tensor], edges: Tensor) -> Tails:
        """Return the tails of each histogram from its levels, ``(..., size)``, with ascending ``edges`` of leaves."""
        if self.method == "aligned":
            return _aligned(levels[-1], edges)
        q = torch.linspace(
            0, 1, self.quantiles or max(levels[-1].shape[-1] // 4, 2), dtype=torch.float64
        )
        scores = self.scores(levels, edges, q)
        ends = edges[0].item(), edges[-1].item()
        return tails_from_quantiles(scores, levels[0].sum(-1), ends, self.interpolation)

    def scores(self, levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
        """Return the quantiles ``q`` of each histogram, ``(..., len(q))``, by descent of its tree.

        Where only leaves are known, their binary tree is built.
        """
        if len(levels) == 1:
            leaf = levels[0]
            missing = (1 << (leaf.shape[-1] - 1).bit_length()) - leaf.shape[-1]
            # custom edges: empty bins of no width fill the tree
            levels = Tree.binary(leaf.shape[-1] + missing).levels(
                torch.nn.functional.pad(leaf, (0, missing))
            )
            edges = torch.cat([edges, edges[-1:].expand(missing)])
        flat = [level.reshape(-1, level.shape[-1]) for level in levels]
        rows = [tree_quantiles(row, edges, q) for row in zip(*flat, strict=True)]
        return torch.stack(rows).view(*levels[0].shape[:-1], len(q))


def tree_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    r"""Return the score at or below which a fraction ``q`` lies, as the left edge of the bin where the descent ends.

    By the rules of the paper's own code, of one histogram: ``levels`` are its counts, top first, ``(size,)`` each.
    From the root, each level's counts are divided by that level's total; earlier siblings are added (negative ones
    count as nothing) until the next would pass q, then the descent goes on below that sibling. It stops early where
    :math:`|q - \text{cumulated}| < 1 / (2 \cdot \text{leaves})`.
    """
    leaves = levels[-1].shape[-1]
    q = q.double()
    node = torch.zeros(q.shape, dtype=torch.int64)
    cumulated = torch.zeros_like(q)
    left = torch.zeros_like(node)
    going = torch.ones(q.shape, dtype=torch.bool)
    above = 1
    for level in levels:
        size = level.shape[-1]
        total = level.sum().double()
        if (
            total <= 0
        ):  # nothing here to divide by: an empty class has all its quantiles at the lowest edge
            return edges[left]
        fraction = (level / total).clamp(min=0.0)
        node, siblings, above = node * (size // above), size // above, size
        passing = going
        for _ in range(siblings - 1):
            step = fraction[node]
            passing = passing & (cumulated + step < q)
            if not passing.any():
                break
            cumulated = torch.where(passing, cumulated + step, cumulated)
            node = node + passing.long()
        left = torch.where(going, node * (leaves // size), left)
        going = going & ((q - cumulated).abs() >= 1 / (2 * leaves))
    return edges[left]


def tails_from_quantiles(
    scores: Tensor,
    total: Tensor,
    score_range: tuple[float, float],
    interpolation: Interpolation = "pchip",
) -> Tails:
    """Return tails through evenly spaced quantiles ``scores``, ``(..., Q)``, at 10,000 even scores of the range."""
    low, high = score_range
    at = np.linspace(high, low, _EVALUATION_SCORES)
    rows = [_tail(row, at, interpolation) for row in scores.reshape(-1, scores.shape[-1]).numpy()]
    tail = torch.from_numpy(np.stack(rows)).view(*scores.shape[:-1], len(at))
    # The paper's tail counts scores above the threshold; one more point counts those at the lowest score, too.
    tail = torch.cat([tail, torch.ones_like(tail[..., :1])], -1)
    thresholds = torch.from_numpy(np.append(at, low))
    return Tails(thresholds, torch.where(total[..., None] > 0, tail, 0.0), total.double())


def _aligned(leaf: Tensor, edges: Tensor) -> Tails:
    above = torch.nn.functional.pad(leaf.flip(-1).cumsum(-1), (1, 0))
    total = above[..., -1:]  # the sum's own last value, so that the last tail is 1 to the bit
    # Noise that was not post-processed can make a tail fall or leave [0, 1]; a curve must not.
    tail = torch.where(total > 0, above.double() / total, 0.0).cummax(-1).values.clamp(0.0, 1.0)
    return Tails(edges.flip(0), tail, total[..., 0].double())


def _tail(
    scores: NDArray[np.float64], at: NDArray[np.float64], interpolation: Interpolation
) -> NDArray[np.float64]:
    """Tail through one histogram's quantiles: 1 below the first, 0 from the last on, and a jump where some are equal.

    Equal quantiles are a step of the distribution, so each run of distinct quantiles is interpolated by itself.
    """
    level = np.linspace(1, 0, len(scores))
    result = np.where(at < scores[0], 1.0, 0.0)
    starts = np.r_[0, np.flatnonzero(np.diff(scores) == 0) + 1, len(scores)]
    for start, end in pairwise(starts):
        inside = (at >= scores[start]) & (at < scores[end - 1])
        if not inside.any():
            continue
        x, y = scores[start:end], level[start:end]
        value = (
            PchipInterpolator(x, y)(at[inside])
            if interpolation == "pchip"
            else np.interp(at[inside], x, y)
        )
        result[inside] = np.clip(value, 0.0, 1.0)
    return result
