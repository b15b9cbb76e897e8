r"""Simultaneous bounds for ratios of tails, and the steps that contain a curve.

With U the examples at or above an edge and N those of a class, :math:`\hat U - t \hat N` of a
release has mean 0 at the true t = U/N, and a variance that is quadratic in t. So the t with
:math:`|\hat U - t \hat N| \le c\,\sigma(t)` are an interval (Fieller's, with sampling error
Wilson's), and c, a quantile of the maximum over all edges and both ratios in simulated noise, makes
all of them hold at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from torchmetrics_fed.counting.tree import Tree
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative
from torchmetrics_fed.reconstruct.leaves import EndTies
from torchmetrics_fed.release.query import LevelWeights
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.typing import Floats, Singles

# How many vectors: as many as these cells make, within limits. A quantile of 1,000 is off by 0.7%
# of coverage.
_CELLS, _FEWEST, _MOST = 1 << 22, 1_000, 4_000
# This noise protects nobody, it only measures what noise does; the same seed makes the same band of
# the same release.
_SEED = 20_240_229
_STRAIGHT_PARTS = 64
"""Parts of a straight line, each of which a step holds."""


class Bounds(NamedTuple):
    """What a ratio is at least and at most at each edge of the leaves, edges ascending."""

    low: Floats
    high: Floats


class Steps(NamedTuple):
    """Bounds of a rising curve y(x). Each x stands twice, for the limits from the left and from
    the right."""

    x: Floats
    low: Floats
    high: Floats


class UncertainTails(NamedTuple):
    """Tails of one class's negatives and positives, and what may be added to them."""

    seen: Floats
    """By least squares, unbiased, ``(2, edges)``."""
    guess: Floats
    """Non-negative and monotone, ``(2, edges)``."""
    noise: Singles
    """Vectors of what noise, and sampling if asked for, add, ``(2, vectors, edges)``."""
    spread: Floats
    """Of each row, the variance of the noise alone at each edge, and its covariance with the
    total's, ``(2, 2, edges)``."""
    sampled: bool
    """Whether sampling is in it."""
    alone: EndTies
    """Which end leaves are end bins alone."""

    @classmethod
    def of(cls, release: Release, sampling: bool = False) -> list[UncertainTails]:
        """Return those of each class, of everybody."""
        release = release.overall
        release.last.query.tree.places(release.spec.grid.bins)  # raises for two models
        levels = least_squares(release.levels, release.last.weights)
        noise, spread = noise_tails(release.last)
        seen, guess = above(levels[-1].numpy()), non_negative(levels)[-1].numpy()
        vectors = [
            noise + sampling_tails(leaf, noise.shape[1]) if sampling else noise for leaf in guess
        ]
        alone = EndTies.of(release.spec.grid, release.last.places)
        return [
            cls(
                seen=seen[number],
                guess=above(leaf),
                noise=vectors[number],
                spread=spread,
                sampled=sampling,
                alone=alone,
            )
            for number, leaf in enumerate(guess)
        ]

    def ratios(self, pairs: tuple[tuple[int, int], ...], confidence: float) -> list[Bounds]:
        """Return bounds, all of which hold at once, of the tails of row i over the total of row
        j."""
        worst = np.max([self._furthest(*pair) for pair in pairs], 0)
        c = order_statistic(worst, confidence)
        return [self._bounds(*pair, c) for pair in pairs]

    @property
    def mass(self) -> Floats:
        """The part of both classes at or above each edge, their mean."""
        mean: Floats = (self.guess / np.maximum(self.guess[:, :1], 1.0)).mean(0)
        return mean

    @property
    def ties(self) -> EndTies:
        """Which end leaves are ties that hold anything."""
        held = (self.guess[:, :-1] != self.guess[:, 1:]).any(0)
        return EndTies(self.alone.first and bool(held[0]), self.alone.last and bool(held[-1]))

    @property
    def empty(self) -> bool:
        """Whether a class is lost in the noise: nothing is known of a ratio to its size."""
        return bool((self.seen[:, 0] <= 5 * np.sqrt(self.spread[:, 0, 0])).any())

    def _variance(self, row: int, of: int) -> Floats:
        """Coefficients of 1, t, t^2 in the variance of U - t N, ``(3, edges)``."""
        (variance, covariance), total = self.spread[row], max(self.guess[of, 0], 1.0)
        own = row == of
        of_total = np.full_like(variance, self.spread[of, 0, 0])
        result = np.stack([variance, -2 * covariance * own, of_total])
        if (
            self.sampled
        ):  # N t (1 - t) within a class, t N + t^2 N between classes; 1 for tails of hardly anybody
            result += np.array([[1.0], [total], [-total if own else total]])
        return result

    def _furthest(self, row: int, of: int) -> Floats:
        """The largest deviation over all edges in standard deviations, of each vector."""
        t = self.guess[row] / max(self.guess[of, 0], 1.0)
        variance = np.einsum("ke,ke->e", self._variance(row, of), np.stack([t**0, t, t**2]))
        # below this it is the float32 of an edge where the ratio is known to be 0 or 1
        sure = variance <= 1e-6 * max(self.spread[:, 0].max(), 1.0)
        scale = np.where(sure, 0.0, 1 / np.sqrt(np.where(sure, 1.0, variance))).astype(np.float32)
        off = (self.noise[row] - t.astype(np.float32) * self.noise[of, :, :1]) * scale
        furthest: Floats = np.abs(off).max(-1)
        return furthest

    def _bounds(self, row: int, of: int, c: float) -> Bounds:
        most = 1.0 if row == of else np.inf
        bounds = ratio_bounds(
            self.seen[row], self.seen[of, 0], c**2 * self._variance(row, of), most
        )
        bounds.low[-1] = bounds.high[-1] = 0.0
        if row == of:
            bounds.low[0] = bounds.high[0] = 1.0
        return bounds


