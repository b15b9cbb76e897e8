"""The tree: every level holds the same examples."""

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
    for parent, child, branching in zip(levels, levels[1:], tree.branching[1:], strict=False):
        assert torch.equal(child.unflatten(-1, (-1, branching)).sum(-1), parent)


def test_split_undoes_joining() -> None:
    tree = Tree((2, 3))
    leaf = torch.randint(0, 1000, (4, 2, 6))
    levels, joined = tree.levels(leaf), tree.joined(leaf)
    assert joined.shape[-1] == tree.cells == 8
    assert joined.dtype == torch.int64
    assert [level.tolist() for level in tree.split(joined)] == [level.tolist() for level in levels]


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
