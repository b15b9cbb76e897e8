r"""Plausible counts: what the counts of the population may be, given a release.

**Engine.** Every interval of a population comes from here. Let :math:`\hat c` be the counts that a
release is read as. A draw is a set of counts :math:`c^*` whose difference to :math:`\hat c` is
distributed as the error of :math:`\hat c` itself:

1. *Sampling.* A run of bins with :math:`\hat L` examples gets Poisson errors s of that mean. Given
   their sum they are multinomial, and the class sizes vary, too, as precision has to know.
2. *Noise.* The cells of the release get errors z by the law and with the variance of the noise that
   is there. They go through least squares, as the noise itself did.
3. *Reading.* Where the smooth model fits, the estimate follows an error of the leaves in part. To
   first order it is moved by :math:`A (s + z)`, with the operator A of :func:`response`. Where it
   does not fit, A is 1, and negative counts are projected away.
4. *Within leaves.* The scores of a leaf are tilted at random towards one of its edges.

Any function of counts is then applied to all draws at once, and its spread over the draws is that
of its error. Two more sets of counts are alternatives within leaves: ``grained`` has the scores of
each leaf in few places, as ties would be that are too fine for the release; ``untied`` has the
scores of leaves that look tied run through them, as far as that is in doubt.

Runs are the leaves. Where there are more leaves than a draw has cells, they are runs of leaves. For
exact counts the leaves are the bins of the grid, and there is no noise.

**Invariants.**

- Counts are finite and not negative.
- The same release has the same draws, bit for bit. Their randomness protects nobody.
- Nothing is read but the release, so draws cost no privacy.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from torchmetrics_fed.reconstruct import tuning as model_tuning
from torchmetrics_fed.reconstruct.consistency import LEAST_DIVISOR, least_squares, non_negative
from torchmetrics_fed.reconstruct.leaves import EndTies
from torchmetrics_fed.reconstruct.smooth.density import LAPLACE_SQUARE_VARIANCE, LINE_SCALE
from torchmetrics_fed.reconstruct.smooth.estimate import are_smooth
from torchmetrics_fed.reconstruct.smooth.mass import noisy_leaves
from torchmetrics_fed.reconstruct.tails import Aligned
from torchmetrics_fed.reconstruct.uncertainty import tuning
from torchmetrics_fed.reconstruct.uncertainty.bands import summed_noise
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.release.sum import Sum
from torchmetrics_fed.typing import Floats, Places

MOST_DRAWS = 300
"""Draws of a release. A standard deviation of 300 draws is off by 4%."""

FEWEST_DRAWS = 100
"""Draws of a release with many classes. A standard deviation of 100 draws is off by 7%."""

NOISE_DRAWS = 60
"""Draws with the errors of noise alone, for warnings. Their standard deviation is off by 9%."""

MOST_COUNTS = 1 << 23
"""Counts of all draws together, as far as :data:`FEWEST_DRAWS` allows: 64 MB."""

MOST_KEPT_COUNTS = 1 << 21
"""Counts of all draws together that are kept as long as their release: 16 MB."""

MOST_CELLS = 192
"""Cells of a draw, beside edges of leaves and heavy bins."""

OUTERMOST_LOGIT = 9.0
"""Logit of the outermost part of a class that a cell tells apart: about 1 in 10,000."""

MOST_EXACT_LAW = 256
"""Cells of a tree up to which noise is drawn by its own law. In sums over more it is normal."""

LOST_DEVIATIONS = 2.0
"""A class is lost if its size is at most this many standard deviations of its noise."""

LEAST_COUNT = 0.5
"""Least expected count of a leaf: its variance is not 0, though its estimate may be."""

TIED_PART = 0.98
"""Part of the scores of a cell that are in one bin, if they are ties."""

LEAST_DOUBT = 0.03
"""Square root of the probability below which a tie is in no doubt."""

LEAST_PART = 1e-6
"""Examples of a run below which nothing is known of how they are spread in it."""

_SEED = 20_261_118
"""The same seed makes the same draws of the same release."""


class Plausible(NamedTuple):
    """Counts that a release may stand for, on cells: runs of bins."""

    estimate: Floats
    """The counts that the release is read as, ``(classes, 2, cells)``."""
    grained: Floats
    """The same with the scores of each leaf in few places, ``(classes, 2, cells)``."""
    untied: Floats
    """The same with the scores of doubtful ties spread over their leaves."""
    draws: Floats
    """Draws, ``(draws, classes, 2, cells)``."""
    places: Places
    """Edges of the cells, as places on the grid."""
    edges: Floats
    """Edges of the cells, as scores."""
    sizes: Floats
    """Examples of each class as far as they stand out from noise, ``(classes, 2)``.

    With size N and variance v of its noise: :math:`N^2 / (N + v)`.
    """
    lost: NDArray[np.bool_]
    """Which classes are lost in the noise, ``(classes,)``."""
    smooth: tuple[bool, ...]
    """Whether the smooth model fits, for each class."""
    strained: NDArray[np.bool_]
    """Which classes have leaves that no smooth model explains, ``(classes,)``."""
    tied: NDArray[np.bool_]
    """Which cells have all of their scores in one bin, ``(classes, cells)``."""
    first_cells: Places
    """The first cell of each run, whose counts have errors of their own."""
    noise: Floats
    """Variance of the noise in the counts of each run, ``(classes, 2, runs)``."""

    @property
    def sets(self) -> Floats:
        """All sets of counts, ``(3 + draws, classes, 2, cells)``.

        The estimate, the two alternatives, and the draws.
        """
        return np.concatenate([[self.estimate, self.grained, self.untied], self.draws])

    def pooled(self) -> Plausible:
        """Return the counts of all classes together."""
        return self._replace(
            estimate=self.estimate.sum(0, keepdims=True),
            grained=self.grained.sum(0, keepdims=True),
            untied=self.untied.sum(0, keepdims=True),
            draws=self.draws.sum(1, keepdims=True),
            sizes=self.sizes.sum(0, keepdims=True),
            lost=np.atleast_1d(self.lost.all()),
            smooth=(all(self.smooth),),
            strained=np.atleast_1d(self.strained.any()),
            tied=np.atleast_2d(self.tied.all(0)),
            noise=self.noise.sum(0, keepdims=True),
        )


class _Runs(NamedTuple):
    """Runs of bins whose counts have errors of their own, and the cells that they consist of."""

    places: Places
    """Edges of the runs, as places on the grid."""
    cells: Places
    """Edges of the cells, as places on the grid. Edges of runs are among them."""

    @property
    def run_of_cell(self) -> Places:
        runs: Places = np.searchsorted(self.places, self.cells[:-1], side="right") - 1
        return runs

    @property
    def first_cells(self) -> Places:
        """The first cell of each run."""
        first: Places = np.searchsorted(self.cells, self.places[:-1])
        return first


_sampled: WeakKeyDictionary[Release, Plausible] = WeakKeyDictionary()
_noise_alone: WeakKeyDictionary[Release, Plausible] = WeakKeyDictionary()


def plausible_counts(release: Release, sampling: bool = True) -> Plausible:
    """Return draws of what the counts of a population may be, given a release of it.

    Args:
        release: a release of negatives and positives, without groups.
        sampling: whether the examples are a sample of the population. Without it, draws have the
            errors of noise alone.
    """
    kept = _sampled if sampling else _noise_alone
    if release in kept:
        return kept[release]
    plausible = _plausible_counts(release, sampling)
    if plausible.draws.size <= MOST_KEPT_COUNTS:
        kept[release] = plausible
    return plausible


def _plausible_counts(release: Release, sampling: bool) -> Plausible:
    generator = np.random.default_rng(_SEED)
    last = release.last
    counts = Aligned().levels(release)[-1].double().numpy()
    leaf_places = last.places
    if counts.shape[-1] != release.spec.grid.bins:
        counts = _spread_over_bins(counts, leaf_places)
    is_private = release.spec.privacy.charges
    smooth = [False] * len(counts)
    if is_private and last.query.tree.edges is not None:
        smooth = are_smooth(release)
    runs = _runs(counts, _observed_places(last, all(smooth)))
    cell_counts = np.add.reduceat(counts, runs.cells[:-1], axis=-1)
    draws = NOISE_DRAWS
    if sampling:
        draws = int(np.clip(MOST_COUNTS // cell_counts.size, FEWEST_DRAWS, MOST_DRAWS))
    drawn = np.empty((draws, *cell_counts.shape))
    grained = np.empty_like(cell_counts)
    untied = np.empty_like(cell_counts)
    ends = EndTies.of(release.spec.grid, runs.places)
    sizes = np.empty(cell_counts.shape[:2])
    lost = np.empty(len(counts), dtype=np.bool_)
    strained = np.empty(len(counts), dtype=np.bool_)
    noise_variance = np.empty((*cell_counts.shape[:2], len(runs.places) - 1))
    for number, estimate in enumerate(cell_counts):
        run_counts = np.add.reduceat(estimate, runs.first_cells, axis=-1)
        noise = np.zeros((draws, *run_counts.shape))
        if is_private:
            noise = _noise_of_runs(last, draws, generator, runs)
        errors = noise
        if sampling:
            errors = noise + generator.poisson(run_counts, noise.shape) - run_counts
        if is_private:
            errors = errors * _spread(run_counts, noise, is_smooth=smooth[number])
        moved = _moved(run_counts, errors, noise, is_smooth=smooth[number])
        parts = _parts(estimate, run_counts, runs)
        drawn[:, number] = moved[..., runs.run_of_cell] * _tilted(parts, runs, draws, generator)
        strained[number] = _is_strained(last, number, run_counts, smooth[number])
        part = 1.0 if strained[number] else tuning.UNSTRAINED_PART
        grained[number] = estimate + part * (_grained(estimate, runs) - estimate)
        doubts = _doubts(run_counts, noise.var(0), ends)
        untied[number] = _untied(estimate, run_counts, runs, doubts)
        size = run_counts.sum(-1)
        size_variance = noise.sum(-1).var(0)
        noise_variance[number] = noise.var(0)
        sizes[number] = size**2 / np.maximum(size + size_variance, LEAST_DIVISOR)
        lost[number] = bool((size <= LOST_DEVIATIONS * np.sqrt(size_variance)).any())
    return Plausible(
        estimate=cell_counts,
        grained=grained,
        untied=untied,
        draws=drawn,
        places=runs.cells,
        edges=release.spec.grid.edges.numpy()[runs.cells],
        sizes=sizes,
        lost=lost,
        smooth=tuple(smooth),
        strained=strained,
        tied=_are_tied(counts, runs.cells),
        first_cells=runs.first_cells,
        noise=noise_variance,
    )


def _are_tied(counts: Floats, cells: Places) -> NDArray[np.bool_]:
    """Return which cells have nearly all of their scores in one bin, ``(classes, cells)``."""
    mass = counts.sum(1)
    fullest = np.maximum.reduceat(mass, cells[:-1], axis=-1)
    whole = np.add.reduceat(mass, cells[:-1], axis=-1)
    tied: NDArray[np.bool_] = fullest >= TIED_PART * whole
    return tied


def _spread_over_bins(leaf: Floats, places: Places) -> Floats:
    """Return the counts of leaves evenly over their bins, ``(classes, 2, bins)``."""
    widths = np.diff(places)
    counts: Floats = np.repeat(leaf / widths, widths, axis=-1)
    return counts


def _observed_places(last: Sum, is_smooth: bool) -> Places:
    """Return the edges of the leaves that the estimate follows.

    Of a single query's three levels the smooth model is fitted to the upper two.
    """
    if is_smooth and len(last.levels) > 1:
        return noisy_leaves(last)[0][0].edges
    return last.places


def _runs(counts: Floats, leaf_places: Places) -> _Runs:
    """Return runs and cells for counts on bins, ``(classes, 2, bins)``.

    Edges of cells are quantiles of both rows, closer together at both ends, and both edges of bins
    that hold more than a cell should. Up to :data:`MOST_CELLS` leaves are the runs. Of more leaves,
    the cells are the runs, with edges among those of the leaves.
    """
    shares = counts / np.maximum(counts.sum(-1, keepdims=True), LEAST_DIVISOR)
    mass = shares.mean(0)
    fractions = expit(np.linspace(-OUTERMOST_LOGIT, OUTERMOST_LOGIT, MOST_CELLS // 2))
    heavy = np.flatnonzero(mass.max(0) > 1 / MOST_CELLS)
    quantiles = [np.searchsorted(row.cumsum(), fractions) for row in mass]
    ends = np.array([0, counts.shape[-1]])
    cells = np.unique(np.concatenate([*quantiles, heavy, heavy + 1, ends]))
    cells = cells[cells <= ends[1]]
    if len(leaf_places) - 1 <= MOST_CELLS:
        return _Runs(leaf_places, np.unique(np.concatenate([cells, leaf_places])))
    next_edges = leaf_places[np.searchsorted(leaf_places, cells)]
    edges_before = leaf_places[np.searchsorted(leaf_places, heavy, side="right") - 1]
    cells = np.unique(np.concatenate([next_edges, edges_before, ends]))
    return _Runs(cells, cells)


def _noise_of_runs(last: Sum, draws: int, generator: np.random.Generator, runs: _Runs) -> Floats:
    """Return the noise in the counts of runs after least squares, ``(draws, 2, runs)``."""
    spec = last.spec
    calibrated = spec.noise(last.query).variance
    tree = last.query.tree
    levels = []
    for level, variance in zip(last.levels, last.variances, strict=True):
        shape = (draws, *level.shape[1:])
        if tree.cells > MOST_EXACT_LAW:
            unit = generator.standard_normal(shape)
        else:
            noise = summed_noise(
                generator,
                spec.privacy.mechanism,
                variance=calibrated,
                shares=last.noise_variance / calibrated,
                shape=shape,
            )
            unit = noise / np.sqrt(last.noise_variance)
        deviation = np.sqrt(np.broadcast_to(variance, level.shape[1:]))
        levels.append(torch.from_numpy(unit * deviation))
    leaf = least_squares(levels, last.weights)[-1].numpy()
    first_leaves = np.searchsorted(last.places, runs.places[:-1])
    noise_of_runs: Floats = np.add.reduceat(leaf, first_leaves, axis=-1)
    return noise_of_runs


def _spread(run_counts: Floats, noise: Floats, *, is_smooth: bool) -> float:
    """Return the factor of all errors of a private release."""
    noise_variance = noise.var(0).sum(-1)
    part_of_noise = noise_variance / np.maximum(noise_variance + run_counts.sum(-1), LEAST_DIVISOR)
    more = tuning.NOISE_SPREAD if is_smooth else tuning.ROUGH_NOISE_SPREAD
    return float(tuning.SPREAD * np.sqrt(1 + more * part_of_noise.max()))


def _moved(run_counts: Floats, errors: Floats, noise: Floats, *, is_smooth: bool) -> Floats:
    """Return the counts of runs, moved as the estimate follows errors, ``(draws, 2, runs)``."""
    if is_smooth:
        operator = response(run_counts, noise.var(0))
        followed = errors.reshape(len(errors), -1) @ operator.T
        smooth: Floats = np.maximum(run_counts + followed.reshape(errors.shape), 0.0)
        return smooth
    projected = non_negative([torch.from_numpy(run_counts + errors)])[0]
    rough: Floats = projected.numpy()
    return rough


def response(leaf: Floats, noise: Floats) -> Floats:
    r"""Return the operator A by which the smooth estimate follows errors of its leaves.

    The model of :mod:`~torchmetrics_fed.reconstruct.smooth.density` on leaves in place of cells,
    at its fit: with expected counts :math:`\mu`, noise v, :math:`W = 1 / (v + \mu)`, slopes D and
    the prior's precision :math:`\Lambda`, an error moves the fit by

    .. math:: H = D (D^\top W D + \Lambda)^{-1} D^\top W,

    and the part :math:`g = \mu / (\mu + v)` of its residual is added back: A = (1 - g) H + g.

    Args:
        leaf: expected counts of negatives and positives, ``(2, leaves)``.
        noise: variances of their noise, ``(2, leaves)``.

    Returns:
        A matrix of ``(2 leaves, 2 leaves)``, negatives first.
    """
    expected = np.maximum(leaf, LEAST_COUNT)
    series = _series(expected)
    cosines = np.arange(1, model_tuning.SERIES_TERMS - 1)
    precision = np.concatenate(
        [
            [1 / model_tuning.CONSTANT_VARIANCE, 1 / model_tuning.LINE_VARIANCE],
            cosines**4 / model_tuning.ROUGHNESS**2,
        ]
    )
    of_negatives = expected[0][:, None] * series
    of_positives = expected[1][:, None] * series
    slopes = np.block([[of_negatives, np.zeros_like(series)], [of_positives, of_positives]])
    weight = 1 / (expected + noise).ravel()
    information = slopes.T @ (weight[:, None] * slopes) + np.diag(np.tile(precision, 2))
    fit = slopes @ np.linalg.solve(information, slopes.T * weight)
    gain = (expected / (expected + noise)).ravel()
    operator: Floats = (1 - gain)[:, None] * fit + np.diag(gain)
    return operator


def _series(expected: Floats) -> Floats:
    """Return the terms of a series at the middle of each leaf, ``(leaves, terms)``.

    The coordinate is the logit of the mean mass of both classes, scaled to [0, 1].
    """
    mass = (expected / expected.sum(-1, keepdims=True)).mean(0)
    below = np.append(0.0, mass.cumsum())
    rounding = model_tuning.LOGIT_ROUNDING
    logit = np.log((below + rounding) / (1 + rounding - np.minimum(below, 1.0)))
    x = (logit - logit[0]) / (logit[-1] - logit[0])
    middle = (x[1:] + x[:-1]) / 2
    frequencies = np.arange(1, model_tuning.SERIES_TERMS - 1)
    cosines = np.cos(np.pi * np.outer(middle, frequencies))
    series: Floats = np.c_[np.ones(len(middle)), LINE_SCALE * (middle - 0.5), cosines]
    return series


def _parts(estimate: Floats, run_counts: Floats, runs: _Runs) -> Floats:
    """Return the part that each cell has of the counts of its run, ``(2, cells)``."""
    run_of_cell = runs.run_of_cell
    of_run = run_counts[:, run_of_cell]
    widths = np.diff(runs.cells) / np.diff(runs.places)[run_of_cell]
    parts: Floats = np.where(of_run > LEAST_PART, estimate / np.maximum(of_run, LEAST_PART), widths)
    return parts


def _positions(parts: Floats, runs: _Runs) -> Floats:
    """Return where the middle of each cell is in its run, from 0 to 1 by its part of the counts."""
    mean = parts.mean(0)
    below = np.append(0.0, mean.cumsum())
    middle = (below[:-1] + below[1:]) / 2
    position: Floats = middle - below[runs.first_cells][runs.run_of_cell]
    return position


def _tilted(parts: Floats, runs: _Runs, draws: int, generator: np.random.Generator) -> Floats:
    """Return the parts of cells with scores tilted within their runs, ``(draws, 2, cells)``."""
    if len(runs.places) == len(runs.cells):
        return np.broadcast_to(parts, (draws, *parts.shape))
    run_of_cell = runs.run_of_cell
    slopes = tuning.TILT * generator.standard_normal((draws, 2, len(runs.places) - 1))
    lean = 2 * _positions(parts, runs) - 1
    tilted = parts * np.maximum(1 + slopes[..., run_of_cell] * lean, 0.0)
    whole = np.add.reduceat(tilted, runs.first_cells, axis=-1)
    result: Floats = tilted / np.maximum(whole, LEAST_DIVISOR)[..., run_of_cell]
    return result


def _is_strained(last: Sum, number: int, run_counts: Floats, is_smooth: bool) -> bool:
    r"""Return whether leaves differ from the smooth model by more than noise and sampling.

    Ties within leaves make them differ before they refute the model. With y a noisy leaf, v its
    noise, and :math:`\hat L = \mu + g (y - \mu)` its estimate, where :math:`g = \mu / (\mu + v)`,

    .. math:: \frac{(y - \mu)^2}{\mu + v} \approx \frac{(y - \hat L)^2 (\hat L + v)}{v^2}.
    """
    if not is_smooth:
        return True
    if len(last.levels) > 1:
        return False
    counts = last.levels[0][number].double().numpy()
    noise = np.broadcast_to(last.variances[0], counts.shape)
    expected = np.maximum(run_counts, LEAST_COUNT)
    squares = (counts - expected) ** 2 * (expected + noise) / noise**2
    leaves = counts.shape[-1]
    misfit = (squares.sum(-1) - leaves) / np.sqrt(LAPLACE_SQUARE_VARIANCE * leaves)
    return bool(misfit.max() > tuning.STRAINED)


def _grained(estimate: Floats, runs: _Runs) -> Floats:
    """Return the counts with those of each run in few places, ``(2, cells)``."""
    run_counts = np.add.reduceat(estimate, runs.first_cells, axis=-1)
    position = _positions(_parts(estimate, run_counts, runs), runs)
    grain = np.minimum((position * tuning.GRAINS).astype(np.int64), tuning.GRAINS - 1)
    key = runs.run_of_cell * tuning.GRAINS + np.maximum(grain, 0)
    first = np.append(0, np.flatnonzero(np.diff(key)) + 1)
    after = np.append(first[1:], len(key))
    grained = np.zeros_like(estimate)
    grained[:, (first + after - 1) // 2] = np.add.reduceat(estimate, first, axis=-1)
    return grained


def _untied(estimate: Floats, run_counts: Floats, runs: _Runs, doubts: Floats) -> Floats:
    """Return the counts with those of doubtful ties spread over their runs, ``(2, cells)``.

    The log-ratio of the classes runs through a leaf up to twice as fast as through its neighbours.
    """
    result: Floats = estimate.copy()
    doubt = np.sqrt(doubts)
    ratio = np.log((run_counts[1] + LEAST_COUNT) / (run_counts[0] + LEAST_COUNT))
    change = np.gradient(ratio)
    bounds = np.append(runs.first_cells, len(runs.cells) - 1)
    for run in np.flatnonzero(doubt > LEAST_DOUBT):
        cells = slice(bounds[run], bounds[run + 1])
        part = estimate[:, cells].sum(0)
        if part.max() < TIED_PART * part.sum():
            continue
        height = np.linspace(-0.5, 0.5, bounds[run + 1] - bounds[run])
        lean = change[run] * height
        spread = np.exp(np.stack([-lean, lean]))
        spread *= run_counts[:, run : run + 1] / spread.sum(-1, keepdims=True)
        result[:, cells] += doubt[run] * (spread - estimate[:, cells])
    return result


def _doubts(run_counts: Floats, noise: Floats, ends: EndTies) -> Floats:
    """Return the probability that the scores of each run are not tied, though they look so.

    A leaf looks tied if it holds much more than its part of the mass, or than a neighbour
    (:func:`~torchmetrics_fed.reconstruct.leaves.are_tied`). The more it exceeds that, beyond two
    standard deviations of noise, the less doubt there is.
    """
    sizes = np.maximum(run_counts.sum(-1, keepdims=True), LEAST_DIVISOR)
    mass = (run_counts / sizes).mean(0)
    by_chance = 2 * (np.sqrt(noise) / sizes).mean(0)
    part = 1 / ends.others(len(mass))
    compared = np.where(ends.mask(len(mass)), np.inf, mass)
    neighbour = np.minimum(np.append(np.inf, compared[:-1]), np.append(compared[1:], np.inf))
    heavy = mass / (model_tuning.TIED_LEAF_PARTS * (part + by_chance))
    lone_mass = model_tuning.LONE_LEAF_RATIO * (neighbour + by_chance)
    lone = mass / np.maximum(lone_mass, LEAST_DIVISOR)
    excess = np.maximum(np.maximum(heavy, lone) - 1, 0.0)
    doubt = np.exp(-tuning.UNTIED_DECAY * excess)
    doubts: Floats = np.where(ends.mask(len(mass)), 0.0, doubt)
    return doubts
