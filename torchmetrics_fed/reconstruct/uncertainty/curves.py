"""Bands of the ROC and the PR curve of a population, from plausible counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d
from scipy.special import expit

from torchmetrics_fed.reconstruct.consistency import LEAST_DIVISOR
from torchmetrics_fed.reconstruct.uncertainty.plausible import (
    MOST_CELLS,
    OUTERMOST_LOGIT,
    Plausible,
)
from torchmetrics_fed.reconstruct.uncertainty.spread import (
    FIRST_DRAW,
    NEVER_SEEN,
    BandEnds,
    band_ends,
)
from torchmetrics_fed.typing import Floats

RATES: Floats = np.unique(
    np.concatenate(
        [
            [0.0],
            expit(np.linspace(-OUTERMOST_LOGIT, OUTERMOST_LOGIT, 65)),
            np.linspace(0.0, 1.0, 65),
        ]
    )
)
"""False positive rates, or recalls, of the points of a band: even ones, and more at both ends."""

JUMP_STEP = 0.5
"""Distance of the points of a PR band around a jump, in standard deviations of its recall."""

SAME_RECALL = 2e-3
"""Recalls this close together are the end of one tie and the beginning of the next."""

NOISE_DEVIATIONS = 3.0
"""Counts stand out from their noise if they exceed this many of its standard deviations."""

GRAINED_POINTS = 5
"""Points of a band over which the largest effect of grained scores is taken: steps may lie anywhere
between two of them."""

LEAST_JUMP_FACTOR = 3.0
"""Standard deviations of its recall by which a jump may be off, at least."""

JUMP_DEVIATIONS: Floats = np.arange(-5.0, 5.0 + JUMP_STEP, JUMP_STEP)
"""Where a PR band has points around a jump, in standard deviations of its recall."""

FINE_RUNS = 16
"""Runs from which on the scores of the highest one may all be ties.

