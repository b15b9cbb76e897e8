"""Checks: which cells a client with a given number of examples can have sent."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from torchmetrics_fed.errors import ImpossibleCountsError
from torchmetrics_fed.release.share import Answer

MAX_TOTAL = 2**63 - 1
"""What int64 holds; no sum may leave it."""

_FALSE_ALARM = 1e-9


def check_counts(answer: Answer, sender: str, shares: int = 1, max_examples: int | None = None) -> int:
    """Return the largest magnitude of a cell, or raise if data cannot have such cells. No count is shown.

    Exact cells must not be negative, the levels of their tree must agree, and so must the classes on how many examples
    there were. With ``max_examples`` no class may hold more, on no level. Noisy cells and the totals of noisy levels
    may pass 0 and the bound by a tail of their noise, such that at most one honest share in 1e9 would be refused.
    ``shares`` is the number of shares that were summed in the answer; errors name the sender.
    """
    cells = answer.cells
    lowest, highest = (float(end) if cells.is_floating_point() else int(end) for end in torch.aminmax(cells))
    reach = max(-lowest, highest)
    if not reach * cells.numel() <= MAX_TOTAL:  # nor is it where a float is not a number
        raise ImpossibleCountsError(
            f"Expected cells whose sum fits into 63 bits but {sender} has larger ones. Drop it, and ask whether its "
            "counts are damaged."
        )
    if answer.spec.privacy is None:
        _check_exact(answer, lowest >= 0, sender)
    if max_examples is not None:
        _check_bound(answer, sender, shares, max_examples)
    return math.ceil(reach)


def _check_exact(answer: Answer, counts: bool, sender: str) -> None:
    spec, tree = answer.spec, answer.query.tree
    if not counts:
        raise ImpossibleCountsError(
            f"Expected counts of at least 0 but {sender} has negative ones, though its spec adds no noise. Drop it."
        )
    leaf = answer.cells[..., -tree.leaves :] // tree.weights[-1]
    if max(*tree.weights, len(tree.sizes)) > 1 and not torch.equal(tree.joined(leaf), answer.cells):
        raise ImpossibleCountsError(
            f"Expected levels that agree but the leaves of {sender} do not add up to the levels above them. Drop it."
        )
    if spec.task != "multiclass":
        return
    # every example is in each class's histograms, as a positive of one, in each group by itself
    rows = leaf.sum(-1).unflatten(0, (-1, spec.classes))
    every = rows.sum(-1)
    agree = rows == rows[:, :1] if spec.multi_class == "ovo" else every == rows[..., 1].sum(1, keepdim=True)
    if not bool(agree.all()):
        raise ImpossibleCountsError(f"Expected classes that agree on their examples but {sender} has others. Drop it.")


def _check_bound(answer: Answer, sender: str, shares: int, max_examples: int) -> None:
    spec, cells = answer.spec, answer.cells
    tree, noise = answer.query.tree, spec.noise(answer.query)
    levels = list(zip(tree.split(cells), tree.weights, strict=True))
    checks = 2 * (cells.numel() + spec.classes * len(levels))
    classes = [(level.unflatten(0, (-1, spec.classes)).transpose(0, 1).flatten(1), weight) for level, weight in levels]
    sums = [(level.sum(1), level.shape[1], weight) for level, weight in classes]
    for values, noises, weight in (*((level, 1, weight) for level, weight in levels), *sums):
        slack = 0.0
        if spec.privacy is not None and noise is not None:
            times = noises * shares / spec.privacy.calibrated_for
            slack = noise_tail(noise.variance, times, _FALSE_ALARM / checks) / weight
        lowest, highest = (end.item() for end in torch.aminmax(values))
        if lowest < -slack or highest > max_examples * shares + slack:
            margin = f" (and {slack:.0f} more or less because of noise)" if slack else ""
            raise ImpossibleCountsError(
                f"Expected 0 to max_examples={max_examples} examples a client{margin} but {sender}, of {shares} "
                f"share{'s' * (shares > 1)}, is outside. Drop it, or allow more if clients can have more."
            )


@lru_cache(maxsize=256)
def noise_tail(variance: float, weight: float, probability: float) -> float:
    r"""Return what the sum of ``weight`` noises of this variance exceeds with at most this probability.

    Chernoff's bound for the two-sided geometric law, :math:`\log E e^{tX} = -\log(1 - v (\cosh t - 1))`, which at
    the same variance bounds those of Skellam, the discrete Gaussian and Laplace; a weight below 1 is a part of the
    noise, as a share has. Any :math:`t` gives a bound; the best of a grid is taken.
    """
    u = 1 / (1 + np.exp(-np.linspace(-30, 30, 481)))
    t = 2 * np.arcsinh(np.sqrt(u / (2 * variance)))  # u = v (cosh t - 1)
    return float(((weight * -np.log1p(-u) - math.log(probability)) / t).min())
