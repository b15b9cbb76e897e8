"""Leaves of two models: the margins of their tables, with the noise of all cells that they sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import CentralDP, FederatedModelComparison, Query
from torchmetrics_fed.comparison.leaves import mass_of, noisy_leaves
from torchmetrics_fed.comparison.queries import pilot_tables
from torchmetrics_fed.counting import Table
from torchmetrics_fed.release import Sum

SPEC = FederatedModelComparison(privacy=CentralDP(1.0)).spec
BINS = SPEC.grid.bins
ROWS = (0, 60, 200, BINS)
COLUMNS = (0, 30, 100, 220, BINS)


def test_the_leaves_of_a_joint_table_are_sums_of_its_cells() -> None:
    query = Query(Table((3, 4), (*ROWS, *COLUMNS)))
    cells = torch.arange(24).reshape(SPEC.shape(query))
    total = Sum(SPEC, query, cells)
    first, second = noisy_leaves(total)
    tables = cells.reshape(2, 3, 4).numpy()
    assert np.array_equal(first.counts, tables.sum(2))
    assert np.array_equal(second.counts, tables.sum(1))
    assert np.array_equal(first.edges, ROWS)
    assert np.array_equal(second.edges, COLUMNS)
    assert first.variance == 4 * total.noise_variance
    assert second.variance == 3 * total.noise_variance


def test_a_pilot_counts_each_model_by_itself() -> None:
    query = pilot_tables(SPEC.grid)
    total = Sum(SPEC, query, torch.arange(128).reshape(SPEC.shape(query)))
    for leaves, level in zip(noisy_leaves(total), total.levels, strict=True):
        assert np.array_equal(leaves.counts, level[0].numpy())
        assert leaves.variance == total.noise_variance


def test_the_mass_of_a_model_follows_its_leaves() -> None:
    query = pilot_tables(SPEC.grid)
    cells = torch.full(SPEC.shape(query), 1000)
    for leaves in noisy_leaves(Sum(SPEC, query, cells)):
        mass = mass_of(leaves, SPEC.grid)
        assert mass.sizes[0] == pytest.approx([32_000, 32_000])
        assert mass.below == pytest.approx(SPEC.grid.coordinate, abs=0.02)
