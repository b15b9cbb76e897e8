"""The paper's curves: quantiles of each class from its tree (Algorithm 1), and interpolation between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.errors import InputError, check_choice, check_int
from torchmetrics_fed.reconstruct import Tails, read
from torchmetrics_fed.reconstruct.tails import consistent_levels
from torchmetrics_fed.release import Release

Interpolation = Literal["pchip", "linear"]
"""Between two quantiles: a monotone cubic, or a line."""

Strategy = Literal["separate", "combine"]
"""Where precision's denominator comes from: both classes' tails, or the tail of all examples together."""

EVALUATION_SCORES = 10_000
"""Even scores of the range at which the paper evaluates its curves."""


class ClassQuantiles(NamedTuple):
    """Scores at the same fractions of each class.

    Example:
        >>> exact_quantiles(torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.tensor([0, 0, 1, 1]), 2).positive
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """

    negative: Tensor
    positive: Tensor


@dataclass(frozen=True)
class Quantiles:
    """The paper's reading of a release: Q evenly spaced quantiles of each class, interpolated between.

    Args:
        quantiles: the paper's Q.
        interpolation: between quantiles, ``"pchip"`` (monotone cubic) or ``"linear"``.
        strategy: for precision, ``"separate"`` takes the denominator from both classes' quantiles, ``"combine"`` from
            those of all examples.
        least_squares: under privacy, whether the levels are first made consistent with each other.
        non_negative: under privacy, whether negative cells are then projected away.

    Example:
        >>> from torchmetrics_fed import FederatedROC, paper
        >>> metric = FederatedROC(quantiles=64, grid="even", reconstruction=paper.Quantiles(64))
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> len(metric.compute().thresholds)
        10001
    """

    quantiles: int
    interpolation: Interpolation = "pchip"
    strategy: Strategy = "separate"
    least_squares: bool = True
    non_negative: bool = True

    def __post_init__(self) -> None:
        check_int("quantiles", self.quantiles, 2)
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        check_choice("strategy", self.strategy, get_args(Strategy))

    def check_grid(self, grid: ScoreGrid) -> None:
        """Raise unless the bins are even: the paper reads curves at even scores."""
        if grid.kind == "two_sided":
            raise InputError(
                "Expected even bins with `paper.Quantiles`, which reads curves at even scores, but got a two-sided "
                'grid. Pass `grid="even"`, or leave `reconstruction` out.'
            )

    def levels(self, release: Release) -> list[Tensor]:
        """Return the release's levels, made consistent and non-negative if they are noisy."""
        return consistent_levels(
            release, makes_consistent=self.least_squares, projects=self.non_negative
        )

    def tails(self, levels: Sequence[Tensor], edges: Tensor) -> Tails:
        """Return the tails through evenly spaced quantiles of each histogram."""
        fractions = torch.linspace(0, 1, self.quantiles, dtype=torch.float64)
        rows = list(levels)
        if self.strategy == "combine":
            rows = [torch.cat([level, level.sum(-2, keepdim=True)], -2) for level in levels]
        tails = tails_from_quantiles(
            level_quantiles(rows, edges, fractions),
            rows[0].sum(-1),
            score_range=(edges[0].item(), edges[-1].item()),
            interpolation=self.interpolation,
        )
        if self.strategy == "separate":
            return tails
        return Tails(
            thresholds=tails.thresholds,
            tail=tails.tail[..., :-1, :],
            total=tails.total[..., :-1],
            of_all=tails.tail[..., -1, :],
        )


def quantiles(release: Release, q: float | Sequence[float] | Tensor) -> ClassQuantiles:
    """Return the scores at or below which a fraction ``q`` of each class lies, from the tree (Algorithm 1).

    Example:
        >>> from torchmetrics_fed import FederatedROC, paper
        >>> metric = FederatedROC(quantiles=64, grid="even")
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> paper.quantiles(metric.release(), 0.5).negative
        tensor(0.0977, dtype=torch.float64)
    """
    fractions = torch.as_tensor(q, dtype=torch.float64, device="cpu")
    if not bool(((fractions >= 0) & (fractions <= 1)).all()):
        raise InputError(f"Expected argument `q` to be fractions from 0 to 1 but got {q}.")
    histograms = read(release)
    scores = level_quantiles(histograms.levels, histograms.edges, fractions.reshape(-1))
    negative, positive = scores.unbind(-2)
    return ClassQuantiles(
        negative=negative.reshape((*negative.shape[:-1], *fractions.shape)),
        positive=positive.reshape((*positive.shape[:-1], *fractions.shape)),
    )


