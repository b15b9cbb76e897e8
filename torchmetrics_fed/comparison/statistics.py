"""Statistics of two models on the same examples: the margins of their table, and the difference of their areas."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from torchmetrics_fed.comparison.leaves import mass_of, noisy_leaves
from torchmetrics_fed.reconstruct.consistency import non_negative
from torchmetrics_fed.reconstruct.leaves import on_bins, with_ties
from torchmetrics_fed.reconstruct.smooth.estimate import even_mass, modelled
from torchmetrics_fed.release import Release
from torchmetrics_fed.typing import Floats, Places

# A class below this many standard deviations of the noise in its size is lost.
_LOST = 5.0
# What the order of scores within leaves does beyond the model of it, as a part of what it can do: this, and so much of
# the noise of a leaf relative to its counts, up to a limit. Noise counts for more by so much of the same. The last is
# where no model holds.
_WITHIN, _NOISY, _MOST_WITHIN = 0.003, 0.45, 0.015
_SECOND, _ROUGH = 1.5, 0.05
# How far apart sampling within leaves may be from what the leaves show, and the points of a normal law it is judged by.
_LEAST_FACTOR, _POINTS = 0.2, 64


class Margin(NamedTuple):
    """What a table says of one model."""

    leaves: Floats
    """Negatives and positives on its leaves, ``(2, leaves)``, noise and all."""
    bins: Floats
    """The same on all bins, ``(2, bins)``, by the smooth model if it holds."""
    places: Places
    smooth: bool


def tables_of(release: Release) -> Floats:
    """Return the table of negatives and that of positives, ``(2, leaves, leaves)``."""
    tables: Floats = (
        release.last.levels[-1][0].double().numpy().reshape(2, *release.last.query.tree.branching)
    )
    return tables


def margins(release: Release) -> list[Margin]:
    """Return what a release of two models says of each."""
    grid, last, pilot = release.spec.grid, release.last, release.pilot
    if not release.spec.privacy.charges:
        tables, places = tables_of(release), np.arange(grid.bins + 1)
        return [Margin(each, each, places, True) for each in (tables.sum(2), tables.sum(1))]
    before = [None, None] if pilot is None else noisy_leaves(pilot)
    found = []
    for best, first in zip(noisy_leaves(last), before, strict=True):
        u, model, seen = grid.coordinate, None, None if first is None else mass_of(first, grid)
        mass = even_mass(best.edges, u) if seen is None else seen.below
        if seen is None or all(seen.smooth):
            model = modelled([[best] if first is None else [best, first]], mass, seen, u)[0]
        bins = model
        if bins is None:
            leaf = non_negative([torch.from_numpy(best.counts)])[0].numpy()
            bins = with_ties(on_bins(leaf, best.edges, u, lines_at_ends=True), leaf, best.edges, u)
        found.append(Margin(best.counts, bins, best.edges, model is not None))
    return found


class Difference(NamedTuple):
    """The second model's AUROC minus the first's."""

    value: float
    """Not a number where noise drowns a class."""
    low: float
    high: float
    variance: float


def area(leaves: Floats) -> float:
    """Return the AUROC of leaf counts, negatives and positives ``(2, leaves)``; pairs of one leaf count half."""
    negative, positive = leaves
    pairs = negative.sum() * positive.sum()
    return float(positive @ (negative.cumsum() - negative / 2) / pairs) if pairs else 0.5


def difference(
    tables: Floats,
    variance: float = 0.0,
    beyond: float = 0.0,
    confidence: float = 0.95,
    smooth: tuple[bool, bool] = (True, True),
) -> Difference:
    r"""Return how much higher the AUROC of the columns' model is than that of the rows' model, with its interval.

    With :math:`J^y_{ij}` the examples of class y whose scores are in leaf i of one model and in leaf j of the other,
    :math:`F` the negatives' and :math:`S` one minus the positives' distribution at the middle of a leaf, the difference
    d moves with a positive by :math:`h^1_{ij} = F_j - F_i - d` and with a negative by :math:`h^0_{ij} = S_j - S_i - d`
    (DeLong et al. 1988). So :math:`\sum J^1 (h^1)^2 / m^2 + \sum J^0 (h^0)^2 / n^2` is its variance by sampling, and
    noise of variance v in each cell adds :math:`v \sum (h^1)^2 / m^2 + v \sum (h^0)^2 / n^2`, and a little for its
    products.

    ``tables`` are negatives and positives, ``(2, rows, columns)``, leaves ascending by score, with noise of a
    ``variance`` in each cell; without noise this is DeLong's interval, pairs of one leaf tied. ``beyond`` is what the
    difference gains from the order of scores within leaves, as far as a model knows it, and ``smooth`` whether there is
    such a model, for rows and for columns.
    """
    sizes, cells = tables.sum((1, 2)), tables[0].size
    if (sizes < max(_LOST * math.sqrt(cells * variance), 2.0)).any():
        return Difference(math.nan, -1.0, 1.0, math.inf)
    value = area(tables.sum(1)) - area(tables.sum(2)) + beyond
    shares = (
        non_negative([torch.from_numpy(tables.reshape(2, -1))])[0].numpy().reshape(tables.shape)
    )
    shares /= sizes[:, None, None]
    rows, columns = shares.sum(2), shares.sum(1)
    middle = [each.cumsum(1) - each / 2 for each in (rows, columns)]
    sampled = noise = doubt = fourth = apart = 0.0
    for own, other in ((1, 0), (0, 1)):
        moves = (middle[1][other][None] - middle[0][other][:, None]) * (1 if own else -1)
        moves = moves - (shares[own] * moves).sum()
        size, factor, inside = sizes[own], 1.0, 0.0
        if variance:
            factor = _factor(tables[own] / size, rows, columns, own)
            inside = sum(float(each[own] @ each[other] ** 2) for each in (rows, columns)) / 12
        sampled += factor * ((tables[own] * moves**2).sum() / (size - 1) + inside) / size
        noise += variance * (moves**2).sum() / size**2
        doubt += variance * factor**2 * (moves**4).sum() / size**4
        fourth += (moves**4).sum() / size**4
        apart += sum(float(_spread(each, own)) / size for each in (rows, columns))
    if not variance:
        return _interval(value, sampled, ndtri((1 + confidence) / 2))
    squared = (noise / variance) ** 2
    for leaves, across in ((len(rows[0]), len(columns[0])), (len(columns[0]), len(rows[0]))):
        noise += (across * variance) ** 2 * _products(leaves) / (sizes[0] * sizes[1]) ** 2
    sampled = min(max(sampled, 0.0) + math.sqrt(doubt), apart)
    doubtful = max(math.sqrt(variance) * cells**0.75 / size for size in sizes)
    noise *= 1 + _SECOND * doubtful
    known = math.hypot(_WITHIN, min(_NOISY * doubtful, _MOST_WITHIN))
    margins = zip((rows, columns), smooth, strict=True)
    within = math.hypot(
        *(float(each[0] @ each[1]) * (known if fits else _ROUGH) for each, fits in margins)
    )
    whole = sampled + noise + within**2
    z = ndtri((1 + confidence) / 2)
    # noise has heavier tails than the normal law (Cornish and Fisher)
    z += (z**3 - 3 * z) / 24 * 3 * fourth / squared * (noise / whole) ** 2
    return _interval(value, whole, z)


def _interval(value: float, variance: float, z: float) -> Difference:
    reach = z * math.sqrt(variance)
    return Difference(value, max(value - reach, -1.0), min(value + reach, 1.0), variance)


def _spread(margin: Floats, own: int) -> float:
    """Return the variance of the other class's distribution over one class, of one model."""
    at = np.append(0.0, margin[1 - own].cumsum())
    low, high = at[:-1], at[1:]
    mean = float(margin[own] @ (low + high) / 2)
    return float(margin[own] @ (low**2 + low * high + high**2)) / 3 - mean**2


