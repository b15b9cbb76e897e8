r"""Statistics of two models on the same examples: margins of their tables, difference of areas.

**Model.** A table for each class counts its examples by the leaf i of the first model's score and
the leaf j of the second model's score: :math:`c^+_{ij}` positives and :math:`c^-_{ij}` negatives,
:math:`n^\pm` in all. Each cell has noise of variance v. The margins of the tables are the leaves of
each model, and its AUROC is

.. math:: A = \frac{1}{n^+ n^-} \sum_i c^+_i \Big( \sum_{k < i} c^-_k + \tfrac12 c^-_i \Big),

pairs of one leaf counted half. The difference is :math:`d = A_2 - A_1`, plus what the smooth model
knows of the order of scores within leaves.

**Sampling** (DeLong et al. 1988). With :math:`\Phi^\pm_i` the distribution of a class at the middle
of leaf i, d moves with one more example by

.. math:: h^+_{ij} = \Phi^-_j - \Phi^-_i - d, \qquad h^-_{ij} = -(\Phi^+_j - \Phi^+_i) - d,

so its variance is :math:`\sum c^+ (h^+)^2 / (n^+)^2 + \sum c^- (h^-)^2 / (n^-)^2`. Without noise,
this is DeLong's interval, with scores of one leaf tied. With noise there are few leaves, and two
corrections:

- scores that run evenly through a leaf vary by 1/12 of its squared mass, in each model;
- the scores of two models in one leaf are correlated. The sampling variance of a normal copula with
  the same correlation, over the variance that its leaves show, corrects for it.

**Noise.** Each cell adds :math:`v (h^+)^2 / (n^+)^2`, or :math:`v (h^-)^2 / (n^-)^2`. Products of
noise of both classes add :math:`(b v)^2 P / (n^+ n^-)^2` for each model, with b the cells that make
a leaf and P of :func:`_squared_comparisons`. Noise has heavier tails than the normal law. The
quantile z gets the term of Cornish and Fisher for the excess kurtosis, which is 3 for one Laplace
variable:

.. math:: z' = z + \frac{z^3 - 3 z}{24} \, \gamma, \qquad
    \gamma = 3 \, \frac{\sum h^4 / n^4}{(\sum h^2 / n^2)^2} \,
    \Big( \frac{\text{noise}}{\text{total variance}} \Big)^2.

**Order within leaves.** Any order of the scores within leaves moves A by at most
:math:`\sum c^+_i c^-_i / (2 n^+ n^-)`. A part of twice that, tuned in
:mod:`torchmetrics_fed.comparison.tuning`, enters as a standard deviation.

**Invariants.**

- An interval lies within [-1, 1] and around the difference.
- Where noise drowns a class, the difference is NaN and the interval is all of [-1, 1].
- Without noise, value and interval are DeLong's, for scores at the middle of their bins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from torchmetrics_fed.comparison import tuning
from torchmetrics_fed.comparison.leaves import mass_of, noisy_leaves
from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.reconstruct.consistency import non_negative
from torchmetrics_fed.reconstruct.leaves import on_bins, with_ties
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.estimate import even_mass, modelled
from torchmetrics_fed.release import Release
from torchmetrics_fed.typing import Floats, Places

LEAST_EXAMPLES = 2.0
"""Examples of a class without which there is no sampling variance."""

MOST_CORRELATION = 0.995
"""Upper limit of the rank correlation of two models' scores: a copula of 1 has no spread left."""

LEAST_VARIANCE = 1e-12
"""In place of a divisor of 0, where all scores of a class lie in one leaf."""

LAPLACE_EXCESS_KURTOSIS = 3
"""Excess kurtosis of a Laplace variable."""


class Margin(NamedTuple):
    """One margin of both tables: what they say of one model."""

    leaves: Floats
    """Negatives and positives on its leaves, ``(2, leaves)``, with their noise."""
    bins: Floats
    """Negatives and positives on all bins, ``(2, bins)``, by the smooth model if it fits."""
    places: Places
    """Edges of the leaves, as places on the grid."""
    smooth: bool
    """Whether the smooth model fits."""


class Difference(NamedTuple):
    """The second model's AUROC minus the first's."""

    value: float
    """Not a number where noise drowns a class."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end of its interval."""
    variance: float
    """Variance of the value."""


def tables_of(release: Release) -> Floats:
    """Return the table of negatives and that of positives, ``(2, leaves, leaves)``."""
    rows, columns = release.last.query.tree.branching
    cells = release.last.levels[-1][0].double().numpy()
    tables: Floats = cells.reshape(2, rows, columns)
    return tables