def exact_quantiles(
    preds: Tensor, target: Tensor, quantiles: int | Tensor = 1024
) -> ClassQuantiles:
    """Return each class's exact quantiles (the paper's EQ), for comparison: this needs the scores themselves.

    ``quantiles`` is how many, evenly from 0 to 1 with both ends, or the fractions themselves.

    Example:
        >>> exact_quantiles(torch.tensor([0.0, 0.2, 0.4, 0.6, 1.0]), torch.tensor([0, 0, 0, 1, 1]), 3).negative
        tensor([0.0000, 0.2000, 0.4000], dtype=torch.float64)
    """
    if preds.shape != target.shape:
        raise InputError(
            f"Expected one target for each score but got {tuple(target.shape)} for {tuple(preds.shape)}."
        )
    if isinstance(quantiles, int):
        fractions = torch.linspace(0, 1, quantiles, dtype=torch.float64)
    else:
        fractions = quantiles.double()
    classes = [preds[target == label].double().cpu().numpy() for label in (0, 1)]
    if any(len(scores) == 0 for scores in classes):
        raise InputError(
            "Expected examples of both classes because a class without examples has no quantiles."
        )
    # torch.quantile refuses more than 16 million values
    negative, positive = (np.quantile(scores, fractions.cpu().numpy()) for scores in classes)
    return ClassQuantiles(torch.as_tensor(negative), torch.as_tensor(positive))


def level_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    """Return the quantiles ``q`` of each histogram, ``(..., len(q))``, by descent of its tree.

    Where only leaves are known, their binary tree is built.
    """
    if len(levels) == 1:
        leaf = levels[0]
        size = leaf.shape[-1]
        missing = (1 << (size - 1).bit_length()) - size
        # custom edges: empty bins of no width fill the tree
        filled = torch.nn.functional.pad(leaf, (0, missing))
        levels = Tree.binary(size + missing).levels(filled)
        edges = torch.cat([edges, edges[-1:].expand(missing)])
    flat = [level.reshape(-1, level.shape[-1]) for level in levels]
    rows = [tree_quantiles(row, edges, q) for row in zip(*flat, strict=True)]
    return torch.stack(rows).view(*levels[0].shape[:-1], len(q))


def tree_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    r"""Return the score at or below which a fraction ``q`` lies, as the left edge of the bin where the descent ends.

    Algorithm 1 by the rules of the paper's own code, of one histogram: ``levels`` are its counts, top first,
    ``(size,)`` each. From the root, each level's counts are divided by that level's total; earlier siblings are added
    (negative ones count as nothing) until the next would pass q, then the descent goes on below that sibling. It stops
    early where :math:`|q - \text{cumulated}| < 1 / (2 \cdot \text{leaves})`.
    """
    leaves = levels[-1].shape[-1]
    q = q.double()
    node = torch.zeros(q.shape, dtype=torch.int64)
    cumulated = torch.zeros_like(q)
    left = torch.zeros_like(node)
    descends = torch.ones(q.shape, dtype=torch.bool)
    size_above = 1
    for level in levels:
        size = level.shape[-1]
        total = level.sum().double()
        if total <= 0:  # an empty class has all its quantiles at the lowest edge
            return edges[left]
        fraction = (level / total).clamp(min=0.0)
        siblings = size // size_above
        size_above = size
        node = node * siblings
        passes = descends
        for _ in range(siblings - 1):
            step = fraction[node]
            passes = passes & (cumulated + step < q)
            if not passes.any():
                break
            cumulated = torch.where(passes, cumulated + step, cumulated)
            node = node + passes.long()
        left = torch.where(descends, node * (leaves // size), left)
        descends = descends & ((q - cumulated).abs() >= 1 / (2 * leaves))
    return edges[left]


def tails_from_quantiles(
    scores: Tensor,
    total: Tensor,
    score_range: tuple[float, float],
    interpolation: Interpolation = "pchip",
) -> Tails:
    """Return tails through evenly spaced quantiles ``scores``, ``(..., Q)``, at 10,000 even scores of the range.

    Example:
        >>> even = torch.linspace(0, 1, 9).double()
        >>> tails = tails_from_quantiles(even[None], torch.ones(1), (0.0, 1.0))
        >>> round(tails.tail[0, 5_000].item(), 2)
        0.5
    """
    low, high = score_range
    at = np.linspace(high, low, EVALUATION_SCORES)
    histograms = scores.reshape(-1, scores.shape[-1]).numpy()
    rows = [_interpolated_tail(row, at, interpolation) for row in histograms]
    tail = torch.from_numpy(np.stack(rows)).view(*scores.shape[:-1], len(at))
    # The paper's tail counts scores above the threshold; one more point counts those at the lowest score, too.
    tail = torch.cat([tail, torch.ones_like(tail[..., :1])], -1)
    return Tails(
        thresholds=torch.from_numpy(np.append(at, low)),
        tail=torch.where(total[..., None] > 0, tail, 0.0),
        total=total.double(),
    )


def _interpolated_tail(
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
        x = scores[start:end]
        y = level[start:end]
        if interpolation == "pchip":
            value = PchipInterpolator(x, y)(at[inside])
        else:
            value = np.interp(at[inside], x, y)
        result[inside] = np.clip(value, 0.0, 1.0)
    return result
