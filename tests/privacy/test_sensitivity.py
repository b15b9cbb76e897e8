"""The declared sensitivity against all neighbours of small data (threat 8)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from torchmetrics_fed import CentralDP, FederatedModelComparison, FederatedROC, ScoreGrid
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity
from torchmetrics_fed.release import Query, Spec
from torchmetrics_fed.typing import Task

TREES = [
    Tree((2, 2)),
    Tree((3,)),
    Tree((2, 2), weights=(4, 1)),
    Tree((2, 2), weights=(2, 3)),
    Tree((3,), weights=(5,)),
]

Rows = NDArray[np.int64]


def examples(task: Task, classes: int, tree: Tree) -> Rows:
    """Every possible example's own share: all scores, all targets, counted as the package counts."""
    shares = []
    for bins in product(range(tree.leaves), repeat=classes):
        for target in product((0, 1), repeat=classes):
            if task == "multiclass" and sum(target) != 1:
                continue
            counts = torch.zeros(classes, 2, tree.leaves, dtype=torch.int64)
            for k in range(classes):
                counts[k, target[k], bins[k]] += 1
            shares.append(tree.joined(counts).flatten())
    return np.unique(torch.stack(shares).numpy(), axis=0)


def grouped_examples(task: Task, classes: int, query: Query, groups: int) -> Rows:
    """The same with a group for each example, answered as a client of a spec with groups answers."""
    spec = Spec(task, classes, ScoreGrid(bins=query.tree.leaves), groups=tuple("abc"[:groups]))
    shares = []
    for bins in product(range(query.tree.leaves), repeat=classes):
        for target, group in product(product((0, 1), repeat=classes), range(groups)):
            if task != "multiclass" or sum(target) == 1:
                counts = spec.empty_counts()
                for k in range(classes):
                    counts[k, 2 * group + target[k], bins[k]] += 1
                shares.append(spec.cells(query, counts).flatten())
    return np.unique(torch.stack(shares).numpy(), axis=0)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("tree", [Tree((2, 2)), Tree((2, 2), weights=(4, 1))], ids=str)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("task", "classes", "people"),
    [("binary", 1, 1), ("binary", 1, 2), ("multiclass", 2, 1), ("multilabel", 2, 1)],
)
def test_groups_do_not_change_the_sensitivity(
    task: Task, classes: int, people: int, neighbours: Neighbours, tree: Tree, pooled: bool
) -> None:
    declared = Sensitivity.of(
        task, classes, tree.weights, neighbours=neighbours, examples_per_person=people
    )
    found = np.zeros(2, dtype=np.int64)
    for change in changes(
        grouped_examples(task, classes, Query(tree, pooled=pooled), 3), neighbours, people
    ):
        found = np.maximum(found, [np.abs(change).sum(1).max(), (change**2).sum(1).max()])
    assert found.tolist() == [declared.l1, declared.l2_squared]


def changes(single: Rows, neighbours: Neighbours, people: int) -> Iterator[Rows]:
    """Every difference of the releases of neighbouring data, where a person has up to `people` examples.

    Counts are sums over people, so the data that both neighbours hold cancel.
    """
    single = np.concatenate([np.zeros_like(single[:1]), single])
    persons = np.array(
        [np.sum(chosen, axis=0) for chosen in combinations_with_replacement(single, people)]
    )
    persons = np.unique(persons, axis=0)
    if neighbours == "add_remove":
        yield persons
    else:
        yield from (persons - person for person in persons)


CASES: list[tuple[Task, int, int]] = [
    ("binary", 1, 1),
    ("binary", 1, 3),
    ("multiclass", 2, 1),
    ("multiclass", 3, 1),
    ("multiclass", 2, 2),
    ("multilabel", 1, 2),
    ("multilabel", 2, 1),
    ("multilabel", 2, 2),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("task", "classes", "people"), CASES)
def test_the_largest_difference_of_neighbours_is_the_declared_one(
    task: Task, classes: int, people: int, neighbours: Neighbours, tree: Tree
) -> None:
    declared = Sensitivity.of(
        task, classes, tree.weights, neighbours=neighbours, examples_per_person=people
    )
    found = np.zeros(3, dtype=np.int64)
    for change in changes(examples(task, classes, tree), neighbours, people):
        size = np.abs(change)
        found = np.maximum(found, [size.sum(1).max(), (size**2).sum(1).max(), size.max()])
    assert found.tolist() == [
        declared.l1,
        declared.l2_squared,
        max(shift for shift, _ in declared.shifts),
    ]


@pytest.mark.parametrize(
    "tree", [Tree((2, 2)), Tree((2, 2), weights=(4, 1)), Tree((2, 2), weights=(1, 3))], ids=str
)
@pytest.mark.parametrize("people", [1, 2])
def test_the_shifts_are_those_of_the_change_that_is_worst_in_every_norm(
    people: int, tree: Tree
) -> None:
    declared = Sensitivity.of("multiclass", 3, tree.weights, examples_per_person=people)
    (change,) = changes(examples("multiclass", 3, tree), "add_remove", people)
    worst = np.sort(change[(change**2).sum(1).argmax()])
    assert worst[worst > 0].tolist() == [
        shift for shift, cells in declared.shifts for _ in range(cells)
    ]


