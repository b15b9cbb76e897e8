"""Quantiles by descent: a plain walk of the tree, one fraction at a time, gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchmetrics_fed.counting import Tree
from torchmetrics_fed.paper.quantiles import tree_quantiles


def walked(levels: list[Tensor], leaves: int, q: float) -> float:
    """The paper's walk for one fraction, on [0, 1]: slow, plain, with its own early stop."""
    left, width, node, cumulated, above = 0.0, 1.0, 0, 0.0, 1
    for level in levels:
        branching, above = len(level) // above, len(level)
        node, width = node * branching, width / branching
        for _ in range(branching - 1):
            fraction = max(level[node].item() / level.sum().item(), 0.0)
            if not cumulated + fraction < q:
                break
            cumulated, node, left = cumulated + fraction, node + 1, left + width
        if abs(q - cumulated) < 1 / (2 * leaves):
            break
    return left


@pytest.mark.parametrize("tree", [Tree.binary(64), Tree((4, 4, 4)), Tree.flat(64), Tree((8, 2, 4))])
def test_descent_equals_the_plain_walk(tree: Tree) -> None:
    generator = torch.Generator().manual_seed(3)
    edges = torch.linspace(0, 1, 65, dtype=torch.float64)
    q = torch.linspace(0, 1, 40, dtype=torch.float64)
    for _ in range(20):
        levels = tree.levels(torch.randint(0, 20, (64,), generator=generator))
        # as noise would leave them: inconsistent between levels, some negative
        levels = [
            level + torch.randint(-5, 6, level.shape, generator=generator) for level in levels
        ]
        if min(level.sum() for level in levels) <= 0:
            continue
        expected = [walked(levels, 64, fraction) for fraction in q.tolist()]
        assert tree_quantiles(levels, edges, q).tolist() == pytest.approx(expected, abs=1e-15)


def test_quantiles_bracket_the_fraction() -> None:
    tree, edges = Tree.binary(256), torch.linspace(0, 1, 257, dtype=torch.float64)
    leaf = torch.randint(0, 30, (256,))
    cdf = torch.cat([torch.zeros(1), leaf.cumsum(0) / leaf.sum()]).double()
    q = torch.linspace(0, 1, 101, dtype=torch.float64)
    at = (tree_quantiles(tree.levels(leaf), edges, q) * 256).round().long()
    tolerance = 1 / 512 + 1e-9
    assert bool((cdf[at] <= q + tolerance).all())
    assert bool((cdf[(at + 1).clamp(max=256)] >= q - tolerance).all())


def test_an_empty_histogram_has_its_quantiles_at_the_lowest_edge() -> None:
    edges = torch.linspace(-1, 1, 9, dtype=torch.float64)
    assert (
        tree_quantiles(
            Tree.binary(8).levels(torch.zeros(8)), edges, torch.tensor([0.0, 0.5, 1.0])
        ).tolist()
        == [-1] * 3
    )
