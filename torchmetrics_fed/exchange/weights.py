r"""Weights: how many times the cells of a query count an example of several classes.

An example of K classes is a positive of one class and a negative of the K - 1 others. So there are
K - 1 times as many negatives as positives, and the noise of a positive moves a curve K - 1 times as
far. A query therefore counts a positive more often than a negative
(:class:`~torchmetrics_fed.release.query.LevelWeights`), at the same epsilon.

**Positives.** Let an example have up to :math:`c^+` positives and :math:`c^-` negatives, of weight
P and w, and let a class have :math:`n^+` and :math:`n^-` examples. Pure noise has the scale
:math:`(c^+ P + c^- w) / \varepsilon`. Relative to the class sizes, the squared noise of a curve is

.. math:: (c^+ P + c^- w)^2 \Big( \frac{1}{(P n^+)^2} + \frac{1}{(w n^-)^2} \Big),

which is least at :math:`P / w = \big( (c^- / c^+)\, (n^- / n^+)^2 \big)^{1/3}`. For noise with a
delta, the scale is that of :math:`\sqrt{c^+ P^2 + c^- w^2}`, and the exponent 1/4. Multi-class
tasks have :math:`c^- / c^+ = n^- / n^+ = K - 1`: under pure noise, positives get half of epsilon.

**Negatives.** The scores of a softmax row add up to 1, so an example has few negatives with a high
score. A leaf with the lower edge e weighs a negative in proportion to :math:`\max(e, c / K)`. All
negatives of an example then weigh :math:`1 + c\,(K - 1) / K` together, where the lowest of them
weighs :math:`c / K`. Negatives with a high score, which decide the curve, are known far better, and
the many with a low score worse. The sensitivity of such weights is the bound of
:func:`~torchmetrics_fed.privacy.sensitivity.most_together`. It is an L1 norm, so only pure noise
has these weights.

**Invariants.**

- Weights depend on what is public: the spec, the leaves of the query, a private sum.
- Binary tasks, two models and one-vs-one counts have weights of 1, as have multi-label tasks
  without ``labels_per_example``: each of their labels may be positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchmetrics_fed.counting import Tree
from torchmetrics_fed.privacy.sensitivity import most_together
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.release import Spec
from torchmetrics_fed.release.query import MOST_WEIGHT, LevelWeights

PURE_EXPONENT = 1 / 3
"""Exponent of the best ratio of weights under pure noise, whose scale is an L1 norm."""

DELTA_EXPONENT = 1 / 4
"""Exponent of the best ratio of weights under noise with a delta, whose scale is an L2 norm."""


def query_weights(
    spec: Spec, tree: Tree, *, times: Sequence[int] = (), sizes: tuple[float, float] | None = None
) -> tuple[LevelWeights, ...]:
    """Return the weights of a query that tells classes apart, one for each level.

    Args:
        spec: what all parties agree on.
        tree: the tree of the query.
        times: how many times each level counts an example by itself; once if not given.
        sizes: estimated negatives and positives of all classes together, if there is an estimate.
    """
    if not times:
        times = (1,) * len(tree.sizes)
    ratio = _positive_ratio(spec, sizes)
    if ratio is None:
        return tuple(LevelWeights.of(number) for number in times)
    if spec.sums_to_one and spec.privacy.delta == 0:
        return _soft_weights(spec, tree, times)
    positive = max(round(ratio), 1)
    return tuple(
        LevelWeights(negatives=(number,), positives=(number * positive,)) for number in times
    )


def pooled_weights(spec: Spec) -> tuple[LevelWeights, ...]:
    """Return the weights of a query of one level that adds up all classes."""
    ratio = _positive_ratio(spec, None)
    if ratio is None:
        return (LevelWeights(),)
    negatives, positives = _cells_per_example(spec)
    return (LevelWeights(positives=(max(round(negatives / positives), 1),)),)


def _cells_per_example(spec: Spec) -> tuple[int, int]:
    """Return the most negatives and the most positives of an example."""
    positives = 1
    if spec.task == "multilabel":
        positives = spec.labels_per_example or spec.classes
    return spec.classes - positives, positives


def _positive_ratio(spec: Spec, sizes: tuple[float, float] | None) -> float | None:
    """Return the weight of a positive over that of a negative; None where they have one weight."""
    negatives, positives = _cells_per_example(spec)
    if spec.classes == 1 or spec.multi_class == "ovo" or not negatives:
        return None
    cell_ratio = negatives / positives
    size_ratio = cell_ratio
    if sizes is not None and spec.task == "multilabel":
        negative_size, positive_size = sizes
        size_ratio = min(max(negative_size / positive_size, 1.0), tuning.MOST_SIZE_RATIO)
    exponent = PURE_EXPONENT if spec.privacy.delta == 0 else DELTA_EXPONENT
    return float((cell_ratio * size_ratio**2) ** exponent)


def _soft_weights(spec: Spec, tree: Tree, times: Sequence[int]) -> tuple[LevelWeights, ...]:
    """Return weights of negatives by their score; positives weigh as much as all negatives."""
    heaviest = spec.classes * (1 + 1 / tuning.SOFT_PLATEAU) * max(times)
    unit = min(max(int(MOST_WEIGHT / heaviest), 1), tuning.SOFT_UNIT)
    places = tree.places(spec.grid.bins)
    levels = []
    for nodes, number in zip(tree.sizes, times, strict=True):
        lower_edges = spec.grid.edges[places[: -1 : tree.leaves // nodes]].numpy()
        scaled = np.floor(unit * spec.classes / tuning.SOFT_PLATEAU * lower_edges)
        weights = np.maximum(scaled, unit).astype(np.int64)
        positive = most_together(
            weights.tolist(), lower_edges.tolist(), count=spec.classes - 1, total=1.0
        )
        negatives = np.minimum(number * weights, MOST_WEIGHT)
        positives = min(number * positive, MOST_WEIGHT)
        levels.append(LevelWeights(tuple(negatives.tolist()), (positives,)))
    return tuple(levels)