With fewer runs it holds so much that the smooth model would show it.
"""
LEAST_SIZE = 1.0
"""Examples of a class at least, where a rate is divided by their number."""


def tpr_at(counts: Floats, rates: Floats) -> Floats:
    """Return the true positive rate of each set of counts at false positive rates.

    Args:
        counts: negatives and positives on cells, ``(sets, 2, cells)``, ascending.
        rates: false positive rates, ``(points,)``, ascending.

    Returns:
        ``(sets, points)``.
    """
    tails = _tails(counts)
    fractions = tails / np.maximum(tails[..., -1:], LEAST_DIVISOR)
    return np.stack([np.interp(rates, fpr, tpr) for fpr, tpr in fractions])


def precision_at(counts: Floats, points: NDArray[np.bool_], rates: Floats) -> Floats:
    """Return the precision of each set of counts at recalls.

    The scores of a cell that is one bin are ties. A PR curve, read as the step whose area is the
    average precision, has there the precision of all of them. Within other cells false positives
    run evenly with the true ones.

    Args:
        counts: negatives and positives on cells, ``(sets, 2, cells)``, ascending.
        points: which cells are one bin, ``(cells,)``.
        rates: recalls, ``(points,)``, ascending.

    Returns:
        ``(sets, points)``.
    """
    is_point = points[::-1]
    rows = []
    for fp, tp in _tails(counts):
        positives = max(tp[-1], LEAST_DIVISOR)
        true = rates * positives
        cell = np.clip(np.searchsorted(tp[1:], true), 0, len(is_point) - 1)
        false = np.interp(true, tp, fp)
        tied = is_point[cell]
        true = np.where(tied, tp[cell + 1], true)
        false = np.where(tied, fp[cell + 1], false)
        rows.append(true / np.maximum(true + false, LEAST_DIVISOR))
    return np.stack(rows)


class Points(NamedTuple):
    """A band at its points, in ascending order."""

    x: Floats
    """False positive rates, or recalls."""
    low: Floats
    high: Floats


def roc_points(plausible: Plausible, number: int, confidence: float) -> Points:
    """Return the band of the ROC curve of one class."""
    sets = plausible.sets[:, number]
    values = tpr_at(sets, RATES)
    negatives, positives = np.maximum(plausible.sizes[number], LEAST_SIZE)
    slope = np.gradient(values[0], RATES)
    low, high, _ = band_ends(values, confidence, size=positives, floor=slope / negatives)
    if not plausible.smooth[number]:
        first, last = _end_runs(plausible, number, row=0)
        high = np.where(first > RATES, np.maximum(high, np.interp(first, RATES, high)), high)
        high = np.where(last < RATES, 1.0, high)
    # fewer false positives than these are not seen at all
    unseen = NEVER_SEEN / negatives
    low = np.minimum(low, np.interp(RATES - unseen, RATES, low, left=0.0))
    high = np.maximum(high, np.interp(RATES + unseen, RATES, high, right=1.0))
    low = np.maximum.accumulate(low)
    high = np.minimum.accumulate(high[::-1])[::-1]
    low[0] = 0.0
    high[-1] = 1.0
    return Points(RATES, low, high)


def precision_points(plausible: Plausible, number: int, confidence: float) -> Points:
    """Return the band of the PR curve of one class."""
    sets = plausible.sets[:, number]
    _, positives = np.maximum(plausible.sizes[number], LEAST_SIZE)
    jumps = _jumps(plausible, number)
    recalls = jumps.recalls_around()
    values = precision_at(sets, plausible.tied[number], recalls)
    # where scores of a leaf crowd in few places, the curve has steps
    has_steps = plausible.tied[number] | plausible.strained[number]
    grained = precision_at(sets[1:2], has_steps, recalls)[0]
    step = maximum_filter1d(np.abs(grained - values[0]), GRAINED_POINTS)
    values[1] = np.minimum(values[0] + step, 1.0)
    is_in_doubt = (sets[2] != sets[0]).any(0)
    values[2] = precision_at(sets[2:3], plausible.tied[number] & ~is_in_doubt, recalls)[0]
    at = np.concatenate([_reached(sets[0, 1], plausible.tied[number], recalls), jumps.recalls])
    values = np.concatenate([values, jumps.precisions], 1)
    selected = at * positives / np.maximum(values[0], 1 / positives)
    is_edge = np.ones(len(jumps.recalls), dtype=np.bool_)
    if is_edge.any():
        # jumps may be off in their recalls and in their precisions: half of the error for each
        confidence = (1 + confidence) / 2
    ends = band_ends(
        values,
        confidence,
        size=np.maximum(selected, LEAST_SIZE),
        floor=np.zeros_like(selected),
        is_steady=np.concatenate([~jumps.are_near(recalls, JUMP_DEVIATIONS[-1]), is_edge]),
    )
    low = ends.low[: len(recalls)]
    high = ends.high[: len(recalls)]
    has_doubtful_ties = bool((is_in_doubt & plausible.tied[number]).any())
    low, high = jumps.boxed(recalls, low, high, ends, replaces=not has_doubtful_ties)
    first, last = _end_runs(plausible, number, row=1)
    # the last positive may be the lowest score of all
    share = sets[:, 1].sum(-1) / np.maximum(sets.sum((-1, -2)), LEAST_DIVISOR)
    low = np.where(recalls > last, np.minimum(low, share.min()), low)
    high[-1] = max(high[-1], high[-2])
    if not plausible.smooth[number]:
        high = np.where(recalls < first, 1.0, high)
        high = np.where(recalls > last, np.maximum(high, np.interp(last, recalls, high)), high)
    is_tied = plausible.tied[number][plausible.first_cells[-1] :].all()
    if len(plausible.first_cells) >= FINE_RUNS and not is_tied:
        run_end = float(sets[0, 1, plausible.first_cells[-1] :].sum() / max(positives, LEAST_SIZE))
        low_there = np.interp(run_end, recalls, low)
        low = np.where(recalls < run_end, np.minimum(low, low_there), low)
    low[0] = 0.0
    high[0] = 1.0
    return Points(recalls, low, high)


def _reached(positives: Floats, tied: NDArray[np.bool_], recalls: Floats) -> Floats:
    """Return the recall at which a PR curve is read: of tied scores, that of all of them.

    Args:
        positives: the positives on cells, ``(cells,)``, ascending.
        tied: which cells have tied scores, ``(cells,)``.
        recalls: recalls, ``(points,)``.
    """
    below = positives[::-1].cumsum() / max(float(positives.sum()), LEAST_DIVISOR)
    cell = np.clip(np.searchsorted(below, recalls), 0, len(below) - 1)
    return np.where(tied[::-1][cell], np.maximum(below[cell], recalls), recalls)


class _Jumps(NamedTuple):
    """Where a PR curve jumps: at the edges of cells with tied scores."""

    recalls: Floats
    """Of each edge, descending scores, ``(edges,)``."""
    deviations: Floats
    """Standard deviations of the recalls, ``(edges,)``."""
    precisions: Floats
    """Precision at each edge, of all sets of counts, ``(sets, edges)``."""
    begins: NDArray[np.bool_]
    """Whether a cell with tied scores goes from this edge to the next one, ``(edges,)``."""

    def recalls_around(self) -> Floats:
        """Return the recalls of the points of a PR band: more of them around jumps."""
        around = self.recalls + JUMP_DEVIATIONS[:, None] * self.deviations
        return np.unique(np.clip(np.concatenate([RATES, around.ravel()]), 0.0, 1.0))

    def are_near(
        self, recalls: Floats, deviations: float, which: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Return which recalls are within this many standard deviations of some of the jumps."""
        distance = np.abs(recalls[:, None] - self.recalls) / self.deviations
        is_close = distance <= deviations
        if which is not None:
            is_close &= which
        near = np.atleast_1d(is_close.any(-1))
        near[[0, -1]] = False
        return near

    def boxed(
        self, recalls: Floats, low: Floats, high: Floats, ends: BandEnds, *, replaces: bool
    ) -> tuple[Floats, Floats]:
        """Return the band with the ends of the precisions at jumps, as far as a jump may be.

        Between two ties the ends of the jump replace those of the points, whose draws lie on either
        side, if all ties are sure.
        """
        least = np.full_like(low, np.inf)
        most = np.full_like(high, -np.inf)
        offset = len(ends.low) - len(self.recalls)
        reach = max(ends.factor, LEAST_JUMP_FACTOR) * self.deviations
        for edge in range(len(self.recalls)):
            after = edge
            if self.begins[edge]:
                after = edge + 1
            begin = self.recalls[edge] - reach[edge]
            is_in_tie = (recalls >= begin) & (recalls <= self.recalls[after] + reach[after])
            is_at_edge = np.abs(recalls - self.recalls[edge]) <= reach[edge]
            for is_held, place in ((is_in_tie, offset + after), (is_at_edge, offset + edge)):
                least[is_held] = np.minimum(least[is_held], ends.low[place])
                most[is_held] = np.maximum(most[is_held], ends.high[place])
        is_between_ties = self._are_between_ties() & replaces
        furthest = JUMP_DEVIATIONS[-1]
        is_replaced = self.are_near(recalls, furthest, is_between_ties) & np.isfinite(least)
        is_replaced &= ~self.are_near(recalls, furthest, ~is_between_ties)
        low = np.where(is_replaced, least, np.minimum(low, least))
        high = np.where(is_replaced, most, np.maximum(high, most))
        return low, high

    def _are_between_ties(self) -> NDArray[np.bool_]:
        """Return which edges have tied scores, or an end of the curve, on both sides."""
        is_long = np.append(np.diff(self.recalls) > 2 * SAME_RECALL, False) & self.begins
        before = np.append(self.recalls[1:][is_long[:-1]], 0.0)
        after = self.recalls[is_long]
        from_before = np.abs(self.recalls[:, None] - before).min(-1, initial=np.inf)
        to_after = np.abs(self.recalls[:, None] - after).min(-1, initial=np.inf)
        between: NDArray[np.bool_] = np.maximum(from_before, to_after) < SAME_RECALL
        return between


