"""Scores that are hard for private curves: ties, spikes, crowds, few positives, little data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["HARD", "Scores"]

Scores = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Targets and scores."""

_EXAMPLES = 20_000


def _separable(
    generator: np.random.Generator,
    examples: int = _EXAMPLES,
    positives: float = 0.3,
    distance: float = 1.5,
) -> Scores:
    """Return scores of a calibrated classifier of two normal classes at some distance."""
    target = (generator.random(examples) < positives).astype(np.int64)
    logit = distance * (generator.normal(size=examples) + distance * (target - 0.5))
    return target, 1 / (1 + np.exp(-logit - np.log(positives / (1 - positives))))


def _exactly(generator: np.random.Generator, positives: int) -> Scores:
    """Return the same scores with a fixed number of positives."""
    target, score = _separable(generator, 4 * _EXAMPLES, 0.3)
    positive_rows = np.flatnonzero(target == 1)[:positives]
    negative_rows = np.flatnonzero(target == 0)[: _EXAMPLES - positives]
    rows = np.concatenate([positive_rows, negative_rows])
    return target[rows], score[rows]


def _rounded(generator: np.random.Generator, steps: int) -> Scores:
    target, score = _separable(generator)
    return target, np.round(score * steps) / steps


def _saturated(generator: np.random.Generator) -> Scores:
    target, _ = _separable(generator)
    logit = 12 * (target - 0.5) + 9 * generator.normal(size=len(target))
    return target, 1 / (1 + np.exp(-2 * logit))


def _constant(generator: np.random.Generator) -> Scores:
    target, score = _separable(generator)
    return target, np.zeros_like(score)


def _narrow(generator: np.random.Generator) -> Scores:
    target, score = _separable(generator)
    return target, 0.4 + 0.02 * score


def _separated(generator: np.random.Generator) -> Scores:
    target, score = _separable(generator)
    return target, 0.3 * score + 0.55 * target  # no edge of a binary tree lies in the gap by itself


HARD: dict[str, Callable[[np.random.Generator], Scores]] = {
    "kNN, 6 values": lambda generator: _rounded(generator, 5),
    "20 values": lambda generator: _rounded(generator, 19),
    "forest, 50 values": lambda generator: _rounded(generator, 49),
    "saturated network": _saturated,
    "constant": _constant,
    "20 positives": lambda generator: _exactly(generator, 20),
    "1% positives": lambda generator: _exactly(generator, 200),
    "inside [0.4, 0.42]": _narrow,
    "100 of 100,000": lambda generator: _separable(generator, 100_000, 0.001),
    "50 examples": lambda generator: _separable(generator, 50, 0.5),
    "200 examples": lambda generator: _separable(generator, 200),
    "1,000 examples": lambda generator: _separable(generator, 1_000),
    "AUROC 0.998": lambda generator: _separable(generator, distance=4.07),
    "separated": _separated,
}
"""Functions from a generator to scores."""