def _products(leaves: int) -> float:
    """Return the sum of squares of the doubly centred matrix that compares leaves: 0, 1/2 and 1."""
    compared = np.tri(leaves) - np.eye(leaves) / 2
    compared = compared - compared.mean(0) - compared.mean(1)[:, None] + compared.mean()
    return float((compared**2).sum())


def _factor(table: Floats, rows: Floats, columns: Floats, own: int) -> float:
    """Return sampling variance of a class over what its leaves show, for a normal copula of the same correlation."""
    edges = [np.concatenate([[[0.0]] * 2, each.cumsum(1)], 1) for each in (rows, columns)]
    ranks = [(each[own, 1:] + each[own, :-1]) / 2 - 0.5 for each in edges]
    spread = math.prod(
        float(margin[own] @ rank**2) for margin, rank in zip((rows, columns), ranks, strict=True)
    )
    correlation = float(ranks[0] @ table @ ranks[1]) / math.sqrt(max(spread, 1e-12))
    normal = 2 * math.sin(math.pi / 6 * min(max(correlation, 0.0), 0.995))
    z = ndtri((np.arange(_POINTS) + 0.5) / _POINTS)
    first = np.repeat(z, _POINTS)
    points = ndtr(
        np.stack([first, normal * first + math.sqrt(1 - normal**2) * np.tile(z, _POINTS)])
    )
    exact, binned = np.zeros(len(first)), np.zeros(len(first))
    inside = 0.0
    for u, each, sign in zip(points, edges, (-1, 1), strict=True):
        exact += sign * np.interp(u, each[own], each[1 - own])
        middle = (each[1 - own, 1:] + each[1 - own, :-1]) / 2
        leaf = np.minimum(np.searchsorted(each[own, 1:], u), len(middle) - 1)
        binned += sign * middle[leaf]
        inside += float(np.diff(each[own]) @ np.diff(each[1 - own]) ** 2) / 12
    return min(max(float(exact.var() / max(binned.var() + inside, 1e-12)), _LEAST_FACTOR), 1.0)
