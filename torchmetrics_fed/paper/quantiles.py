r"""The paper's curves: quantiles of each class from its tree, and interpolation between them.

1. Each class's binary tree is descended to Q evenly spaced quantiles, both ends included
   (Algorithm 1, :func:`tree_quantiles`).
2. Between distinct quantiles a tail is interpolated, monotone cubic or linear. Equal quantiles are
   a jump. Below the first quantile the tail is 1, from the last on it is 0.
3. Both tails are evaluated at 10,000 even scores.

Precision has the denominator :math:`T n^+ + F n^-`. The strategy "separate" takes it from the tails
of both classes, "combine" from the tail of all examples together.
"""

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
"""Origin of precision's denominator: both classes' tails, or the tail of all examples together."""

EVALUATION_SCORES = 10_000
"""Even scores of the range at which the paper evaluates its curves."""


class ClassQuantiles(NamedTuple):
    """Scores at the same fractions of each class, one tensor for negatives and one for positives.

    Example:
        >>> preds = torch.tensor([0.2, 0.4, 0.6, 0.8])
        >>> exact_quantiles(preds, torch.tensor([0, 0, 1, 1]), 2).positive
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """

    negative: Tensor
    positive: Tensor


@dataclass(frozen=True)
class Quantiles:
    """The paper's reading of a release: Q evenly spaced quantiles of each class, interpolated.

    Args:
        quantiles: the paper's Q.
        interpolation: between quantiles, ``"pchip"`` (monotone cubic) or ``"linear"``.
        strategy: for precision, ``"separate"`` takes the denominator from both classes' quantiles,
            ``"combine"`` from those of all examples.
        least_squares: whether noisy levels are first made consistent with each other.
        non_negative: whether negative cells of noisy levels are then projected away.

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
                "Expected even bins with `paper.Quantiles`, which reads curves at even scores, but "
                'got a two-sided grid. Pass `grid="even"`, or leave `reconstruction` out.'
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
    """Return the scores at or below which a fraction ``q`` of each class lies (Algorithm 1).

    Args:
        release: a release.
        q: fractions from 0 to 1.

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
    """Return each class's exact quantiles (the paper's EQ), from the scores themselves.

    Args:
        preds: the scores.
        target: the labels, 0 or 1.
        quantiles: the number of quantiles, evenly from 0 to 1 with both ends, or the fractions.

    Example:
        >>> preds = torch.tensor([0.0, 0.2, 0.4, 0.6, 1.0])
        >>> exact_quantiles(preds, torch.tensor([0, 0, 0, 1, 1]), 3).negative
        tensor([0.0000, 0.2000, 0.4000], dtype=torch.float64)
    """
    if preds.shape != target.shape:
        raise InputError(
            f"Expected one target for each score but got {tuple(target.shape)} for "
            f"{tuple(preds.shape)}."
        )
    if isinstance(quantiles, int):
        fractions = torch.linspace(0, 1, quantiles, dtype=torch.float64)
    else:
        fractions = quantiles.double()
    negative_scores = preds[target == 0].double().cpu().numpy()
    positive_scores = preds[target == 1].double().cpu().numpy()
    if len(negative_scores) == 0 or len(positive_scores) == 0:
        raise InputError(
            "Expected examples of both classes because a class without examples has no quantiles."
        )
    at = fractions.cpu().numpy()
    # numpy, because torch.quantile refuses more than 16 million values
    return ClassQuantiles(
        negative=torch.as_tensor(np.quantile(negative_scores, at)),
        positive=torch.as_tensor(np.quantile(positive_scores, at)),
    )


def level_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    """Return the quantiles ``q`` of each histogram, ``(..., len(q))``, by descent of its tree.

    Where only leaves are known, their binary tree is built.

    Args:
        levels: counts of each level, ``(..., size)``, top level first.
        edges: ascending edges of the leaves.
        q: fractions from 0 to 1.
    """
    if len(levels) == 1:
        leaf = levels[0]
        size = leaf.shape[-1]
        missing = (1 << (size - 1).bit_length()) - size
        # With custom edges, empty bins of no width fill the tree.
        filled = torch.nn.functional.pad(leaf, (0, missing))
        levels = Tree.binary(size + missing).levels(filled)
        edges = torch.cat([edges, edges[-1:].expand(missing)])
    flat = [level.reshape(-1, level.shape[-1]) for level in levels]
    rows = [tree_quantiles(row, edges, q) for row in zip(*flat, strict=True)]
    return torch.stack(rows).view(*levels[0].shape[:-1], len(q))


