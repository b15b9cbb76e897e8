r"""Counts above any threshold, and rates of groups there, under noise and sampling.

For a rate t = A / B the interval holds all t with :math:`(A - t B)^2 \le z^2 (v(t) + B t (1 - t))`,
where v is the variance that noise gives the left side, quadratic in t. Without noise it is
Wilson's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from torchmetrics_fed.reconstruct.leaves import EndTies, are_tied
from torchmetrics_fed.reconstruct.tails import Aligned
from torchmetrics_fed.reconstruct.uncertainty.bands import (
    UncertainTails,
    above,
    order_statistic,
    ratio_bounds,
)
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# Which part of its count a leaf of smooth scores may be off half-way through; one where any order
# is possible: all.
_OFF = 0.1
# How many examples more the latter may hold than it seems to, in standard deviations of its noise.
_NOISE = 2.0
# How well the part of a leaf of a group above a threshold inside it is known, at worst: a standard
# deviation.
_INSIDE = 0.1
_SEED = 20_250_301


class UncertainCounts(NamedTuple):
    """Negatives and positives of one class at or above thresholds; the first column is the
    totals."""

    seen: Floats
    """Unbiased, ``(2, 1 + thresholds)``."""
    draws: Floats
    """What noise, and sampling if asked for, may have added, ``(2, vectors, 1 + thresholds)``."""
    slack: Floats
    """How far the order of scores within a leaf may move a count, ``(2, 1 + thresholds)``."""
    empty: bool
    """Whether a class is lost in the noise."""


def uncertain_counts(
    release: Release,
    leaf: Floats,
    edges: Floats,
    thresholds: Floats,
    tied: bool = False,
    sampling: bool = False,
) -> Iterator[UncertainCounts]:
    """Yield those of each class, at thresholds of all classes or of each.

    How a leaf of the release is filled is what the counts say that were read from it: ``leaf`` and
    their ``edges``. Where scores may be ``tied`` any order within a leaf is possible, whether it
    looks like it or not. With ``sampling``, the draws have sampling errors, too.
    """
    own = release.last.edges.numpy()
    alone = EndTies.of(release.spec.grid, release.last.places)
    rows = np.broadcast_to(thresholds, (len(leaf), np.shape(thresholds)[-1]))
    for tails, read, row in zip(UncertainTails.of(release, sampling), leaf, rows, strict=True):
        at = np.r_[own[0], row]
        k = np.clip(np.searchsorted(own, at, "right") - 1, 0, len(own) - 2)
        here, low, high = (counts_above(read, edges, place) for place in (at, own[k], own[k + 1]))
        line = np.clip((own[k + 1] - at) / (own[k + 1] - own[k]), 0, 1)
        # the part of the leaf's examples that is above the threshold
        part = np.where(
            low > high, np.clip((here - high) / np.maximum(low - high, 1e-300), 0, 1), line
        )
        inside, held, step = (
            part * (1 - part),
            -np.diff(tails.guess),
            tails.noise[..., k] - tails.noise[..., k + 1],
        )
        # any order is possible among tied scores, and in the end leaves, where no leaf beyond tells
        # how they go on
        free = are_tied(held, alone) | tied | (not tails.spread.any())
        free[[0, -1]] = True
        if len(free) > 2:  # beyond an end bin alone, no leaf tells more than beyond the end
            free[1] |= alone.first
            free[-2] |= alone.last
        free, held = free[k], held[:, k]
        most = (held + _NOISE * step.std(1)) * np.maximum(part, 1 - part)
        slack = np.where(free, (line * (1 - line) > 0) * most, 4 * _OFF * inside * held)
        seen = tails.seen[:, k + 1] + part * (tails.seen[:, k] - tails.seen[:, k + 1])
        draws = tails.noise[..., k + 1] + part[:, None] * step
        # smooth scores fall to either side of the threshold at random
        scatter = np.sqrt(np.where(free, 0.0, held * inside))[:, None]
        draws = draws + scatter * np.random.default_rng(_SEED).standard_normal(draws.shape)
        yield UncertainCounts(seen, draws, slack, tails.empty)


def counts_above(leaf: Floats, edges: Floats, at: Floats) -> Floats:
    """Return the counts at or above scores, ``(..., len(at))``, of ``leaf``, ``(..., leaves)``:
    a line in each leaf."""
    tails = above(leaf).reshape(-1, len(edges))
    return np.stack([np.interp(at, edges, tail) for tail in tails]).reshape(
        *leaf.shape[:-1], len(at)
    )


def reach(deviations: Floats, confidence: float) -> Floats:
    """Return how far values may be off, all of them at once, of what vectors do to them,
    ``(vectors, values)``."""
    spread: Floats = deviations.std(0)
    furthest = np.abs(deviations / np.where(spread > 0, spread, np.inf)).max(-1)
    return order_statistic(furthest, confidence) * spread


class Rates(NamedTuple):
    """Rates of groups and classes, ``(groups, classes)``, or differences ``(classes,)``, with
    their intervals."""

    value: Floats
    low: Floats
    high: Floats

    def stretched(self, times: float) -> Rates:
        """Return intervals that reach ``times`` as far."""
        return Rates(
            self.value, *(self.value + times * (end - self.value) for end in (self.low, self.high))
        )

    def withheld(self, which: NDArray[np.bool_]) -> Rates:
        """Return the same with NaN in place of some."""
        return Rates(*(np.where(which, np.nan, each) for each in self))

    def difference(self, one: int, other: int) -> Rates:
        """Return one group's rates less another's: each end takes what is unknown of both (Zou
        and Donner 2008)."""
        (value, low, high), (less, least, most) = (
            [each[number] for each in self] for number in (one, other)
        )
        gap = value - less
        return Rates(
            gap,
            gap - np.hypot(value - low, most - less),
            gap + np.hypot(high - value, less - least),
        )


class Counted(NamedTuple):
    """Examples at or above a threshold, all examples, and what noise does to both; each
    ``(groups, classes, 2)``."""

    above: Floats
    size: Floats
    variance: Floats
    """Of ``above``."""
    covariance: Floats
    """Of ``above`` and ``size``."""
    spread: Floats
    """Variance of ``size``."""

    @classmethod
    def of(cls, parts: Sequence[Release], place: int) -> Counted:
        """Return those of each group's release at an edge of the grid."""
        return cls(
            *(
                np.array(each)
                for each in zip(*(_counted(part, place) for part in parts), strict=True)
            )
        )

    def rates(self, level: float) -> dict[str, Rates]:
        """Return the rates by name, each end of their intervals right with probability
        ``level``."""
        z, own = float(ndtri(level)), (self.variance, -2 * self.covariance, self.spread)
        false, true = (
            _ratio(self.above[..., row], self.size[..., row], [each[..., row] for each in own], z)
            for row in (0, 1)
        )
        positive = _ratio(self.above.sum(-1), self.size.sum(-1), [each.sum(-1) for each in own], z)
        found, selected = self.variance[..., 1], self.variance.sum(-1)
        precision = _ratio(self.above[..., 1], self.above.sum(-1), [found, -2 * found, selected], z)
        return {"tpr": true, "fpr": false, "positive_rate": positive, "precision": precision}

    def noise(self) -> Floats:
        """Return the standard deviations that noise gives true and false positive rates,
        ``(groups, classes, 2)``."""
        size = np.maximum(self.size, 1.0)
        t = np.clip(self.above / size, 0.0, 1.0)
        variance = self.variance - 2 * t * self.covariance + t**2 * self.spread
        deviation: Floats = np.sqrt(np.maximum(variance, 0.0)) / size
        return deviation


