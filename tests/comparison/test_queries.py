"""Queries for two models: placed by private sums only, with thresholds on edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchmetrics_fed import CentralDP, FederatedModelComparison, InputError, Query, Spec
from torchmetrics_fed.comparison.queries import even_tables, pilot_tables, placed_tables
from torchmetrics_fed.counting import Table
from torchmetrics_fed.release import Sum

THRESHOLDS = (0.3, 0.7)


def spec_of(epsilon: float = 1.0) -> Spec:
    metric = FederatedModelComparison(privacy=CentralDP(epsilon), thresholds=THRESHOLDS)
    return metric.spec


def placed(examples: int, epsilon: float = 1.0) -> Query:
    """Return the query that a pilot places, with even scores and as many of each class."""
    spec = spec_of(epsilon)
    pilot = pilot_tables(spec.grid)
    cells = torch.full(spec.shape(pilot), examples // 32)
    return placed_tables(Sum(spec, pilot, cells), 1 - pilot.fraction)


def axes_of(query: Query) -> tuple[tuple[int, ...], ...]:
    assert isinstance(query.tree, Table)
    return tuple(query.tree.axes)


def test_fractions_add_up_to_1() -> None:
    assert pilot_tables(spec_of().grid).fraction + placed(10_000).fraction == 1


@pytest.mark.parametrize(
    "query", [even_tables(spec_of()), placed(1_000), placed(100_000)], ids=["even", "few", "many"]
)
def test_thresholds_are_edges_of_a_table(query: Query) -> None:
    edges = spec_of().grid.edges
    for axis, threshold in zip(axes_of(query), THRESHOLDS, strict=True):
        assert threshold in edges[list(axis)].tolist()
        assert bool((np.diff(axis) > 0).all())
        assert axis[0] == 0
        assert axis[-1] == len(edges) - 1


def test_more_examples_and_more_epsilon_feed_more_leaves() -> None:
    by_examples = [placed(examples).tree.leaves for examples in (1_000, 10_000, 1_000_000)]
    by_epsilon = [placed(10_000, epsilon).tree.leaves for epsilon in (0.1, 1.0, 10.0)]
    assert by_examples == sorted(by_examples)
    assert by_examples[-1] > by_examples[0]
    assert by_epsilon == sorted(by_epsilon)
    assert by_epsilon[-1] > by_epsilon[0]


def test_a_table_is_never_placed_by_exact_counts() -> None:
    metric = FederatedModelComparison()
    metric.update(torch.rand(50), torch.rand(50), torch.randint(0, 2, (50,)))
    with pytest.raises(InputError, match="private release"):
        placed_tables(metric.release().last, 1.0)