def _jumps(plausible: Plausible, number: int) -> _Jumps:
    tails = _tails(plausible.sets[:, number])
    fp = tails[:, 0]
    tp = tails[:, 1]
    recalls = tp / np.maximum(tp[:, -1:], LEAST_DIVISOR)
    shares = np.diff(tails[0]) / np.maximum(tails[0, :, -1:], LEAST_DIVISOR)
    is_heavy = plausible.tied[number][::-1] & (shares.max(0) > 1 / MOST_CELLS)
    heavy = np.flatnonzero(is_heavy)
    edges = np.unique(np.concatenate([heavy, heavy + 1]))
    _, positives = np.maximum(plausible.sizes[number], LEAST_SIZE)
    selected = tp[:, edges] + fp[:, edges]
    precisions = np.where(selected > 0, tp[:, edges] / np.maximum(selected, LEAST_DIVISOR), 1.0)
    errors = recalls[FIRST_DRAW:, edges] - recalls[0, edges]
    deviations = np.hypot(errors.std(0), 1 / positives)
    return _Jumps(
        recalls=recalls[0, edges],
        deviations=deviations,
        precisions=precisions,
        begins=np.append(is_heavy, False)[edges],
    )


def _end_runs(plausible: Plausible, number: int, row: int) -> tuple[float, float]:
    """Return the rate of a row that the first runs end with, and the last ones begin with.

    No leaf beyond shows how the scores of the first and of the last run lie in it. And where no
    model fits, counts beyond an edge that do not stand out from their noise may be 0.
    """
    counts = np.add.reduceat(plausible.estimate[number], plausible.first_cells, axis=-1)
    total = max(float(counts[row].sum()), LEAST_DIVISOR)
    highest = 1
    lowest = 1
    if not plausible.smooth[number]:
        highest = _unknown_runs(counts[0][::-1], plausible.noise[number, 0][::-1])
        lowest = _unknown_runs(counts[1], plausible.noise[number, 1])
    first = float(counts[row][::-1][:highest].sum()) / total
    last = 1 - float(counts[row][:lowest].sum()) / total
    return first, last


def _unknown_runs(counts: Floats, noise: Floats) -> int:
    """Return how many runs it takes until they stand out from their noise together."""
    stands_out = counts.cumsum() > NOISE_DEVIATIONS * np.sqrt(noise.cumsum())
    if not stands_out.any():
        return len(counts)
    return int(stands_out.argmax()) + 1


def _tails(counts: Floats) -> Floats:
    """Return counts at or above descending edges, ``(sets, 2, cells + 1)``, from 0."""
    tails = np.zeros((*counts.shape[:-1], counts.shape[-1] + 1))
    np.cumsum(counts[..., ::-1], axis=-1, out=tails[..., 1:])
    return tails