def test_counting_all_and_positives_instead_would_cost_more() -> None:
    """What is declared holds for rows of positives and negatives only: (K + 1) L where all and positives are sent."""
    share = examples("binary", 1, Tree((2, 2))).reshape(-1, 2, 6)
    misread = np.stack([share.sum(1), share[:, 1]], axis=1)
    assert misread.sum((1, 2)).max() == 4 > Sensitivity.of("binary", 1, 2).l1


def test_levels_that_are_counted_once_are_so_many_levels() -> None:
    assert Sensitivity.of("multilabel", 3, 4) == Sensitivity.of("multilabel", 3, (1, 1, 1, 1))
    assert (
        Sensitivity.of("binary", 1, (4, 1, 1))
        == Sensitivity.of("binary", 1, (1, 4, 1))
        == Sensitivity(((1, 2), (4, 1)))
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("ranking", 1, 1), "`task`"),
        (("binary", 2, 1), "`classes`"),
        (("multiclass", 1, 1), "`classes`"),
        (("binary", 1, 0), "`levels`"),
        (("binary", 1, 1.5), "`levels`"),
        (("binary", 1, ()), "`levels`"),
        (("binary", 1, (4, 0)), "`shifts`"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(
    arguments: tuple[Task, int, int | tuple[int, ...]], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        Sensitivity.of(*arguments)


def test_neighbours_and_people_are_checked() -> None:
    with pytest.raises(InputError, match="`neighbours`"):
        Sensitivity.of("binary", 1, 1, neighbours="close")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`examples_per_person`"):
        Sensitivity.of("binary", 1, 1, examples_per_person=0)
    with pytest.raises(InputError, match=r"Sensitivity\.of"):
        Sensitivity(())


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("most", [1, 2])
def test_with_ids_no_person_moves_the_counts_further_than_declared(task: Task, most: int) -> None:
    """However many examples somebody has, wherever they come in: all orders of all their examples among others'."""
    options: Any = {"num_classes": 3} if task == "multiclass" else {}
    privacy = CentralDP(1.0, examples_per_person=most)
    metric = FederatedROC(task, privacy=privacy, grid=ScoreGrid.even(2), **options)
    declared = Sensitivity.of(task, metric.spec.classes, 1, examples_per_person=most)

    def counts(rows: list[tuple[str, float, int]]) -> torch.Tensor:
        metric.reset()
        for split in (rows[:2], rows[2:]):  # two batches
            if split:
                names, scores, labels = zip(*split, strict=True)
                preds = torch.tensor(scores)
                preds = torch.stack([preds, 1 - preds, preds / 2], 1) if options else preds
                metric.update(preds, torch.tensor(labels), persons=names)
        return metric.counts.clone()

    others = [("ann", 0.9, 1), ("bob", 0.9, 1), ("ann", 0.1, 0)]
    without, reached = counts(others), 0
    for number in range(1, 5):
        for own in combinations_with_replacement([("eve", 0.9, 1), ("eve", 0.1, 0)], number):
            for places in combinations(range(len(others) + number), number):
                rows = list(others)
                for place, row in zip(places, own, strict=True):
                    rows.insert(place, row)
                split_alike = counts(rows)
                reached = max(reached, int((split_alike - without).abs().sum()))
    assert reached == declared.l1


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("people", [1, 2])
def test_two_models_are_one_cell_of_a_table_and_two_leaves_of_its_sides(
    people: int, neighbours: Neighbours, joint: bool
) -> None:
    """Every pair of scores and every target, counted by the metric itself, through the query that it is asked."""
    metric = FederatedModelComparison(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
    table = Table((3, 2), (0, 1, 2, 4, 0, 2, 4), joint=joint)
    query, single = Query(table, 1.0 if joint else 5 / 64), []
    for first, second, target in product((0.1, 0.3, 0.6, 0.9), (0.1, 0.3, 0.6, 0.9), (0, 1)):
        metric.reset()
        metric.update(torch.tensor([first]), torch.tensor([second]), torch.tensor([target]))
        single.append(metric.spec.cells(query, metric.counts).flatten())
    found = np.zeros(3, dtype=np.int64)
    for change in changes(np.unique(torch.stack(single).numpy(), axis=0), neighbours, people):
        size = np.abs(change)
        found = np.maximum(found, [size.sum(1).max(), (size**2).sum(1).max(), size.max()])
    declared = Sensitivity.of(
        "binary", 1, table.weights, neighbours=neighbours, examples_per_person=people
    )
    assert found.tolist() == [
        declared.l1,
        declared.l2_squared,
        max(shift for shift, _ in declared.shifts),
    ]
    assert declared.l1 == (1 if joint else 2) * people * (2 if neighbours == "replace_one" else 1)
