r"""Checks: whether the data of clients can have the cells of a share or a sum.

These rules hold for every check:

- Exact cells are refused where they are negative, where the levels of their tree disagree, or where
  the classes disagree on the number of examples.
- With ``max_examples``, no cell and no class may hold more examples than its clients can have.
- Noisy cells, and totals of noisy levels, may pass these bounds by a tail of their noise. The
  tail is such that at most one honest share in :math:`10^9` is refused.
- Errors name the sender and show no count.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from torchmetrics_fed.errors import ImpossibleCountsError
from torchmetrics_fed.release.share import QueryCells

MAX_TOTAL = 2**63 - 1
"""The largest int64. No sum may exceed it."""

_FALSE_ALARM = 1e-9
"""The largest probability that an honest share is refused because of its noise."""


def check_counts(
    part: QueryCells, sender: str, shares: int = 1, max_examples: int | None = None
) -> int:
    """Return the largest magnitude of a cell, or raise if no data can have such cells.

    Args:
        part: a share, or a sum of shares.
        sender: the name of the part in errors.
        shares: the number of shares in the part.
        max_examples: the most examples that one client can have; unlimited if not given.
    """
    lowest, highest = _range(part.cells)
    magnitude = max(-lowest, highest)
    if not magnitude * part.cells.numel() <= MAX_TOTAL:  # false for NaN, too
        raise ImpossibleCountsError(
            f"Expected cells whose sum fits into 63 bits but {sender} has larger ones, perhaps "
            "damaged. Drop it."
        )
    if not part.spec.privacy.charges:
        if lowest < 0:
            raise ImpossibleCountsError(
                f"Expected exact counts of at least 0 but {sender} has negative ones. Drop it."
            )
        _check_levels(part, sender)
        _check_classes(part, sender)
    if max_examples is not None:
        _check_examples(part, sender, shares, max_examples)
    return math.ceil(magnitude)


def _range(values: Tensor) -> tuple[float, float]:
    """Return the lowest and the highest value; ints where the values are."""
    lowest, highest = torch.aminmax(values)
    return lowest.item(), highest.item()


def _check_levels(part: QueryCells, sender: str) -> None:
    """Raise unless the upper levels of exact counts are the sums of their leaves."""
    tree = part.query.tree
    if len(tree.sizes) == 1:
        return
    leaf_counts = part.cells[..., -tree.leaves :]
    if not torch.equal(tree.joined(leaf_counts), part.cells):
        raise ImpossibleCountsError(
            f"Expected levels that agree but the leaves of {sender} add up to others. Drop it."
        )


def _check_classes(part: QueryCells, sender: str) -> None:
    """Raise unless all classes of a multi-class task hold the same examples.

    Every example is in the histograms of each class, as a positive of one class. In each group, the
    examples of any class are therefore the positives of all classes together.
    """
    spec = part.spec
    if spec.task != "multiclass":
        return
    leaf_counts = part.cells[..., -part.query.tree.leaves :]
    rows = leaf_counts.sum(-1).unflatten(0, (-1, spec.classes))
    if spec.multi_class == "ovo":
        agree = rows == rows[:, :1]
    else:
        examples = rows.sum(-1)
        positives = rows[..., 1]
        agree = examples == positives.sum(1, keepdim=True)
    if not bool(agree.all()):
        raise ImpossibleCountsError(
            f"Expected classes that agree on their examples but {sender} has others. Drop it."
        )


def _check_examples(part: QueryCells, sender: str, shares: int, max_examples: int) -> None:
    """Raise where a cell, or a class on a level, holds more examples than clients can have."""
    spec = part.spec
    query = part.query
    _, classes = spec.histograms(query)
    most_examples = max_examples * shares
    if query.pools_classes:
        most_examples *= spec.classes
    levels = spec.levels(query, part.cells)
    comparisons = 2 * (part.cells.numel() + classes * len(levels))
    probability = _FALSE_ALARM / comparisons
    for level, weights in zip(levels, query.weights, strict=True):
        least_weight = min(*weights.negatives, *weights.positives)
        cells_of_class = level.unflatten(0, (-1, classes)).transpose(0, 1).flatten(1)
        for values, noises in ((level, 1), (cells_of_class.sum(1), cells_of_class.shape[1])):
            slack = _noise_of(part, noises * shares, probability) / least_weight
            lowest, highest = _range(values)
            if lowest < -slack or highest > most_examples + slack:
                raise _too_many_examples(sender, shares, max_examples, slack)


def _noise_of(part: QueryCells, noises: int, probability: float) -> float:
    """Return the noise that ``noises`` shares' cells, added up, exceed with this probability."""
    privacy = part.spec.privacy
    if not privacy.charges:
        return 0.0
    variance = part.spec.noise(part.query).variance
    return noise_tail(variance, noises / privacy.calibrated_for, probability)


def _too_many_examples(
    sender: str, shares: int, max_examples: int, slack: float
) -> ImpossibleCountsError:
    margin = ""
    if slack:
        margin = f" (and {slack:.0f} more or less because of noise)"
    plural = "s" * (shares > 1)
    return ImpossibleCountsError(
        f"Expected 0 to max_examples={max_examples} examples a client{margin} but {sender}, of "
        f"{shares} share{plural}, is outside. Drop it, or allow more if clients can have more."
    )


@lru_cache(maxsize=256)
def noise_tail(variance: float, weight: float, probability: float) -> float:
    r"""Return a bound that the sum of ``weight`` noises exceeds with at most this probability.

    Chernoff's bound: for any :math:`t > 0`,

    .. math:: P\left(\sum X \ge \frac{w \log E e^{tX} - \log p}{t}\right) \le p .

    The noise is taken for two-sided geometric, :math:`\log E e^{tX} = -\log(1 - u)` with
    :math:`u = v (\cosh t - 1)`. At the same variance :math:`v` this bounds the Skellam law, the
    discrete Gaussian and the Laplace law. Any :math:`t` gives a bound; the best of a grid is taken.

    Args:
        variance: the variance of one noise.
        weight: the number of noises; less than 1 for the part of a noise that one share has.
        probability: the probability p.
    """
    u = 1 / (1 + np.exp(-np.linspace(-30, 30, 481)))
    t = 2 * np.arcsinh(np.sqrt(u / (2 * variance)))
    bounds = (weight * -np.log1p(-u) - math.log(probability)) / t
    return float(bounds.min())
