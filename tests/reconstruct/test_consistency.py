"""Post-processing: the least-squares solution, exactly, and the nearest non-negative tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed.counting import Tree
from torchmetrics_fed.reconstruct.consistency import least_squares, non_negative, siblings

TREES = [Tree.binary(16), Tree((4, 4)), Tree((2, 3, 2)), Tree((5,)), Tree((3, 2, 4))]


def noisy(tree: Tree, *leading: int) -> list[Tensor]:
    leaf = torch.randint(0, 40, (*leading, tree.leaves))
    return [level + torch.randint(-30, 31, level.shape) for level in tree.levels(leaf)]


def is_consistent(levels: list[Tensor]) -> bool:
    return all(
        torch.allclose(siblings(levels, index).sum(-1), levels[index - 1], atol=1e-9) for index in range(1, len(levels))
    )


@pytest.mark.parametrize("tree", TREES)
def test_least_squares_is_the_dense_solution(tree: Tree) -> None:
    levels = noisy(tree)
    # every cell observes the sum of the leaves below it
    design = torch.cat([level.double() for level in tree.levels(torch.eye(tree.leaves))], -1).T.numpy()
    solution, *_ = np.linalg.lstsq(design, torch.cat(levels).double().numpy(), rcond=None)
    result = least_squares(levels)
    assert result[-1].numpy() == pytest.approx(solution, abs=1e-9)
    assert is_consistent(result)


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
        assert all(torch.allclose(a, b.double(), atol=1e-9) for a, b in zip(result, levels, strict=True))


def test_nothing_or_less_is_nothing() -> None:
    assert non_negative([torch.tensor([-3.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])])[-1].sum() == 0
