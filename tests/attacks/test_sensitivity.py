"""Threat 8: the sensitivity is misread. Brute force over every neighbour of small data, through the real pipeline."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

GRID = ScoreGrid(bins=8)
SPEC = Spec("binary", 1, GRID)
PERSON = list(product([0.05, 0.3, 0.9], [0, 1]))  # scores in different parts of the tree, both labels


def cells(examples: list[tuple[float, int]], query: Query) -> Tensor:
    scores = torch.tensor([score for score, _ in examples], dtype=torch.float64)
    labels = torch.tensor([label for _, label in examples], dtype=torch.int64)
    return SPEC.cells(query, GRID.add(GRID.empty(), scores, labels))


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("tree", [Tree.flat(8), Tree((2, 4)), Tree.binary(8)])
@pytest.mark.parametrize("examples_per_person", [1, 2])
def test_no_neighbour_is_further(neighbours: Neighbours, tree: Tree, examples_per_person: int) -> None:
    query = Query(tree)
    declared = Sensitivity.of(
        "binary", 1, len(tree.branching), neighbours=neighbours, examples_per_person=examples_per_person
    )
    rest = [(0.4, 0), (0.8, 1)]
    people = [list(person) for person in combinations_with_replacement(PERSON, examples_per_person)]
    bases: list[list[tuple[float, int]]] = [[]] if neighbours == "add_remove" else people
    distances = [cells(rest + base, query) - cells(rest + person, query) for base, person in product(bases, people)]
    assert max(int(d.abs().sum()) for d in distances) == declared.l1
    assert max(int(d.square().sum()) for d in distances) == declared.l2_squared
    assert max(int(d.abs().max()) for d in distances) == max(shift for shift, _ in declared.shifts)


def test_forgetting_the_levels_would_be_caught() -> None:
    query = Query(Tree.binary(8))
    naive = Sensitivity.of("binary", 1, levels=1)
    assert int((cells(PERSON[:1], query) - cells([], query)).abs().sum()) > naive.l1
