r"""Placement: the leaves of a query, even on the grid or where an earlier sum found the scores.

**Model.** Leaves are runs of bins, and their edges are places on the grid, in its own coordinate u.
A pilot and a single query know nothing of the scores, so their leaves are even in u. A placed query
knows the mass :math:`m(u)` below every edge from an earlier private sum
(:class:`~torchmetrics_fed.reconstruct.smooth.mass.ScoreMass`). Its K leaves hold equal mass:

.. math:: m(e_k) = k / K, \qquad k = 0, \dots, K.

**How many leaves.** More leaves resolve more of the curve, and each has more noise relative to its
count. With :math:`n^\pm` estimated from the earlier sum and :math:`\varepsilon` that of the noise
which is really there, let :math:`z = \sqrt{\min(n^+, n^-)\, \varepsilon}`.

============================ ====================================================================
smooth model                 ``LEAVES_PER_ROOT`` z, at least ``FEWEST_LEAVES``
without the model            ``ROUGH_LEAVES_PER_ROOT`` z, at least ``ROUGH_FEWEST_LEAVES``
epsilon above 1              the above times :math:`\varepsilon` to ``LARGE_EPSILON_EXPONENT``
above ``MOST_FLAT_LEAVES``   two levels of equal branching
one leaf of the earlier sum  two levels, each of branching ``CROWDED_BRANCHING_PER_ROOT`` z, at most
is crowded, one class        ``CROWDED_MOST_BRANCHING``
G groups                     :math:`\sqrt{\min(n^+, n^-) / G}\, \sinh(\varepsilon / 2)`, from
                             ``FEWEST_LEAVES`` to ``MOST_FLAT_LEAVES``
============================ ====================================================================

The constants are those of :mod:`torchmetrics_fed.reconstruct.tuning`. Groups have a formula of
their own because each is read around the shape of all. Relative to sampling, K leaves of noise
variance v lose about :math:`1 / K` by what they do not resolve, and :math:`2 K v / n` by noise. The
sum is least at :math:`K = \sqrt{n / 2 v}`, and :math:`1 / 2 v = \sinh^2(\varepsilon / 2)`.

**Ends.** Scores of exactly 0 or exactly 1 are ties. Where an end leaf of the earlier sum is
crowded, the end bin of a two-sided grid becomes a leaf.

**Invariants.**

- Leaves are never placed by exact counts: edges of equal mass are quantiles of the raw data. A
  placed query is post-processing of a private sum, so it costs no privacy and is public.
- Edges ascend from 0 to the number of bins, and every leaf has a bin.
- The fractions of a pilot and its placed query add up to 1 exactly.
"""

from __future__ import annotations

import math

import numpy as np

from torchmetrics_fed.counting import ScoreGrid, Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.weights import pooled_weights, query_weights
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Query, Spec, Sum
from torchmetrics_fed.typing import Floats, Places

LEAST_BINS = 256
"""Bins below which there is nothing to place: all of them can be leaves."""


def pilot_query(spec: Spec) -> Query:
    """Return the first query of two: few leaves, even in the grid's own coordinate.

    All groups and all classes are counted together: leaves are placed for all of them.
    """
    tree = _even_tree(spec.grid, (tuning.PILOT_LEAVES,))
    return Query(
        tree,
        tuning.PILOT_FRACTION,
        weights=pooled_weights(spec),
        pools_groups=bool(spec.groups),
        pools_classes=spec.classes > 1,
    )


def single_query(spec: Spec) -> Query:
    """Return the only query: three levels of leaves that are even in the grid's own coordinate.

    A grid of few bins has all of them as leaves.
    """
    if spec.epsilon <= tuning.SINGLE_LARGE_EPSILON:
        branching = tuning.SINGLE_BRANCHING
        times = tuning.SINGLE_WEIGHTS
    else:
        branching = tuning.SINGLE_BRANCHING_OF_LARGE_EPSILON
        times = (1,) * len(branching)
    if spec.grid.bins < 2 * math.prod(branching):
        tree = Tree.balanced(spec.grid.bins)
        return Query(tree, weights=query_weights(spec, tree))
    tree = _even_tree(spec.grid, branching)
    return Query(tree, weights=query_weights(spec, tree, times=times))