def margins(release: Release) -> list[Margin]:
    """Return what a release of two models says of each."""
    grid = release.spec.grid
    if not release.spec.privacy.charges:
        tables = tables_of(release)
        places = np.arange(grid.bins + 1)
        rows = tables.sum(2)
        columns = tables.sum(1)
        return [
            Margin(leaves=rows, bins=rows, places=places, smooth=True),
            Margin(leaves=columns, bins=columns, places=places, smooth=True),
        ]
    models = noisy_leaves(release.last)
    if release.pilot is None:
        return [_margin(leaves, None, grid) for leaves in models]
    pilots = noisy_leaves(release.pilot)
    return [_margin(leaves, pilot, grid) for leaves, pilot in zip(models, pilots, strict=True)]


def _margin(leaves: NoisyLeaves, pilot: NoisyLeaves | None, grid: ScoreGrid) -> Margin:
    """Return the margin of one model, with its leaves in the pilot if there was one."""
    u = grid.coordinate
    bins = None
    if pilot is None:
        (bins,) = modelled([[leaves]], even_mass(leaves.edges, u), start=None, u=u)
    else:
        mass = mass_of(pilot, grid)
        if all(mass.smooth):
            (bins,) = modelled([[leaves, pilot]], mass.below, start=mass, u=u)
    is_smooth = bins is not None
    if bins is None:
        (projected,) = non_negative([torch.from_numpy(leaves.counts)])
        counts = projected.numpy()
        bins = on_bins(counts, leaves.edges, u, lines_at_ends=True)
        bins = with_ties(bins, counts, leaves.edges, u)
    return Margin(leaves=leaves.counts, bins=bins, places=leaves.edges, smooth=is_smooth)


def area(leaves: Floats) -> float:
    """Return the AUROC of leaf counts, negatives and positives ``(2, leaves)``.

    Pairs of one leaf count half. Without pairs, the area is 0.5.
    """
    negative, positive = leaves
    pairs = negative.sum() * positive.sum()
    if not pairs:
        return 0.5
    return float(positive @ (negative.cumsum() - negative / 2) / pairs)


class _Shares(NamedTuple):
    """Both tables divided by the sizes of their classes, without negative cells."""

    cells: Floats
    """``(2, rows, columns)``."""
    rows: Floats
    """The margin of the first model, ``(2, rows)``."""
    columns: Floats
    """The margin of the second model, ``(2, columns)``."""

    @classmethod
    def of(cls, tables: Floats, sizes: Floats) -> _Shares:
        """Return the shares of tables whose classes have these sizes."""
        (projected,) = non_negative([torch.from_numpy(tables.reshape(2, -1))])
        cells = projected.numpy().reshape(tables.shape)
        cells /= sizes[:, None, None]
        return cls(cells=cells, rows=cells.sum(2), columns=cells.sum(1))


class _Moments(NamedTuple):
    """What the examples of one class, or of both, add to the variance of a difference."""

    sampling: float
    """Variance by sampling."""
    noise: float
    """Variance by noise, to the first order."""
    sampling_noise: float
    """Variance of the estimated sampling variance, because of noise."""
    fourth: float
    """Sum of h^4 / n^4 over all cells."""
    most_sampling: float
    """Variance by sampling if the two models were independent: there cannot be more."""

    def plus(self, moments: _Moments) -> _Moments:
        """Return the moments of two classes together: their examples are independent."""
        return _Moments(
            sampling=self.sampling + moments.sampling,
            noise=self.noise + moments.noise,
            sampling_noise=self.sampling_noise + moments.sampling_noise,
            fourth=self.fourth + moments.fourth,
            most_sampling=self.most_sampling + moments.most_sampling,
        )