def ratio_bounds(
    part: Floats, whole: Floats, variance: Iterable[Floats], most: float = 1.0
) -> Bounds:
    """Solve (part - t whole)^2 = variance(t) for t from 0 to ``most``; ``variance`` has its
    terms of 1, t and t^2."""
    one, t, t2 = variance
    square, half = whole**2 - t2, part * whole + t / 2
    # half^2 - square * (part^2 - one), without the terms that cancel
    root = np.sqrt(
        np.maximum(part * whole * t + t**2 / 4 + whole**2 * one + t2 * (part**2 - one), 0)
    )
    known = (square > 0) & (whole > 0)
    scale = np.where(known, square, 1.0)
    low, high = (
        np.where(known, (half - root) / scale, 0.0),
        np.where(known, (half + root) / scale, most),
    )
    return Bounds(np.clip(low, 0, most), np.clip(high, 0, most))


def order_statistic(values: Floats, level: float) -> float:
    """Return the value that the fraction ``level`` is at or below, rounded up: the vectors are a
    sample, too."""
    rank = min(math.ceil(level * (len(values) + 1)), len(values))
    return float(np.partition(values, rank - 1)[rank - 1])


def staircase(x: Bounds, y: Bounds, more: Floats | None = None) -> Steps:
    r"""Return the steps that hold every rising curve through points within ``x`` and ``y``, for x
    from 0 to 1.

    At least :math:`\max \{y^{lo}_k : x^{hi}_k \le x\}`, at most :math:`\min \{y^{hi}_k : x^{lo}_k
    \ge x\}`: whatever the curve does between the points.
    """
    at = np.sort(np.r_[x.low, x.high, [] if more is None else more])
    order, back = np.argsort(x.high, kind="stable"), np.argsort(x.low, kind="stable")
    lows = np.r_[0.0, np.maximum.accumulate(y.low[order])]
    highs = np.r_[np.minimum.accumulate(y.high[back][::-1])[::-1], y.high.max()]
    low = np.stack(
        [lows[np.searchsorted(x.high[order], at, side)] for side in ("left", "right")], 1
    )
    high = np.stack(
        [highs[np.searchsorted(x.low[back], at, side)] for side in ("left", "right")], 1
    )
    low[at <= 0, 0], high[at >= 1, 1] = 0.0, y.high.max()
    return Steps(np.repeat(at, 2), low.ravel(), np.maximum(high, low).ravel())


def straight(bounds: Bounds, ends: EndTies) -> Bounds:
    """Return bounds with those of points between the edges of tied end leaves, where a ROC curve
    is a straight line."""
    parts = np.arange(1, _STRAIGHT_PARTS) / _STRAIGHT_PARTS
    pairs = [(0, 1)] * ends.first + [(-2, -1)] * ends.last
    return Bounds(
        *(
            np.concatenate([end, *((1 - parts) * end[i] + parts * end[j] for i, j in pairs)])
            for end in bounds
        )
    )


class Vectors(NamedTuple):
    """Noise in the tails of negatives and positives, at ascending edges."""

    tails: Singles
    """``(2, vectors, edges)``, in float32: a large tree's vectors take 33 MB."""
    spread: Floats
    """Of each row, variance at each edge, and covariance with the noise of the total, ``(2, 2,
    edges)``."""


