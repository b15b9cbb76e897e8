"""An earlier release as data: what it said, worth as much as the new one agrees with it."""

from __future__ import annotations

import numpy as np

from torchmetrics_fed.reconstruct.placement import ScoreMass
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves

# A model that changed more than this, relative to its counts, has jumped. Training moves it by 0.1 to 0.5.
_JUMP = 0.55


def weighed(leaves: NoisyLeaves, before: ScoreMass, number: int) -> NoisyLeaves | None:
    r"""Return what the release before said of a class, as an answer with the variance that the new leaves give it.

    Scaled to the new class sizes, its leaves hold :math:`\lambda`. The new leaves y differ from what it predicts for
    them by their own noise v, by sampling in both, by its noise w, and by what the model has changed since. That last
    part is :math:`\tau^2 \lambda^2` with :math:`\tau^2 = \sum ((y - \lambda)^2 - v - w - 2\lambda) / \sum \lambda^2`. A
    model that jumped has nothing in common with it: None.
    """
    if not before.said or not all(before.smooth):
        return None
    said = before.said[number]
    sizes = np.maximum(leaves.counts.sum(1, keepdims=True), 1.0)
    scale = sizes / before.sizes[number][:, None]
    predicted = np.diff(before.rows_below()[:, leaves.edges], axis=1) * sizes
    noise = scale**2 * said.variance * said.counts.shape[1] / predicted.shape[1]
    beyond = (leaves.counts - predicted) ** 2 - leaves.variance - noise - predicted * (1 + scale)
    changed = np.maximum(beyond.sum(1, keepdims=True) / (predicted**2).sum(1, keepdims=True), 0.0)
    if changed.max() > _JUMP**2:
        return None
    counts = said.counts * scale
    size = np.maximum(counts, 0)
    return NoisyLeaves(said.edges, counts, scale**2 * said.variance + size * scale + changed * size**2)
