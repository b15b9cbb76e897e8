"""Laws of scores whose population is known, for the coverage of intervals.

A star marks laws that were added last. All of them were in view when constants were chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.hard_scores import Scores
from torchmetrics_fed import FederatedROC
from torchmetrics_fed.typing import Floats

__all__ = ["POPULATIONS", "Population", "true_counts"]

TRUE_EXAMPLES = 12_000_000
"""Examples that stand for a population: their AUROC is off by about 0.0001."""

CHUNK = 1_000_000
"""Examples that are drawn at once."""

Law = Callable[[np.random.Generator, int], Scores]
"""From a generator and a number of examples to targets and scores."""


class Population(NamedTuple):
    """A law, the examples of a data set of it, and the epsilon of its release."""

    law: Law
    examples: int
    epsilon: float


def _targets(generator: np.random.Generator, examples: int, share: float) -> Floats:
    return (generator.random(examples) < share).astype(np.float64)


def _scored(target: Floats, score: Floats) -> Scores:
    return target.astype(np.int64), score


def _sigmoid(logit: Floats) -> Floats:
    probability: Floats = 1 / (1 + np.exp(-logit))
    return probability


def _calibrated(share: float, distance: float) -> Law:
    """Return the law of a calibrated classifier of two normal classes at some distance."""

    def draw(generator: np.random.Generator, examples: int) -> Scores:
        target = _targets(generator, examples, share)
        logit = distance * (generator.normal(size=examples) + distance * (target - 0.5))
        return _scored(target, _sigmoid(logit + np.log(share / (1 - share))))

    return draw


def _normal(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.3)
    return _scored(target, _sigmoid(1.5 * generator.normal(size=examples) + 2 * target - 1))


def _rounded(steps: int) -> Law:
    """Return the law of calibrated scores that are rounded to steps + 1 values."""
    law = _calibrated(0.3, 1.5)

    def draw(generator: np.random.Generator, examples: int) -> Scores:
        target, score = law(generator, examples)
        return target, np.round(score * steps) / steps

    return draw


def _saturated(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.3)
    logit = 12 * (target - 0.5) + 9 * generator.normal(size=examples)
    return _scored(target, _sigmoid(2 * logit))


def _zero_inflated(generator: np.random.Generator, examples: int) -> Scores:
    target, score = _calibrated(0.2, 1.5)(generator, examples)
    is_zero = generator.random(examples) < np.where(target == 1, 0.08, 0.45)
    return target, np.where(is_zero, 0.0, score)


def _bimodal(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.4)
    is_other = generator.random(examples) < 0.35
    positives = np.where(is_other, generator.beta(2, 6, examples), generator.beta(8, 2, examples))
    negatives = np.where(is_other, generator.beta(5, 5, examples), generator.beta(1.2, 8, examples))
    return _scored(target, np.where(target == 1, positives, negatives))


def _decimals(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.25)
    logit = 1.2 * generator.normal(size=examples) + 1.6 * target - 1.5
    return _scored(target, np.round(_sigmoid(logit), 2))


def _risk(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.05)
    score = np.exp(0.8 * generator.normal(size=examples) + 0.9 * target - 3.5)
    return _scored(target, np.minimum(score, 1.0))


def _heavy_tailed(generator: np.random.Generator, examples: int) -> Scores:
    target = _targets(generator, examples, 0.5)
    return _scored(
        target, _sigmoid(2.5 * generator.standard_t(4, size=examples) + 4 * (target - 0.5))
    )


POPULATIONS: dict[str, Population] = {
    "smooth, 5,000": Population(_normal, 5_000, 1.0),
    "smooth, 5,000, epsilon 0.3": Population(_normal, 5_000, 0.3),
    "smooth, 1,000, epsilon 0.3": Population(_calibrated(0.3, 1.5), 1_000, 0.3),
    "smooth, 200": Population(_calibrated(0.3, 1.5), 200, 1.0),
    "smooth, 200, epsilon 3": Population(_calibrated(0.3, 1.5), 200, 3.0),
    "saturated, epsilon 0.3": Population(_saturated, 20_000, 0.3),
    "saturated": Population(_saturated, 20_000, 1.0),
    "6 values": Population(_rounded(5), 20_000, 1.0),
    "20 values, epsilon 3": Population(_rounded(19), 20_000, 3.0),
    "50 values, epsilon 0.3": Population(_rounded(49), 20_000, 0.3),
    "1% positives": Population(_calibrated(0.01, 1.5), 20_000, 1.0),
    "AUROC 0.998": Population(_calibrated(0.3, 4.07), 20_000, 1.0),
    "zero-inflated, 5,000": Population(_zero_inflated, 5_000, 1.0),
    "smooth, 100,000, epsilon 0.3": Population(_normal, 100_000, 0.3),
    "smooth, 100,000, epsilon 3": Population(_normal, 100_000, 3.0),
    "bimodal, 3,000*": Population(_bimodal, 3_000, 1.0),
    "two decimals, 2,000*": Population(_decimals, 2_000, 1.0),
    "risk scores, 10,000, epsilon 0.5*": Population(_risk, 10_000, 0.5),
    "heavy tails, epsilon 3*": Population(_heavy_tailed, 20_000, 3.0),
}
"""By name. Without a number there are 20,000 examples, without an epsilon it is 1."""


def true_counts(law: Law) -> Floats:
    """Return counts of a population on the bins of a two-sided grid, ``(2, bins)``."""
    generator = np.random.default_rng(11)
    metric = FederatedROC()
    for _ in range(TRUE_EXAMPLES // CHUNK):
        target, score = law(generator, CHUNK)
        metric.update(torch.from_numpy(score), torch.from_numpy(target))
    counts: Floats = metric.release().last.leaf[0].double().numpy()
    return counts