def difference(
    tables: Floats,
    variance: float = 0.0,
    order_gain: float = 0.0,
    confidence: float = 0.95,
    smooth: tuple[bool, bool] = (True, True),
) -> Difference:
    """Return how much higher the AUROC of the columns' model is than that of the rows' model.

    The module's docstring has the formulas. Without noise the interval is DeLong's, with scores of
    one leaf tied.

    Args:
        tables: negatives and positives, ``(2, rows, columns)``, leaves ascending by score.
        variance: the variance of the noise in each cell.
        order_gain: what the difference gains from the order of scores within leaves, by the smooth
            model.
        confidence: the probability with which the interval holds the difference in the population.
        smooth: whether the smooth model fits, for rows and for columns.
    """
    sizes = tables.sum((1, 2))
    cells = tables[0].size
    least_size = max(tuning.LOST_CLASS_DEVIATIONS * math.sqrt(cells * variance), LEAST_EXAMPLES)
    if (sizes < least_size).any():
        return Difference(value=math.nan, low=-1.0, high=1.0, variance=math.inf)
    value = area(tables.sum(1)) - area(tables.sum(2)) + order_gain
    shares = _Shares.of(tables, sizes)
    positives = _moments(tables, sizes, shares, variance, label=1)
    negatives = _moments(tables, sizes, shares, variance, label=0)
    moments = positives.plus(negatives)
    z = ndtri((1 + confidence) / 2)
    if not variance:
        return _interval(value, moments.sampling, z)
    relative_noise = max(math.sqrt(variance) * cells**0.75 / size for size in sizes)
    noise = moments.noise
    noise += _noise_products(shares.rows, shares.columns, sizes, variance)
    noise += _noise_products(shares.columns, shares.rows, sizes, variance)
    noise *= 1 + tuning.NOISE_OF_NOISE * relative_noise
    sampling = max(moments.sampling, 0.0) + math.sqrt(moments.sampling_noise)
    sampling = min(sampling, moments.most_sampling)
    order = _order_deviation(shares, smooth, relative_noise)
    total_variance = sampling + noise + order**2
    squared_noise = (moments.noise / variance) ** 2
    cubic = (z**3 - 3 * z) / 24
    kurtosis_term = cubic * LAPLACE_EXCESS_KURTOSIS * moments.fourth / squared_noise
    z += kurtosis_term * (noise / total_variance) ** 2
    return _interval(value, total_variance, z)


def _interval(value: float, variance: float, z: float) -> Difference:
    """Return a difference with an interval of z standard deviations to both sides."""
    reach = z * math.sqrt(variance)
    return Difference(
        value=value,
        low=max(value - reach, -1.0),
        high=min(value + reach, 1.0),
        variance=variance,
    )


def _moments(
    tables: Floats, sizes: Floats, shares: _Shares, variance: float, label: int
) -> _Moments:
    """Return what the examples of one class add to the variance of the difference."""
    table = tables[label]
    size = sizes[label]
    moves = _moves(shares, label)
    factor = 1.0
    within = 0.0
    if variance:
        factor = _copula_factor(table / size, shares, label)
        within = _variance_within(shares.rows, label) + _variance_within(shares.columns, label)
        within = within / 12
    spread_of_rows = _variance_over_class(shares.rows, label)
    spread_of_columns = _variance_over_class(shares.columns, label)
    fourth_powers = (moves**4).sum()
    return _Moments(
        sampling=factor * ((table * moves**2).sum() / (size - 1) + within) / size,
        noise=variance * (moves**2).sum() / size**2,
        sampling_noise=variance * factor**2 * fourth_powers / size**4,
        fourth=fourth_powers / size**4,
        most_sampling=spread_of_rows / size + spread_of_columns / size,
    )


def _moves(shares: _Shares, label: int) -> Floats:
    """Return h, ``(rows, columns)``: how the difference moves with an example of this class."""
    first = _middles(shares.rows[1 - label])
    second = _middles(shares.columns[1 - label])
    moves = second[None] - first[:, None]
    if label == 0:
        moves = -moves
    return np.asarray(moves - (shares.cells[label] * moves).sum())


def _middles(shares: Floats) -> Floats:
    """Return the distribution at the middle of each leaf."""
    return np.asarray(shares.cumsum() - shares / 2)


def _variance_within(margin: Floats, label: int) -> float:
    """Return 12 times the variance within leaves of the other class's distribution."""
    return float(margin[label] @ margin[1 - label] ** 2)


def _variance_over_class(margin: Floats, label: int) -> float:
    """Return the variance of the other class's distribution over one class, of one model."""
    edges = np.append(0.0, margin[1 - label].cumsum())
    low = edges[:-1]
    high = edges[1:]
    mean = float(margin[label] @ (low + high) / 2)
    return float(margin[label] @ (low**2 + low * high + high**2)) / 3 - mean**2


def _noise_products(margin: Floats, across: Floats, sizes: Floats, variance: float) -> float:
    """Return the variance that products of the noise of both classes add to one model's area.

    Args:
        margin: the leaves of the model, ``(2, leaves)``.
        across: the leaves of the other model: each leaf of the margin is a sum of as many cells.
        sizes: the sizes of both classes.
        variance: the variance of the noise in each cell.
    """
    leaf_variance = across.shape[1] * variance
    comparisons = _squared_comparisons(margin.shape[1])
    return float(leaf_variance**2 * comparisons / (sizes[0] * sizes[1]) ** 2)