def above(leaf: Floats) -> Floats:
    """Return the counts at or above each edge of the leaves, ``(..., leaves + 1)``, edges
    ascending."""
    tail = np.zeros((*leaf.shape[:-1], leaf.shape[-1] + 1))
    tail[..., :-1] = leaf[..., ::-1].cumsum(-1)[..., ::-1]
    return tail


def noise_tails(total: Sum) -> Vectors:
    """Return what the noise adds to tails after least squares: the noise that is really there,
    of all shares."""
    tree = total.query.tree
    if not total.spec.privacy.charges:
        nothing = np.zeros((2, _count(tree.leaves), tree.leaves + 1), dtype=np.float32)
        return Vectors(nothing, np.zeros((2, 2, tree.leaves + 1)))
    variance = total.spec.noise(total.query).variance
    return _noise_tails(
        Tree(tree.branching),
        total.query.weights,
        total.spec.privacy.mechanism,
        variance,
        shares=total.noise_variance / variance,
    )


def sampling_tails(leaf: Floats, vectors: int) -> Singles:
    """Return how tails of samples differ from those of a population with ``leaf`` examples, ``(2,
    vectors, edges)``.

    Poisson counts: given its size, a sample is multinomial, and the sizes vary, too, as precision
    has to know.
    """
    generator = np.random.default_rng(_SEED + 1)
    drawn = generator.poisson(leaf[:, None], (2, vectors, leaf.shape[-1])) - leaf[:, None]
    return above(drawn).astype(np.float32)


def _count(cells: int) -> int:
    return int(np.clip(_CELLS // cells, _FEWEST, _MOST))


@lru_cache(maxsize=4)
def _noise_tails(
    tree: Tree, weights: tuple[LevelWeights, ...], mechanism: str, variance: float, shares: float
) -> Vectors:
    """Noise of ``variance`` in each cell, summed ``shares`` times; a part of a time is a part of
    the shares."""
    generator = np.random.default_rng(_SEED)
    vectors = _count(tree.cells)
    result = np.empty((2, vectors, tree.leaves + 1), dtype=np.float32)
    for number, row in enumerate(result):
        cells = summed_noise(generator, mechanism, variance, shares, (vectors, tree.cells))
        times = [level.rows[number] for level in weights]
        levels = [
            level / torch.from_numpy(counted)
            for level, counted in zip(tree.split(torch.from_numpy(cells)), times, strict=True)
        ]
        row[:] = above(least_squares(levels, times)[-1].numpy())
    result.setflags(write=False)
    if all(level.single is not None for level in weights):  # both rows have one law
        moments = _moments(result.reshape(-1, tree.leaves + 1))
        return Vectors(result, np.stack([moments, moments]))
    return Vectors(result, np.stack([_moments(row) for row in result]))


def _moments(tails: Singles) -> Floats:
    """Return the variance at each edge, and the covariance with the total, ``(2, edges)``."""
    others = tails, np.broadcast_to(tails[:, :1], tails.shape)
    moments = np.stack([np.einsum("ve,ve->e", tails, other) for other in others])
    return moments.astype(np.float64) / len(tails)


def summed_noise(
    generator: np.random.Generator,
    mechanism: str,
    variance: float,
    shares: float,
    shape: tuple[int, ...],
) -> Floats:
    """Return cells with the law that sums of shares have, to measure what noise does; it protects
    nobody.

    Each kind of noise but the discrete Gaussian is the difference of two alike, and divides: a sum
    of n shares calibrated for k has n / k times the parameter. ``variance`` is that of all shares
    that it is calibrated for, and ``shares`` how many were summed, in units of those.
    """
    if mechanism == "discrete_gaussian":
        return np.rint(
            generator.normal(0.0, np.sqrt(max(variance * shares - 1 / 12, 0.0)), shape)
        )  # 1/12 of rounding

    def half() -> Floats:
        if mechanism == "skellam":
            return generator.poisson(variance * shares / 2, shape).astype(np.float64)
        if mechanism == "gamma":
            return generator.gamma(shares, np.sqrt(variance / 2), shape)
        # two-sided geometric with ratio a: variance = 2a / (1 - a)^2 = 1 / (2 sinh^2(epsilon / 2)),
        # a = e^-epsilon
        ratio = np.exp(-2 * np.arcsinh(np.sqrt(0.5 / variance)))
        return generator.negative_binomial(shares, 1 - ratio, shape).astype(np.float64)

    return half() - half()
