"""Every level of a tree holds the same examples."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed import InputError
from torchmetrics_fed.counting import Tree


@pytest.mark.parametrize("tree", [Tree.flat(24), Tree.binary(32), Tree((3, 4, 2)), Tree((16, 16))])
def test_a_node_is_the_sum_of_its_children(tree: Tree) -> None:
    leaf = torch.randint(0, 100, (3, 2, tree.leaves))
    levels = tree.levels(leaf)
    assert torch.equal(levels[-1], leaf)
    for number in range(1, len(levels)):
        children = levels[number].unflatten(-1, (-1, tree.branching[number]))
        assert torch.equal(children.sum(-1), levels[number - 1])


def test_leaves_are_sums_of_their_bins() -> None:
    counts = torch.randint(0, 100, (3, 2, 8))
    placed = Tree((2, 2), edges=(0, 1, 2, 5, 8))
    bins = [counts[..., :1], counts[..., 1:2], counts[..., 2:5], counts[..., 5:]]
    assert torch.equal(placed.leaf(counts), torch.stack([part.sum(-1) for part in bins], -1))
    assert torch.equal(Tree((2, 2)).leaf(counts), counts.unflatten(-1, (4, 2)).sum(-1))


@pytest.mark.parametrize("edges", [(0, 1, 2, 3), (1, 2, 3, 4, 5), (0, 2, 1, 3, 4)])
def test_edges_ascend_from_0(edges: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="edges"):
        Tree((2, 2), edges)


def test_split_undoes_joining() -> None:
    tree = Tree((2, 3))
    leaf = torch.randint(0, 1000, (4, 2, 6))
    joined = tree.joined(leaf)
    assert joined.shape[-1] == tree.cells == 8
    assert joined.dtype == torch.int64
    for part, level in zip(tree.split(joined), tree.levels(leaf), strict=True):
        assert torch.equal(part, level)


@pytest.mark.parametrize("branching", [(), (1, 2), (4, 0)])
def test_branching_must_branch(branching: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="branching"):
        Tree(branching)


@pytest.mark.parametrize("height", range(1, 20))
def test_the_balanced_tree_covers_the_bins_with_small_families(height: int) -> None:
    tree = Tree.balanced(2**height)
    assert tree.leaves == 2**height
    assert max(tree.branching) <= 16
    assert max(tree.branching) <= 2 * min(tree.branching)


def test_bins_of_custom_edges_are_one_level() -> None:
    assert Tree.balanced(37).branching == (37,)


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="8 leaves"):
        Tree.binary(8).levels(torch.zeros(7))
    with pytest.raises(InputError, match="power of two"):
        Tree.binary(6)
