"""Leaves of each of two models, and where their scores are."""

from __future__ import annotations

import numpy as np
import torch

from torchmetrics_fed.counting import ScoreGrid, Table
from torchmetrics_fed.reconstruct.consistency import non_negative
from torchmetrics_fed.reconstruct.smooth.density import NoisyLeaves
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Sum


def noisy_leaves(total: Sum) -> list[NoisyLeaves]:
    """Return the leaves of the first and of the second model.

    A pilot counts each model by itself. The leaves of a joint table are sums of its cells, with the
    noise of all of them.
    """
    table = total.query.tree
    assert isinstance(table, Table)
    levels = [level[0].double().numpy() for level in total.levels]
    first_edges, second_edges = (np.array(axis) for axis in table.axes)
    variance = total.noise_variance
    if not table.joint:
        first, second = levels
        return [
            NoisyLeaves(first_edges, first, variance),
            NoisyLeaves(second_edges, second, variance),
        ]
    rows, columns = table.branching
    cells = levels[0].reshape(2, rows, columns)
    return [
        NoisyLeaves(first_edges, cells.sum(2), variance * columns),
        NoisyLeaves(second_edges, cells.sum(1), variance * rows),
    ]


def mass_of(leaves: NoisyLeaves, grid: ScoreGrid) -> ScoreMass:
    """Return where the scores of one model are."""
    (projected,) = non_negative([torch.from_numpy(leaves.counts[None])])
    return ScoreMass.fitted([[leaves]], leaf=projected.numpy(), places=leaves.edges, grid=grid)
