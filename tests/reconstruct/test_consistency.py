"""Post-processing: the least-squares solution, exactly, and the nearest non-negative tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.queries import weighted
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
    leaf = torch.randint(0, 40, (*leading, tree.leaves))
    return [level + torch.randint(-30, 31, level.shape) for level in tree.levels(leaf)]


def is_consistent(levels: list[Tensor]) -> bool:
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
    """Every cell observes the sum of the leaves below it, ``(cells, leaves)``."""
    return torch.cat(
        [level.double() for level in tree.levels(torch.eye(tree.leaves))], -1
    ).T.numpy()


@pytest.mark.parametrize("query", WEIGHTED, ids=str)
def test_weighted_levels_are_generalised_least_squares(query: Query) -> None:
    """Cells of variance 1 / weight^2, solved densely; and weights that are all alike change nothing."""
    tree = query.tree
    levels, design = noisy(tree), design_of(tree)
    trust = np.repeat(np.square(query.level_weights), tree.sizes)
    seen = torch.cat(levels).double().numpy()
    solution = np.linalg.solve(design.T * trust @ design, design.T * trust @ seen)
    result = least_squares(levels, query.level_weights)
    assert result[-1].numpy() == pytest.approx(solution, abs=1e-9)
    assert is_consistent(result)
    alike, plain = least_squares(levels, [7] * len(levels)), least_squares(levels)
    assert all(
        torch.allclose(one, other, atol=1e-9) for one, other in zip(alike, plain, strict=True)
    )


def test_least_squares_without_its_weights_is_another_solution() -> None:
    """The power of the test above."""
    query = WEIGHTED[0]
    levels = noisy(query.tree)
    assert not torch.allclose(
        least_squares(levels, query.level_weights)[-1], least_squares(levels)[-1], atol=0.1
    )


@pytest.mark.parametrize("query", [*map(Query, TREES), *WEIGHTED], ids=str)
def test_the_posterior_is_the_dense_one(query: Query) -> None:
    """Counts with mean and variance ``expected``, observed by noisy cells: Gaussian conditioning, solved densely."""
    tree = query.tree
    rng = np.random.default_rng(11)
    expected = rng.uniform(0.5, 40, (2, tree.leaves))
    variances = [9.0 / weight**2 for weight in query.level_weights]
    levels = [level.double().numpy() for level in noisy(tree, 2)]
    design, noise = design_of(tree), np.diag(np.repeat(variances, tree.sizes))
    found = posterior(levels, variances, expected)
    for row in range(2):
        prior = np.diag(expected[row])
        gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise)
        seen = np.concatenate([level[row] for level in levels])
        assert found[row] == pytest.approx(
            expected[row] + gain @ (seen - design @ expected[row]), abs=1e-8
        )


def test_a_posterior_lies_between_what_is_expected_and_what_is_seen() -> None:
    """Without noise it is what was seen, with endless noise what was expected, and what nobody expects is nobody."""
    tree, rng = Tree((3, 4)), np.random.default_rng(2)
    leaf = rng.poisson(20, (2, 12)).astype(np.float64)
    levels = [level.numpy() for level in tree.levels(torch.from_numpy(leaf))]
    expected = rng.uniform(1, 40, (2, 12))
    expected[:, 0] = 0.0
    known = posterior(levels, (1e-9, 1e-9), np.maximum(expected, 1.0))
    assert known == pytest.approx(leaf, abs=1e-6)
    assert posterior(levels, (1e15, 1e15), expected) == pytest.approx(expected, abs=1e-6)
    assert posterior(levels, (4.0, 4.0), expected)[:, 0].tolist() == [0.0, 0.0]
    assert posterior(levels, (4.0, 4.0), np.zeros((2, 12))).tolist() == np.zeros((2, 12)).tolist()


def test_least_squares_is_hays_for_binary_trees() -> None:
    """Hay et al. 2010, equation 3: z = ((2^i - 2^(i-1)) h + (2^(i-1) - 1) sum z_child) / (2^i - 1) for height i."""
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
    family = torch.tensor([[3.0, -1.0, 0.5, 1.0]], dtype=torch.float64)
    total = family.sum()
    nearest = non_negative([family[0]])[0]
    distance = (nearest - family[0]).square().sum()
    for _ in range(2_000):
        other = torch.rand(4, dtype=torch.float64)
        other *= total / other.sum()
        assert (other - family[0]).square().sum() >= distance - 1e-12


def test_what_is_consistent_already_stays() -> None:
    tree = Tree((4, 4))
    levels = tree.levels(torch.randint(0, 50, (3, 2, 16)))
    for result in (least_squares(levels), non_negative(levels)):
        assert all(
            torch.allclose(a, b.double(), atol=1e-9) for a, b in zip(result, levels, strict=True)
        )


def test_nothing_or_less_is_nothing() -> None:
    assert (
        non_negative([torch.tensor([-3.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])])[-1].sum() == 0
    )
