"""Post-processing: the least-squares solution, exactly, and the nearest non-negative tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.queries import level_weights, rows_of, weighted
from torchmetrics_fed import Query
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct.consistency import (
    least_squares,
    non_negative,
    posterior,
    siblings,
)
from torchmetrics_fed.typing import Floats

TREES = [Tree.binary(16), Tree((4, 4)), Tree((2, 3, 2)), Tree((5,)), Tree((3, 2, 4))]


def noisy(tree: Tree, *leading: int) -> list[Tensor]:
    """Return the levels of a tree with integer noise, ``(*leading, size)`` each."""
    leaf = torch.randint(0, 40, (*leading, tree.leaves))
    return [level + torch.randint(-30, 31, level.shape) for level in tree.levels(leaf)]


def is_consistent(levels: list[Tensor]) -> bool:
    """Return whether families add up to their parents."""
    return all(
        torch.allclose(siblings(levels, index).sum(-1), levels[index - 1], atol=1e-9)
        for index in range(1, len(levels))
    )


@pytest.mark.parametrize("tree", TREES)
def test_least_squares_is_the_dense_solution(tree: Tree) -> None:
    levels = noisy(tree)
    solution, *_ = np.linalg.lstsq(design_of(tree), torch.cat(levels).double().numpy(), rcond=None)
    result = least_squares(levels)
    assert result[-1].numpy() == pytest.approx(solution, abs=1e-9)
    assert is_consistent(result)


WEIGHTED = [
    weighted(Tree((4, 4)), 4, 1),
    weighted(Tree((2, 3, 2)), 1, 5, 2),
    weighted(Tree((3, 2, 4)), 4, 1, 1),
    weighted(Tree((5,)), 3),
]


def design_of(tree: Tree) -> Floats:
    """Return which leaves each cell is the sum of, ``(cells, leaves)``."""
    levels = tree.levels(torch.eye(tree.leaves, dtype=torch.float64))
    return torch.cat(levels, -1).T.numpy()


@pytest.mark.parametrize("query", WEIGHTED, ids=str)
def test_weighted_levels_are_generalised_least_squares(query: Query) -> None:
    """Cells of variance 1 / weight^2, solved densely."""
    tree = query.tree
    levels = noisy(tree)
    design = design_of(tree)
    precision = np.repeat(np.square(level_weights(query)), tree.sizes)
    cells = torch.cat(levels).double().numpy()
    solution = np.linalg.solve(design.T * precision @ design, design.T * precision @ cells)
    result = least_squares(levels, rows_of(*level_weights(query)))
    assert result[-1].numpy() == pytest.approx(solution, abs=1e-9)
    assert is_consistent(result)


@pytest.mark.parametrize("tree", [Tree((4, 4)), Tree((2, 3, 2)), Tree((5,))], ids=str)
def test_nodes_with_weights_of_their_own_are_generalised_least_squares(tree: Tree) -> None:
    """Negatives and positives, and the nodes of a level, have different weights."""
    rng = np.random.default_rng(5)
    weights = [rng.integers(1, 9, (2, size)) for size in tree.sizes]
    levels = noisy(tree, 2)
    design = design_of(tree)
    result = least_squares(levels, weights)
    assert is_consistent(result)
    for row in range(2):
        precision = np.concatenate([level[row] for level in weights]) ** 2
        cells = np.concatenate([level[row].double().numpy() for level in levels])
        solution = np.linalg.solve(design.T * precision @ design, design.T * precision @ cells)
        assert result[-1][row].numpy() == pytest.approx(solution, abs=1e-9)


def test_least_squares_without_its_weights_is_another_solution() -> None:
    """The power of the test above."""
    query = WEIGHTED[0]
    levels = noisy(query.tree)
    weighted_leaf = least_squares(levels, rows_of(*level_weights(query)))[-1]
    assert not torch.allclose(weighted_leaf, least_squares(levels)[-1], atol=0.1)


def test_equal_weights_change_nothing() -> None:
    levels = noisy(Tree((2, 3, 2)))
    equal = least_squares(levels, rows_of(7, 7, 7))
    assert torch.allclose(equal[-1], least_squares(levels)[-1], atol=1e-9)


@pytest.mark.parametrize("query", [*map(Query, TREES), *WEIGHTED], ids=str)
def test_the_posterior_is_the_dense_one(query: Query) -> None:
    """Counts with mean and variance ``expected``: Gaussian conditioning, solved densely."""
    tree = query.tree
    rng = np.random.default_rng(11)
    expected = rng.uniform(0.5, 40, (2, tree.leaves))
    variances = [9.0 / weight**2 for weight in level_weights(query)]
    levels = [level.double().numpy() for level in noisy(tree, 2)]
    design = design_of(tree)
    noise = np.diag(np.repeat(variances, tree.sizes))
    result = posterior(levels, variances, expected)
    for row in range(2):
        mean = expected[row]
        prior = np.diag(mean)
        gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise)
        cells = np.concatenate([level[row] for level in levels])
        assert result[row] == pytest.approx(mean + gain @ (cells - design @ mean), abs=1e-8)


def test_a_posterior_lies_between_expected_and_noisy_counts() -> None:
    """Without noise it is the counts, with endless noise the expected counts."""
    rng = np.random.default_rng(2)
    leaf = rng.poisson(20, (2, 12)).astype(np.float64)
    levels = [level.numpy() for level in Tree((3, 4)).levels(torch.from_numpy(leaf))]
    expected = rng.uniform(1, 40, (2, 12))
    assert posterior(levels, (1e-9, 1e-9), expected) == pytest.approx(leaf, abs=1e-6)
    assert posterior(levels, (1e15, 1e15), expected) == pytest.approx(expected, abs=1e-6)


def test_the_posterior_of_leaves_without_expected_examples_is_0() -> None:
    leaf = np.full((2, 12), 20.0)
    levels = [level.numpy() for level in Tree((3, 4)).levels(torch.from_numpy(leaf))]
    expected = np.full((2, 12), 15.0)
    expected[:, 0] = 0.0
    assert posterior(levels, (4.0, 4.0), expected)[:, 0].tolist() == [0.0, 0.0]
    nothing = np.zeros((2, 12))
    assert np.array_equal(posterior(levels, (4.0, 4.0), nothing), nothing)


def test_least_squares_is_hays_for_binary_trees() -> None:
    """Hay et al. 2010, equation 3, for height i.

    z = ((2^i - 2^(i-1)) h + (2^(i-1) - 1) sum z_child) / (2^i - 1).
    """
    tree = Tree.binary(16)
    levels = noisy(tree)
    z = [level.double() for level in levels]
    for index in range(len(levels) - 2, -1, -1):
        height = len(levels) - index
        weight = (2**height - 2 ** (height - 1)) / (2**height - 1)
        z[index] = weight * z[index] + (1 - weight) * siblings(z, index + 1).sum(-1)
    for index in range(1, len(levels)):
        lack = (z[index - 1] - siblings(z, index).sum(-1)) / 2
        z[index] = z[index] + lack.repeat_interleave(2)
    assert torch.allclose(least_squares(levels)[-1], z[-1], atol=1e-10)


@pytest.mark.parametrize("tree", TREES)
def test_projection_is_non_negative_consistent_and_keeps_the_total(tree: Tree) -> None:
    levels = least_squares(noisy(tree, 7, 2))
    result = non_negative(levels)
    assert all(bool((level >= 0).all()) for level in result)
    assert is_consistent(result)
    assert torch.allclose(result[-1].sum(-1), levels[0].sum(-1).clamp(min=0), atol=1e-9)


def test_projection_is_the_nearest_point() -> None:
    family = torch.tensor([3.0, -1.0, 0.5, 1.0], dtype=torch.float64)
    (nearest,) = non_negative([family])
    distance = (nearest - family).square().sum()
    for _ in range(2_000):
        point = torch.rand(4, dtype=torch.float64)
        point *= family.sum() / point.sum()
        assert (point - family).square().sum() >= distance - 1e-12


@pytest.mark.parametrize("process", [least_squares, non_negative])
def test_a_consistent_tree_stays(process: Callable[[list[Tensor]], list[Tensor]]) -> None:
    levels = Tree((4, 4)).levels(torch.randint(0, 50, (3, 2, 16)))
    for level, before in zip(process(levels), levels, strict=True):
        assert torch.allclose(level, before.double(), atol=1e-9)


def test_a_total_below_0_is_projected_to_0() -> None:
    levels = [torch.tensor([-3.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])]
    assert non_negative(levels)[-1].sum() == 0
