"""Intervals of areas under curves: the effect of noise, and of the order within leaves."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchmetrics_fed.reconstruct.leaves import NO_TIES, EndTies
from torchmetrics_fed.reconstruct.smooth.estimate import are_smooth, bin_counts
from torchmetrics_fed.reconstruct.smooth.mass import has_heavy_top
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails, above, order_statistic
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.typing import Floats, Places

# Places and weights of Gauss and Legendre's rule with three points on [0, 1].
_PLACES, _WEIGHTS = (0.5 - np.sqrt(0.15), 0.5, 0.5 + np.sqrt(0.15)), (5 / 18, 8 / 18, 5 / 18)

# Leaves that noise is followed through: their number per (smaller class / noise of a tail), within
# limits.
_LEAVES, _FEWEST, _MOST = 0.5, 8, 64
# Times the mass of a mean leaf. On smooth scores the largest has 1.2 to 1.8, on spikes 4 and more.
_CROWDED = 2.0


class Reach(NamedTuple):
    """An area if both classes' scores run evenly through each leaf, and how far any other order
    can move it."""

    leaves: Floats
    """What each leaf gives, ``(..., leaves)``."""
    down: Floats
    """How much less each leaf can give, ``(..., leaves)``."""
    up: Floats
    """How much more."""

    @property
    def even(self) -> Floats:
        """The area, ``(...)``."""
        total: Floats = self.leaves.sum(-1)
        return total

    def tied(self, ends: EndTies, value: Floats) -> "Reach":
        """Return the same, but end leaves that are ties give a ``value`` of theirs, which no
        order can move."""
        if ends == NO_TIES:
            return self
        tied = ends.mask(self.leaves.shape[-1])
        return Reach(
            np.where(tied, value, self.leaves),
            np.where(tied, 0.0, self.down),
            np.where(tied, 0.0, self.up),
        )

    def around(self, known: Floats) -> tuple[Floats, Floats]:
        """Return how much less and how much more each leaf can give than what is known of its
        order."""
        least, most = self.leaves - self.down, self.leaves + self.up
        return np.maximum(known - least, 0), np.maximum(most - known, 0)


Area = Callable[[Floats, Floats, EndTies], Reach]
"""Of tails of negatives and positives, ``(..., edges)``, edges ascending, and of which end
leaves are ties."""


def roc_area(negative: Floats, positive: Floats, ends: EndTies = NO_TIES) -> Reach:
    """Area under the ROC curve: leaf by leaf the negatives times the positives above them, and
    half of those beside."""
    size = np.maximum(negative[..., 0] * positive[..., 0], 1e-300)[
        ..., None
    ]  # a drawn sample may lack a class
    beside = negative[..., :-1] - negative[..., 1:]
    least, most = (beside * tail / size for tail in (positive[..., 1:], positive[..., :-1]))
    half = (most - least) / 2
    return Reach(least + half, half, half).tied(ends, least + half)


def average_precision_area(negative: Floats, positive: Floats, ends: EndTies = NO_TIES) -> Reach:
    r"""Average precision. A leaf of x positives, with p positives above it, q negatives above it
    and Q with its own:

    at least :math:`\int_0^x \frac{p+s}{p+s+Q}\,ds = x - Q \ln\frac{p+x+Q}{p+Q}`, all its negatives
    first, and at most :math:`x\,\frac{p+x}{p+x+q}`, all its positives first and tied. If all its
    scores are tied, it is :math:`x\,\frac{p+x}{p+x+Q}`.
    """
    found, false = np.maximum(positive, 0), np.maximum(negative, 0)
    x, size = positive[..., :-1] - positive[..., 1:], np.maximum(positive[..., :1], 1e-300)
    parts = [_precision(_between(found, at), _between(false, at)) for at in _PLACES]
    even = x * np.tensordot(_WEIGHTS, parts, 1) / size
    p, q, with_it = found[..., 1:], false[..., 1:], false[..., :-1]
    least = (x - with_it * np.log1p(np.maximum(x, 0) / np.maximum(p + with_it, 1e-300))) / size
    most = x * _precision(found[..., :-1], q) / size
    step = x * _precision(found[..., :-1], with_it) / size
    return Reach(even, even - least, most - even).tied(ends, step)


def _between(tail: Floats, part: float) -> Floats:
    """The tail so far down each leaf."""
    return tail[..., 1:] + part * (tail[..., :-1] - tail[..., 1:])


def _precision(found: Floats, false: Floats) -> Floats:
    selected = found + false
    return np.divide(found, selected, out=np.ones_like(selected), where=selected > 0)


def area_interval(release: Release, confidence: float, binning: float, area: Area) -> Floats:
    """Return the ends of the interval of each class, ``(classes, 2)``."""
    exact = not release.spec.privacy.charges
    tree = release.last.query.tree
    classes = UncertainTails.of(release)
    smooth, modelled = [True] * len(classes), False
    if tree.edges is not None and not exact:
        fine, places = list(above(bin_counts(release).numpy())), release.last.places
        # many leaves tell ties from smooth scores themselves
        modelled = len(tree.branching) == 1 or has_heavy_top(release.last.query)
        if modelled:
            smooth = are_smooth(release)
    else:
        fine, places = [tails.guess for tails in classes], np.arange(tree.leaves + 1)
    ends = []
    for tails, finest, fits in zip(classes, fine, smooth, strict=True):
        if tails.empty:
            ends.append([0.0, 1.0])
            continue
        kept = _kept(tails)
        ends_of_runs = _ends_of_runs(tails.ties, kept)
        # the smooth model's own area, whose error is less than that of least squares; without it
        # that, whose noise is known, and what is known of the order within leaves
        known = area(finest[0], finest[1], tails.ties)
        centre = known.even
        if not (modelled and fits):
            seen = tails.seen[:, kept]
            read = finest[:, places[kept]]
            noisy = area(seen[0], seen[1], ends_of_runs)
            centre += noisy.even - area(read[0], read[1], ends_of_runs).even
        at = tails.guess[:, kept]
        drawn = at[:, None] + tails.noise[..., kept]
        guess, level = area(at[0], at[1], ends_of_runs), (1 + confidence) / 2
        moved = area(drawn[0], drawn[1], ends_of_runs).even - guess.even
        # ties count half in a ROC curve, as if they ran evenly through their leaf; a PR curve has
        # to know of them
        suspects = _crowded(tails, kept) if area is roc_area else _maybe_tied(tails, kept, fits)
        if exact:
            part, (down, up) = np.asarray(binning), known[1:]
        else:
            part = np.where(suspects, 1.0, binning)
            down, up = guess.around(np.add.reduceat(known.leaves, places[kept[:-1]]))
            part = np.where(ends_of_runs.mask(len(part)), 0.0, part)
        low = centre - order_statistic(moved, level) - (part * down).sum()
        high = centre + order_statistic(-moved, level) + (part * up).sum()
        ends.append([float(low), float(high)])
    return np.clip(ends, 0.0, 1.0)


def _kept(tails: UncertainTails) -> Places:
    """Return edges with about equal mass between, so much that noise does not drown it: all of a
    well-placed tree."""
    smaller, deviation = (
        max(tails.guess[:, 0].min(), 1.0),
        np.sqrt(max(tails.spread[:, 0].max(), 1.0)),
    )
    leaves = int(np.clip(_LEAVES * smaller / deviation, _FEWEST, _MOST))
    last = tails.guess.shape[1] - 1
    if tails.alone.others(last) <= leaves:
        return np.arange(last + 1)
    inner = np.searchsorted(-tails.mass, -np.linspace(1, 0, leaves + 1)[1:-1])
    if tails.ties.first:
        inner = np.r_[1, inner]
    if tails.ties.last:
        inner = np.r_[inner, last - 1]
    return np.unique(np.r_[0, inner, last])


def _ends_of_runs(ends: EndTies, kept: Places) -> EndTies:
    """Return which end runs of leaves between kept edges are such an end leaf and no more."""
    return EndTies(ends.first and bool(kept[1] == 1), ends.last and bool(kept[-2] == kept[-1] - 1))


def _crowded(tails: UncertainTails, kept: Places) -> NDArray[np.bool_]:
    """Return which runs of leaves between kept edges hold far more than others: scores crowd in
    a spike there."""
    mass = -np.diff(tails.mass[kept])
    crowded: NDArray[np.bool_] = mass > _CROWDED / _ends_of_runs(tails.alone, kept).others(
        len(mass)
    )
    return crowded


def _maybe_tied(tails: UncertainTails, kept: Places, fits: bool) -> NDArray[np.bool_]:
    """Return which runs of leaves between kept edges may hold tied scores, so that any order is
    possible in them.

    A run of several is suspect if one leaf holds most of it. Where all leaves are kept, crowded
    ones are; and all of them, if the smooth model does not fit.
    """
    if len(kept) == tails.guess.shape[1]:
        return _crowded(tails, kept) | (not fits)
    mass = -np.diff(tails.mass)
    most: NDArray[np.bool_] = (
        np.maximum.reduceat(mass, kept[:-1]) > np.add.reduceat(mass, kept[:-1]) / 2
    )
    return most