def tree_quantiles(levels: Sequence[Tensor], edges: Tensor, q: Tensor) -> Tensor:
    r"""Return the score at or below which a fraction ``q`` of one histogram lies.

    Algorithm 1, by the rules of the paper's own code. From the root, the counts of each level are
    divided by the total of that level. Earlier siblings are added (negative ones count as 0) until
    the next would pass q, and the descent goes on below that sibling. It stops early where
    :math:`|q - \text{cumulated}| < 1 / (2 \cdot \text{leaves})`. The score is the left edge of the
    bin where the descent ends.

    Args:
        levels: counts of each level, ``(size,)``, top level first.
        edges: ascending edges of the leaves.
        q: fractions from 0 to 1.
    """
    leaves = levels[-1].shape[-1]
    q = q.double()
    node = torch.zeros(q.shape, dtype=torch.int64)
    cumulated = torch.zeros_like(q)
    left_edge = torch.zeros_like(node)
    descends = torch.ones(q.shape, dtype=torch.bool)
    size_above = 1
    for level in levels:
        size = level.shape[-1]
        total = level.sum().double()
        if total <= 0:  # an empty class has all its quantiles at the lowest edge
            return edges[left_edge]
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
        left_edge = torch.where(descends, node * (leaves // size), left_edge)
        descends = descends & ((q - cumulated).abs() >= 1 / (2 * leaves))
    return edges[left_edge]


def tails_from_quantiles(
    scores: Tensor,
    total: Tensor,
    score_range: tuple[float, float],
    interpolation: Interpolation = "pchip",
) -> Tails:
    """Return tails through evenly spaced quantiles, at 10,000 even scores of the range.

    Args:
        scores: the quantiles of each histogram, ``(..., Q)``.
        total: the examples of each histogram, ``(...)``.
        score_range: the lowest and the highest score.
        interpolation: between quantiles, ``"pchip"`` or ``"linear"``.

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
    # The paper's tail counts scores above a threshold. One more point counts the lowest score, too.
    tail = torch.cat([tail, torch.ones_like(tail[..., :1])], -1)
    return Tails(
        thresholds=torch.from_numpy(np.append(at, low)),
        tail=torch.where(total[..., None] > 0, tail, 0.0),
        total=total.double(),
    )


def _interpolated_tail(
    scores: NDArray[np.float64], at: NDArray[np.float64], interpolation: Interpolation
) -> NDArray[np.float64]:
    """Return the tail through one histogram's quantiles, at the scores ``at``.

    It is 1 below the first quantile and 0 from the last on. Equal quantiles are a step of the
    distribution, so each run of distinct quantiles is interpolated by itself.
    """
    level = np.linspace(1, 0, len(scores))
    result = np.where(at < scores[0], 1.0, 0.0)
    starts = np.r_[0, np.flatnonzero(np.diff(scores) == 0) + 1, len(scores)]
    for start, end in pairwise(starts):
        inside = (at >= scores[start]) & (at < scores[end - 1])
        if not inside.any():
            continue
        run = slice(start, end)
        value = _between(scores[run], level[run], at[inside], interpolation)
        result[inside] = np.clip(value, 0.0, 1.0)
    return result


def _between(
    scores: NDArray[np.float64],
    level: NDArray[np.float64],
    at: NDArray[np.float64],
    interpolation: Interpolation,
) -> NDArray[np.float64]:
    """Return the tail between distinct quantiles ``scores``, where it has the values ``level``."""
    if interpolation == "pchip":
        return np.asarray(PchipInterpolator(scores, level)(at))
    return np.interp(at, scores, level)