def _ratio(part: Floats, whole: Floats, noise: Sequence[Floats], z: float) -> Rates:
    """Return t = part / whole and its interval; ``noise`` are the coefficients of 1, t and t^2
    in v."""
    variance = [z**2 * each for each in (noise[0], noise[1] + whole, noise[2] - whole)]
    value = np.clip(np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan), 0.0, 1.0)
    return Rates(value, *ratio_bounds(part, whole, variance))


def _counted(part: Release, place: int) -> list[Floats]:
    """Return the fields of :class:`Counted` of one group, ``(classes, 2)`` each.

    Between the edges of leaves tails are interpolated as the group's model says, and their
    variances as if the noise of both edges were the same, which is no less.
    """
    fine, places = Aligned().levels(part)[-1].double().numpy(), part.last.places
    leaf = min(int(np.searchsorted(places, place, side="right")) - 1, len(places) - 2)
    first, after = places[leaf], places[leaf + 1]
    inside = np.full(fine.shape[:2], (after - place) / (after - first))
    if fine.shape[-1] == part.spec.grid.bins:
        bins = np.maximum(fine[..., first:after], 0)
        total = bins.sum(-1)
        inside = np.where(
            total > 0, bins[..., place - first :].sum(-1) / np.maximum(total, 1e-300), inside
        )
    result = []
    for tails, upper in zip(UncertainTails.of(part), inside, strict=True):
        seen = tails.seen
        variance = tails.spread[:, 0]
        covariance = tails.spread[:, 1]
        above, noise, shared = (
            upper * each[..., leaf] + (1 - upper) * each[..., leaf + 1]
            for each in (seen, variance, covariance)
        )
        if part.spec.privacy.charges:
            noise = (
                noise
                + (_INSIDE * 4 * upper * (1 - upper) * (seen[:, leaf] - seen[:, leaf + 1])) ** 2
            )
        result.append((above, seen[:, 0], noise, shared, variance[:, 0]))
    return [np.array(each) for each in zip(*result, strict=True)]