def placed_query(earlier: Sum, fraction: float) -> Query:
    """Return leaves of equal mass where an earlier sum found the scores.

    Args:
        earlier: the sum of a pilot, or the last sum of the release before.
        fraction: the fraction of epsilon that the query spends. It decides how many leaves there
        are.
    """
    spec = earlier.spec
    if not spec.privacy.charges:
        raise InputError(
            "Expected a private release to place leaves by but got exact counts: edges of equal "
            "mass are the quantiles of the raw data. Release it with `privacy`, or use a plan that "
            "needs no data."
        )
    mass = ScoreMass.of(earlier.overall)
    sizes = mass.sizes
    if earlier.query.pools_classes:
        sizes = sizes / spec.classes
    epsilon = earlier.whole_epsilon * earlier.spec.privacy.precision_of(fraction)
    branching = _branching(mass, float(sizes.min()), epsilon, spec)
    ends = _crowded_ends(mass)
    if len(branching) == 1:
        branching = (branching[0] + len(ends),)
    even = np.linspace(0, 1, math.prod(branching) + 1 - len(ends))
    inner = np.interp(even, mass.below, spec.grid.coordinate)
    places = snapped(np.sort(np.r_[inner, ends]), spec.grid)
    tree = Tree(branching, tuple(places.tolist()))
    negatives = float(sizes[..., 0].sum())
    positives = float(sizes[..., 1].sum())
    weights = query_weights(spec, tree, sizes=(negatives, positives))
    return Query(tree, fraction, weights=weights)


def _even_tree(grid: ScoreGrid, branching: tuple[int, ...]) -> Tree:
    """Return a tree over leaves that are even in the grid's own coordinate."""
    even = np.linspace(0, 1, math.prod(branching) + 1)
    return Tree(branching, tuple(snapped(even, grid).tolist()))


def _branching(mass: ScoreMass, size: float, epsilon: float, spec: Spec) -> tuple[int, ...]:
    """Return the tree over as many leaves as the smaller class can feed at this epsilon."""
    if spec.groups:
        return (_leaves_of_groups(size / len(spec.groups), epsilon),)
    # Above epsilon 1 a leaf's noise is less than an example, and the error is made within leaves.
    growth = max(epsilon, 1.0) ** tuning.LARGE_EPSILON_EXPONENT
    root = math.sqrt(size * epsilon) * growth
    leaves = _leaves(root, is_smooth=all(mass.smooth))
    most_branching = math.isqrt(mass.grid.bins)
    branching = min(round(math.sqrt(leaves)), most_branching)
    is_crowded = mass.spread.mean((0, 1)).max() > tuning.CROWDED_LEAF_MASS
    if is_crowded and spec.classes == 1:
        crowded = min(
            round(tuning.CROWDED_BRANCHING_PER_ROOT * root),
            tuning.CROWDED_MOST_BRANCHING,
            most_branching,
        )
        branching = max(branching, crowded)
        return (branching, branching)
    if leaves <= tuning.MOST_FLAT_LEAVES:
        return (leaves,)
    return (branching, branching)


def _leaves(root: float, is_smooth: bool) -> int:
    """Return the number of leaves for a square root of (examples x epsilon)."""
    leaves = max(int(tuning.LEAVES_PER_ROOT * root), tuning.FEWEST_LEAVES)
    if is_smooth and leaves <= tuning.MOST_FLAT_LEAVES:
        return leaves
    return max(int(tuning.ROUGH_LEAVES_PER_ROOT * root), tuning.ROUGH_FEWEST_LEAVES)


def _leaves_of_groups(size: float, epsilon: float) -> int:
    """Return the number of leaves for groups whose smaller class has this size on average."""
    leaves = int(math.sqrt(size) * math.sinh(epsilon / 2))
    return min(max(leaves, tuning.FEWEST_LEAVES), tuning.MOST_FLAT_LEAVES)


def _crowded_ends(mass: ScoreMass) -> Floats:
    """Return the coordinates of the edges that make crowded end bins leaves."""
    end_mass = mass.spread.mean((0, 1))[[0, -1]]
    inner_edges = mass.grid.coordinate[[1, -2]]
    is_crowded = (end_mass > tuning.CROWDED_END_MASS) & (mass.grid.kind == "two_sided")
    ends: Floats = inner_edges[is_crowded]
    return ends


def snapped(coordinates: Floats, grid: ScoreGrid) -> Places:
    """Return the places on the grid nearest to ascending coordinates, one bin apart at least.

    The first place is 0 and the last is the number of bins. Subtracting the index turns "strictly
    ascending" into "not descending", which a running maximum and a running minimum ensure.
    """
    u = grid.coordinate
    index = np.arange(len(coordinates))
    places = np.searchsorted((u[1:] + u[:-1]) / 2, coordinates)
    places[0] = 0
    places[-1] = grid.bins
    slack = np.maximum.accumulate(places - index)
    slack = np.minimum(slack, grid.bins - index[-1])
    slack = np.minimum.accumulate(slack[::-1])[::-1]
    apart: Places = slack + index
    return apart
