"""Counts above any threshold, also between the edges of leaves, and what noise and sampling may add to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torchmetrics_fed.reconstruct.leaves import are_tied
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails, order_statistic
from torchmetrics_fed.reconstruct.uncertainty.noise_vectors import above
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats

# Which part of its count a leaf of smooth scores may be off half-way through; one where any order is possible: all.
_OFF = 0.1
# How many examples more the latter may hold than it seems to, in standard deviations of its noise.
_NOISE = 2.0
_SEED = 20_250_301


class UncertainCounts(NamedTuple):
    """Negatives and positives of one class at or above thresholds; the first column is the totals."""

    seen: Floats
    """Unbiased, ``(2, 1 + thresholds)``."""
    draws: Floats
    """What noise, and sampling if asked for, may have added, ``(2, vectors, 1 + thresholds)``."""
    slack: Floats
    """How far the order of scores within a leaf may move a count, ``(2, 1 + thresholds)``."""
    empty: bool
    """Whether a class is lost in the noise."""


def uncertain_counts(
    release: Release, population: bool, leaf: Floats, edges: Floats, thresholds: Floats, tied: bool = False
) -> Iterator[UncertainCounts]:
    """Yield those of each class, at thresholds of all classes or of each.

    How a leaf of the release is filled is what the counts say that were read from it: ``leaf`` and their ``edges``.
    Where scores may be ``tied`` any order within a leaf is possible, whether it looks like it or not.
    """
    own = release.last.edges.numpy()
    rows = np.broadcast_to(thresholds, (len(leaf), np.shape(thresholds)[-1]))
    for tails, read, row in zip(UncertainTails.of(release, population), leaf, rows, strict=True):
        at = np.r_[own[0], row]
        k = np.clip(np.searchsorted(own, at, "right") - 1, 0, len(own) - 2)
        here, low, high = (counts_above(read, edges, place) for place in (at, own[k], own[k + 1]))
        line = np.clip((own[k + 1] - at) / (own[k + 1] - own[k]), 0, 1)
        # the part of the leaf's examples that is above the threshold
        part = np.where(low > high, np.clip((here - high) / np.maximum(low - high, 1e-300), 0, 1), line)
        inside, held, step = part * (1 - part), -np.diff(tails.guess), tails.noise[..., k] - tails.noise[..., k + 1]
        # any order is possible among tied scores, and in the end leaves, where no leaf beyond tells how they go on
        free = are_tied(held) | tied | (not tails.spread.any())
        free[[0, -1]] = True
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
    """Return the counts at or above scores, ``(..., len(at))``, of ``leaf``, ``(..., leaves)``: a line in each leaf."""
    tails = above(leaf).reshape(-1, len(edges))
    return np.stack([np.interp(at, edges, tail) for tail in tails]).reshape(*leaf.shape[:-1], len(at))


def reach(deviations: Floats, confidence: float) -> Floats:
    """Return how far values may be off, all of them at once, of what vectors do to them, ``(vectors, values)``."""
    spread: Floats = deviations.std(0)
    furthest = np.abs(deviations / np.where(spread > 0, spread, np.inf)).max(-1)
    return order_statistic(furthest, confidence) * spread
