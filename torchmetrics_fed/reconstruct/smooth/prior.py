"""An earlier release as data: what it said, worth as much as the new one agrees with it."""

from __future__ import annotations

import numpy as np

from torchmetrics_fed.reconstruct.placement import ScoreMass
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.typing import Floats

__all__ = ["weighed"]


def weighed(leaves: NoisyLeaves, before: ScoreMass, number: int) -> list[NoisyLeaves]:
    r"""Return what the release before said of a class, as an answer with the variance that the new leaves give it.

    Scaled to the new class sizes N, its leaves hold :math:`\lambda`. The new leaves y differ from what it predicts for
    them by their own noise v, by sampling in both, by its noise w, and by what the model has changed since. That last
    part is :math:`\tau^2 \lambda^2` with :math:`\tau^2 = \sum ((y - \lambda)^2 - v - w - 2\lambda) / \sum \lambda^2`: a
    model that jumped makes it large, and what the release before said is then worth nothing.
    """
    said = before.said[number]
    sizes = np.maximum(leaves.counts.sum(1, keepdims=True), 1.0)
    scale = sizes / before.sizes[number][:, None]
    predicted = np.diff(before.rows_below(number)[:, leaves.edges], axis=1) * sizes
    noise = scale**2 * said.variance * said.counts.shape[1] / predicted.shape[1]
    expected = leaves.variance + predicted * (1 + scale) + noise
    changed = _relative((leaves.counts - predicted) ** 2 - expected, predicted)
    counts = said.counts * scale
    variance = scale**2 * said.variance + np.maximum(counts, 0) * scale + changed * np.maximum(counts, 0) ** 2
    return [NoisyLeaves(said.edges, counts, variance)]


def _relative(squares: Floats, size: Floats) -> Floats:
    ratio: Floats = np.maximum(squares.sum(1, keepdims=True) / (size**2).sum(1, keepdims=True), 0.0)
    return ratio
