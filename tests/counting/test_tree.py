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


@pytest.mark.parametrize("weights", [(), (1, 1), (3, 1), (1, 64), (5, 2)])
def test_split_undoes_joining(weights: tuple[int, ...]) -> None:
    tree = Tree((2, 3), weights=weights)
    leaf = torch.randint(0, 1000, (4, 2, 6))
    levels, joined = tree.levels(leaf), tree.joined(leaf)
    assert joined.shape[-1] == tree.cells == 8
    assert joined.dtype == torch.int64
    assert [level.tolist() for level in tree.split(joined)] == [level.tolist() for level in levels]


def test_a_level_counted_w_fold_is_w_times_the_level() -> None:
    """So that an example moves its cells by w, and noise of one size in every cell is a w-th of it there."""
    leaf = torch.tensor([1, 2, 3, 4, 5, 6])
    assert Tree((2, 3), weights=(4, 1)).joined(leaf).tolist() == [24, 60, 1, 2, 3, 4, 5, 6]
    assert Tree((2, 3), weights=(1, 2)).joined(leaf).tolist() == [6, 15, 2, 4, 6, 8, 10, 12]


def test_levels_that_are_counted_once_need_no_weights() -> None:
    tree, same = Tree((2, 3)), Tree((2, 3), weights=(1, 1))
    assert tree == same
    assert hash(tree) == hash(same)
    assert tree.fields == same.fields == [2, 3]
    assert Tree((2, 3), weights=(2, 1)) != tree


@pytest.mark.parametrize(
    "weights", [(1,), (1, 1, 1), (0, 1), (-1, 1), (1, 65), (1.5, 1), (2.0, 1), ("2", 1)]
)
def test_weights_are_ints_one_for_each_level(weights: tuple[int, ...]) -> None:
    """A fraction of a count would not be hidden by noise in integers."""
    with pytest.raises(InputError, match="`weights` to be 2 ints from 1 to 64"):
        Tree((2, 3), weights=weights)


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
