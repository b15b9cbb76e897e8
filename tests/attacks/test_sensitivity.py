"""Threat 8: the sensitivity is misread. Brute force over every neighbour of small data, through the real pipeline."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.queries import weighted
from torchmetrics_fed import FederatedROC, Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

GRID = ScoreGrid(bins=8)
SPEC = Spec("binary", 1, GRID)
PERSON = list(
    product([0.05, 0.3, 0.9], [0, 1])
)  # scores in different parts of the tree, both labels


def cells(examples: list[tuple[float, int]], query: Query) -> Tensor:
    scores = torch.tensor([score for score, _ in examples], dtype=torch.float64)
    labels = torch.tensor([label for _, label in examples], dtype=torch.int64)
    return SPEC.cells(query, GRID.add(GRID.empty(), scores, labels))


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "query",
    [
        Query(Tree.flat(8)),
        Query(Tree((2, 4))),
        Query(Tree.binary(8)),
        weighted(Tree((2, 4)), 4, 1),
        weighted(Tree((2, 2, 2)), 4, 1, 1),
        weighted(Tree((2, 2, 2), (0, 1, 2, 3, 4, 5, 6, 7, 8)), 1, 3, 2),
        weighted(Tree((8,)), 7),
    ],
    ids=str,
)
@pytest.mark.parametrize("examples_per_person", [1, 2])
def test_no_neighbour_is_further(
    neighbours: Neighbours, query: Query, examples_per_person: int
) -> None:
    declared = Sensitivity.of(
        "binary",
        1,
        query.level_weights,
        neighbours=neighbours,
        examples_per_person=examples_per_person,
    )
    rest = [(0.4, 0), (0.8, 1)]
    people = [list(person) for person in combinations_with_replacement(PERSON, examples_per_person)]
    bases: list[list[tuple[float, int]]] = [[]] if neighbours == "add_remove" else people
    distances = [
        cells(rest + base, query) - cells(rest + person, query)
        for base, person in product(bases, people)
    ]
    assert max(int(d.abs().sum()) for d in distances) == declared.l1
    assert max(int(d.square().sum()) for d in distances) == declared.l2_squared
    assert max(int(d.abs().max()) for d in distances) == max(shift for shift, _ in declared.shifts)


def test_forgetting_the_levels_would_be_caught() -> None:
    query = Query(Tree.binary(8))
    naive = Sensitivity.of("binary", 1, levels=1)
    assert int((cells(PERSON[:1], query) - cells([], query)).abs().sum()) > naive.l1


@pytest.mark.parametrize("weights", [(4, 1, 1), (1, 1, 2)])
def test_forgetting_the_weights_would_be_caught(weights: tuple[int, ...]) -> None:
    naive = Sensitivity.of("binary", 1, levels=3)
    moved = cells(PERSON[:1], weighted(Tree((2, 2, 2)), *weights)) - cells(
        [], Query(Tree((2, 2, 2)))
    )
    assert int(moved.abs().sum()) > naive.l1


TASKS: dict[str, dict[str, Any]] = {
    "binary": {"task": "binary"},
    "multiclass": {"task": "multiclass", "num_classes": 3},
    "one against one": {"task": "multiclass", "num_classes": 3, "multi_class": "ovo"},
    "multilabel": {"task": "multilabel", "num_labels": 2},
}
SCORES = (0.05, 0.9, 0.3)


def people(options: dict[str, Any], most: int, query: Query) -> tuple[Tensor, Spec]:
    """The cells of every person with up to ``most`` examples, none included, as a metric counts and a query asks."""
    metric = FederatedROC(**options, grid=ScoreGrid.even(2))
    classes = metric.spec.classes
    singles = [torch.zeros_like(metric.spec.cells(query, metric.spec.empty_counts()))]
    for row in product(SCORES[: 2 if classes > 2 else 3], repeat=classes):
        targets: list[Any] = list(product((0, 1), repeat=classes))
        if options["task"] != "multilabel":
            targets = list(range(max(classes, 2)))
        for target in targets:
            metric.reset()
            metric.update(torch.tensor([row if classes > 1 else row[0]]), torch.tensor([target]))
            singles.append(metric.spec.cells(query, metric.release().leaf))
    unique = torch.stack(singles).flatten(1).unique(dim=0)
    sums = [torch.stack(chosen).sum(0) for chosen in combinations_with_replacement(unique, most)]
    return torch.stack(sums).unique(dim=0), metric.spec


def largest_first(change: Tensor) -> Tensor:
    """How far the one cell moves that moves most, the two that do, ...: sums of the largest changes."""
    return change.abs().sort(-1, descending=True).values.cumsum(-1)


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("weights", [(1, 1), (4, 1), (2, 3)])
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_no_change_exceeds_the_declared_shifts(
    task: str, most: int, weights: tuple[int, ...], neighbours: Neighbours
) -> None:
    """Of any number of cells, those that move most do not move further than as many of the declared shifts."""
    persons, spec = people(TASKS[task], most, weighted(Tree((2, 4)), *weights))
    declared = Sensitivity.of(
        spec.task, spec.classes, weights, neighbours=neighbours, examples_per_person=most
    )
    shifts = torch.tensor([shift for shift, cells in declared.shifts for _ in range(cells)])
    bound = torch.full(persons.shape[1:], int(shifts.sum()))
    bound[: len(shifts)] = largest_first(shifts)[: len(bound)]
    reached = torch.zeros_like(bound)
    for other in persons[:1] * 0 if neighbours == "add_remove" else persons:
        reached = reached.maximum(largest_first(persons - other).amax(0))
    assert bool((reached <= bound).all())
    assert int(reached[-1]) == declared.l1  # and it is no larger than it has to be
