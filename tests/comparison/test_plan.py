"""TablePlacement: a pilot counts each model by itself, other queries both models in one table."""

from __future__ import annotations

import torch

from torchmetrics_fed import CentralDP, FederatedModelComparison
from torchmetrics_fed.comparison.plan import TABLES
from torchmetrics_fed.counting.tree import Table


def test_a_pilot_counts_each_model_by_itself() -> None:
    spec = FederatedModelComparison(privacy=CentralDP(epsilon=1.0)).spec
    query = TABLES.pilot(spec)
    assert isinstance(query.tree, Table)
    assert not query.tree.joint
    assert 0 < query.fraction < 1


def test_a_single_query_counts_both_models_in_one_table() -> None:
    spec = FederatedModelComparison(privacy=CentralDP(epsilon=1.0)).spec
    query = TABLES.single(spec)
    assert isinstance(query.tree, Table)
    assert query.tree.joint
    assert query.fraction == 1


def test_a_placed_table_has_the_thresholds_among_its_edges() -> None:
    metric = FederatedModelComparison(privacy=CentralDP(epsilon=1.0), thresholds=(0.25, 0.7))
    target = torch.randint(0, 2, (3000,))
    metric.update(torch.rand(3000), torch.rand(3000), target)
    pilot = metric.release().sums[0]
    query = TABLES.placed(pilot, 0.5)
    assert query.fraction == 0.5
    assert isinstance(query.tree, Table)
    rows, columns = query.tree.axes
    edges = metric.spec.grid.edges
    assert 0.25 in edges[list(rows)].tolist()
    assert 0.7 in edges[list(columns)].tolist()
