"""Threat 8: a misread sensitivity. Brute force over all neighbours of small, counted data."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.queries import level_weights, weighted
from torchmetrics_fed import FederatedROC, Query, ScoreGrid, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity

GRID = ScoreGrid(bins=8)
SPEC = Spec("binary", 1, GRID)

Example = tuple[float, int]
"""A score and a label."""

EXAMPLES: list[Example] = list(product([0.05, 0.3, 0.9], [0, 1]))
"""Scores in different parts of the tree, with both labels."""


def cells(examples: list[Example], query: Query) -> Tensor:
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
        level_weights(query),
        neighbours=neighbours,
        examples_per_person=examples_per_person,
    )
    common = [(0.4, 0), (0.8, 1)]
    people = [list(rows) for rows in combinations_with_replacement(EXAMPLES, examples_per_person)]
    replaced: list[list[Example]] = people
    if neighbours == "add_remove":
        replaced = [[]]
    changes = torch.stack(
        [
            cells(common + before, query) - cells(common + after, query)
            for before, after in product(replaced, people)
        ]
    ).flatten(1)
    assert changes.abs().sum(1).max() == declared.l1
    assert changes.square().sum(1).max() == declared.l2_squared
    assert changes.abs().max() == max(shift for shift, _ in declared.shifts)


def test_forgetting_the_levels_would_be_caught() -> None:
    query = Query(Tree.binary(8))
    naive = Sensitivity.of("binary", 1, levels=1)
    assert int((cells(EXAMPLES[:1], query) - cells([], query)).abs().sum()) > naive.l1


@pytest.mark.parametrize("weights", [(4, 1, 1), (1, 1, 2)])
def test_forgetting_the_weights_would_be_caught(weights: tuple[int, ...]) -> None:
    naive = Sensitivity.of("binary", 1, levels=3)
    query = weighted(Tree((2, 2, 2)), *weights)
    change = cells(EXAMPLES[:1], query) - cells([], query)
    assert int(change.abs().sum()) > naive.l1


TASKS: dict[str, dict[str, Any]] = {
    "binary": {"task": "binary"},
    "multiclass": {"task": "multiclass", "num_classes": 3},
    "one against one": {"task": "multiclass", "num_classes": 3, "multi_class": "ovo"},
    "multilabel": {"task": "multilabel", "num_labels": 2},
}
SCORES = (0.05, 0.9, 0.3)


def targets_of(spec: Spec) -> list[Any]:
    """Return every target of an example."""
    if spec.task == "multilabel":
        return list(product((0, 1), repeat=spec.classes))
    return list(range(max(spec.classes, 2)))


def cells_of_people(metric: FederatedROC, most_examples: int, query: Query) -> Tensor:
    """Return the cells of every person with up to a number of examples, none included.

    Examples are counted by the metric, on the cells of the query.
    """
    spec = metric.spec
    scores = SCORES[:2] if spec.classes > 2 else SCORES
    singles = [torch.zeros_like(spec.cells(query, spec.empty_counts()))]
    for row in product(scores, repeat=spec.classes):
        preds = torch.tensor([row])
        if spec.task == "binary":
            preds = preds.flatten()
        for target in targets_of(spec):
            metric.reset()
            metric.update(preds, torch.tensor([target]))
            singles.append(spec.cells(query, metric.release().leaf))
    unique = torch.stack(singles).flatten(1).unique(dim=0)
    people = combinations_with_replacement(unique, most_examples)
    sums = torch.stack([torch.stack(rows).sum(0) for rows in people])
    distinct: Tensor = sums.unique(dim=0)
    return distinct


def largest_first(change: Tensor) -> Tensor:
    """Return the sums of the largest changes: of one cell, of two cells, ..."""
    return change.abs().sort(-1, descending=True).values.cumsum(-1)


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("weights", [(1, 1), (4, 1), (2, 3)])
@pytest.mark.parametrize("examples_per_person", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_no_change_exceeds_the_declared_shifts(
    task: str, examples_per_person: int, weights: tuple[int, ...], neighbours: Neighbours
) -> None:
    """The k cells that move most do not move further than the k largest declared shifts."""
    metric = FederatedROC(**TASKS[task], grid=ScoreGrid.even(2))
    query = weighted(Tree((2, 4)), *weights)
    persons = cells_of_people(metric, examples_per_person, query)
    declared = Sensitivity.of(
        metric.spec.task,
        metric.spec.classes,
        weights,
        neighbours=neighbours,
        examples_per_person=examples_per_person,
    )
    shifts = torch.tensor([shift for shift, cells in declared.shifts for _ in range(cells)])
    bound = torch.full(persons.shape[1:], int(shifts.sum()))
    bound[: len(shifts)] = largest_first(shifts)[: len(bound)]
    replaced = persons
    if neighbours == "add_remove":
        replaced = torch.zeros_like(persons[:1])
    reached = torch.zeros_like(bound)
    for person in replaced:
        reached = reached.maximum(largest_first(persons - person).amax(0))
    assert bool((reached <= bound).all())
    assert int(reached[-1]) == declared.l1  # and the bound is no larger than it has to be
