"""Leaves of each of two models, and where their scores are."""

from __future__ import annotations

import numpy as np
import torch

from torchmetrics_fed.counting import ScoreGrid, Table
from torchmetrics_fed.reconstruct.consistency import non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Sum


def noisy_leaves(seen: Sum) -> list[NoisyLeaves]:
    """Return the leaves of each model; those of a joint table are sums of cells, and hold the noise of each."""
    table = seen.query.tree
    assert isinstance(table, Table)
    levels, variance = [level[0].double().numpy() for level in seen.levels], seen.noise_variance
    if table.joint:
        pairs = levels[0].reshape(2, *table.branching)
        levels = [pairs.sum(2), pairs.sum(1)]
    times = reversed(table.branching) if table.joint else (1, 1)
    each = zip(table.axes, levels, times, strict=True)
    return [NoisyLeaves(np.array(axis), leaf, variance * many) for axis, leaf, many in each]


def mass_of(known: NoisyLeaves, grid: ScoreGrid) -> ScoreMass:
    """Return where the scores of one model are."""
    leaves = non_negative([torch.from_numpy(known.counts[None])])[0].numpy()
    return ScoreMass.fitted([[known]], leaves, known.edges, grid)