def _squared_comparisons(leaves: int) -> float:
    """Return the sum of squares of the doubly centred matrix that compares leaves: 0, 1/2 and 1."""
    compared = np.tri(leaves) - np.eye(leaves) / 2
    compared = compared - compared.mean(0) - compared.mean(1)[:, None] + compared.mean()
    return float((compared**2).sum())


def _order_deviation(shares: _Shares, smooth: tuple[bool, bool], relative_noise: float) -> float:
    """Return the standard deviation of the difference by the order of scores within leaves."""
    noisy = min(tuning.ORDER_DOUBT_OF_NOISE * relative_noise, tuning.MOST_ORDER_DOUBT_OF_NOISE)
    smooth_doubt = math.hypot(tuning.ORDER_DOUBT, noisy)
    deviations = []
    for margin, fits in zip((shares.rows, shares.columns), smooth, strict=True):
        doubt = smooth_doubt if fits else tuning.ORDER_DOUBT_OF_ROUGH_SCORES
        deviations.append(float(margin[0] @ margin[1]) * doubt)
    return math.hypot(*deviations)


class _Steps(NamedTuple):
    """One model's distributions of both classes at the edges of its leaves, from 0 to 1."""

    of_class: Floats
    of_opposite: Floats

    @classmethod
    def of(cls, margin: Floats, label: int) -> _Steps:
        """Return the distributions of a margin, that of class ``label`` first."""
        edges = np.concatenate([np.zeros((2, 1)), margin.cumsum(1)], 1)
        return cls(of_class=edges[label], of_opposite=edges[1 - label])

    def ranks(self) -> Floats:
        """Return the centred rank of each leaf among its class, from -1/2 to 1/2."""
        return np.asarray((self.of_class[1:] + self.of_class[:-1]) / 2 - 0.5)

    def exact(self, ranks: Floats) -> Floats:
        """Return the opposite class's distribution at ranks of the class, even within leaves."""
        return np.asarray(np.interp(ranks, self.of_class, self.of_opposite))

    def binned(self, ranks: Floats) -> Floats:
        """Return the same at the middle of the leaf of each rank."""
        middle = (self.of_opposite[1:] + self.of_opposite[:-1]) / 2
        leaf = np.minimum(np.searchsorted(self.of_class[1:], ranks), len(middle) - 1)
        return np.asarray(middle[leaf])

    def variance_within(self) -> float:
        """Return the variance within leaves, if scores run evenly through them."""
        return float(np.diff(self.of_class) @ np.diff(self.of_opposite) ** 2) / 12


def _copula_factor(table: Floats, shares: _Shares, label: int) -> float:
    """Return the sampling variance of a class over the variance that its leaves show.

    Both variances are those of a normal copula with the rank correlation of the table, of shares.
    """
    rows = _Steps.of(shares.rows, label)
    columns = _Steps.of(shares.columns, label)
    correlation = _rank_correlation(table, shares, label)
    normal = 2 * math.sin(math.pi / 6 * min(max(correlation, 0.0), MOST_CORRELATION))
    points = tuning.COPULA_POINTS
    z = ndtri((np.arange(points) + 0.5) / points)
    first = np.repeat(z, points)
    second = normal * first + math.sqrt(1 - normal**2) * np.tile(z, points)
    first_ranks = ndtr(first)
    second_ranks = ndtr(second)
    exact = columns.exact(second_ranks) - rows.exact(first_ranks)
    binned = columns.binned(second_ranks) - rows.binned(first_ranks)
    leaf_variance = binned.var() + (rows.variance_within() + columns.variance_within())
    factor = float(exact.var() / max(leaf_variance, LEAST_VARIANCE))
    return min(max(factor, tuning.LEAST_COPULA_FACTOR), 1.0)


def _rank_correlation(table: Floats, shares: _Shares, label: int) -> float:
    """Return the correlation of the ranks of both models' leaves, over a table of shares."""
    row_ranks = _Steps.of(shares.rows, label).ranks()
    column_ranks = _Steps.of(shares.columns, label).ranks()
    row_variance = float(shares.rows[label] @ row_ranks**2)
    column_variance = float(shares.columns[label] @ column_ranks**2)
    covariance = float(row_ranks @ table @ column_ranks)
    return covariance / math.sqrt(max(row_variance * column_variance, LEAST_VARIANCE))
