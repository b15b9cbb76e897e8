"""The declared sensitivity against all neighbours of small data (threat 8)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import ive
from torch import Tensor

from tests.queries import weighted
from torchmetrics_fed import CentralDP, FederatedModelComparison, FederatedROC, ScoreGrid
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange.placement import pilot_query, single_query
from torchmetrics_fed.privacy.noise import Mechanism
from torchmetrics_fed.privacy.sensitivity import Neighbours, Sensitivity, most_together
from torchmetrics_fed.release import Query, Spec
from torchmetrics_fed.release.query import LevelWeights
from torchmetrics_fed.typing import MultiClass, Task

QUERIES = [
    Query(Tree((2, 2))),
    Query(Tree((3,))),
    weighted(Tree((2, 2)), 4, 1),
    weighted(Tree((2, 2)), 2, 3),
    weighted(Tree((3,)), 5),
    Query(Tree((3,)), weights=(LevelWeights(positives=(4,)),)),
    Query(Tree((3,)), weights=(LevelWeights(negatives=(1, 2, 5), positives=(3,)),)),
    Query(Tree((2, 2)), weights=(LevelWeights(negatives=(2, 3)), LevelWeights())),
]

Rows = NDArray[np.int64]


def examples(spec: Spec, query: Query) -> Rows:
    """Return the cells of every possible example, counted as a client counts.

    All scores, all targets and all groups are tried.
    """
    classes = spec.classes
    cells = []
    for bins in product(range(query.tree.leaves), repeat=classes):
        for target in product((0, 1), repeat=classes):
            if spec.task == "multiclass" and sum(target) != 1:
                continue
            for group in range(max(len(spec.groups), 1)):
                counts = spec.empty_counts()
                for k in range(classes):
                    row = target.index(1) if spec.multi_class == "ovo" else target[k]
                    counts[k, spec.rows * group + row, bins[k]] += 1
                cells.append(spec.cells(query, counts).flatten())
    return np.unique(torch.stack(cells).numpy(), axis=0)


def spec_of(
    task: Task, classes: int, query: Query, *, groups: int = 0, multi_class: MultiClass = "ovr"
) -> Spec:
    grid = ScoreGrid.from_edges(list(range(query.tree.leaves + 1)))
    names = tuple("abc"[:groups])
    return Spec(task, classes, grid, groups=names, multi_class=multi_class)


def largest_norms(single: Rows, neighbours: Neighbours, people: int) -> list[int]:
    """Return the largest L1 norm, squared L2 norm and shift of a cell between neighbours."""
    largest = np.zeros(3, dtype=np.int64)
    for change in changes(single, neighbours, people):
        size = np.abs(change)
        norms = [size.sum(1).max(), (size**2).sum(1).max(), size.max()]
        largest = np.maximum(largest, norms)
    return [int(norm) for norm in largest]


def norms_of(declared: Sensitivity) -> list[int]:
    return [declared.l1, declared.l2_squared, max(shift for shift, _ in declared.shifts)]


def declared_for(
    spec: Spec, query: Query, neighbours: Neighbours = "add_remove", people: int = 1
) -> Sensitivity:
    """Return the sensitivity that a private spec of the same kind declares."""
    privacy = CentralDP(1.0, neighbours=neighbours, examples_per_person=people)
    return replace(spec, privacy=privacy).sensitivity(query)


@pytest.mark.parametrize("pools_groups", [False, True])
@pytest.mark.parametrize("weights", [(1, 1), (4, 1)])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("task", "classes", "people"),
    [("binary", 1, 1), ("binary", 1, 2), ("multiclass", 2, 1), ("multilabel", 2, 1)],
)
def test_groups_do_not_change_the_sensitivity(
    task: Task,
    classes: int,
    people: int,
    neighbours: Neighbours,
    weights: tuple[int, int],
    pools_groups: bool,
) -> None:
    query = replace(weighted(Tree((2, 2)), *weights), pools_groups=pools_groups)
    spec = spec_of(task, classes, query, groups=3)
    declared = declared_for(spec, query, neighbours, people)
    assert largest_norms(examples(spec, query), neighbours, people) == norms_of(declared)
    assert declared == declared_for(replace(spec, groups=()), query, neighbours, people)


ONE_WEIGHT = [LevelWeights(), LevelWeights.of(3)]
WEIGHTS = [*ONE_WEIGHT, LevelWeights(positives=(4,))]
POOLED = [
    *product(["multiclass"], [2, 3, 4], ["ovr"], WEIGHTS),
    *product(["multiclass"], [3], ["ovo"], ONE_WEIGHT),
    *product(["multilabel"], [2, 3], ["ovr"], WEIGHTS),
]


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("task", "classes", "multi_class", "levels"), POOLED)
def test_pooled_classes_move_one_cell_by_all_of_them(
    task: Task,
    classes: int,
    multi_class: MultiClass,
    levels: LevelWeights,
    neighbours: Neighbours,
) -> None:
    """L1 is that of separate classes, L2 is not: K - 1 negatives of an example may share a cell."""
    query = Query(Tree((3,)), weights=(levels,), pools_classes=True)
    spec = spec_of(task, classes, query, multi_class=multi_class)
    declared = declared_for(spec, query, neighbours)
    assert largest_norms(examples(spec, query), neighbours, 1) == norms_of(declared)
    by_class = declared_for(spec, replace(query, pools_classes=False), neighbours)
    assert declared.l1 == by_class.l1
    if classes > 2 or task == "multilabel":
        assert declared.l2_squared > by_class.l2_squared


def test_one_weight_for_a_row_that_holds_negatives_and_positives() -> None:
    query = Query(Tree((3,)), weights=(LevelWeights(positives=(2,)),), pools_classes=True)
    spec = replace(spec_of("multiclass", 3, query, multi_class="ovo"), privacy=CentralDP(1.0))
    with pytest.raises(InputError, match="one weight for each level"):
        spec.check_query(query)


@pytest.mark.parametrize("classes", [5, 20])
@pytest.mark.parametrize("mechanism", ["skellam", "discrete_gaussian"])
def test_noise_with_delta_is_calibrated_for_the_pooled_shift(
    mechanism: Mechanism, classes: int
) -> None:
    """The loss of one cell that moves by K - 1 and one that moves by 1, composed densely.

    Noise for K cells that move by 1 each, as without pooling, would lose far more.
    """
    epsilon = 1.0
    delta = 1e-6
    query = Query(Tree((8,)), pools_classes=True)
    privacy = CentralDP(epsilon, mechanism=mechanism, delta=delta)
    spec = Spec("multiclass", classes, ScoreGrid(bins=8), privacy)
    pooled = spec.noise(query).variance
    by_class = spec.noise(replace(query, pools_classes=False)).variance
    assert dense_delta(mechanism, pooled, (classes - 1, 1), epsilon) <= delta
    assert dense_delta(mechanism, 0.97 * pooled, (classes - 1, 1), epsilon) > delta
    assert dense_delta(mechanism, by_class, (classes - 1, 1), epsilon) > 100 * delta


def dense_delta(
    mechanism: Mechanism, variance: float, shifts: tuple[int, int], epsilon: float
) -> float:
    """Return the smallest delta of two cells that move by these shifts, over all outputs."""
    reach = int(12 * math.sqrt(variance)) + sum(shifts)
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * variance))
    if mechanism == "skellam":
        weights = ive(np.abs(x), variance)
    mass = weights / weights.sum()
    first_shift, second_shift = shifts
    p = np.outer(mass, mass)
    q = np.outer(np.roll(mass, first_shift), np.roll(mass, second_shift))
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def changes(single: Rows, neighbours: Neighbours, people: int) -> Iterator[Rows]:
    """Yield every difference of the releases of neighbouring data.

    A person has up to `people` examples. Counts are sums over people, so the data that both
    neighbours hold cancel.
    """
    none_or_one = np.concatenate([np.zeros_like(single[:1]), single])
    sums = [np.sum(rows, axis=0) for rows in combinations_with_replacement(none_or_one, people)]
    persons = np.unique(np.array(sums), axis=0)
    if neighbours == "add_remove":
        yield persons
        return
    for person in persons:
        yield persons - person


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


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("task", "classes", "people"), CASES)
def test_the_largest_difference_of_neighbours_is_the_declared_one(
    task: Task, classes: int, people: int, neighbours: Neighbours, query: Query
) -> None:
    spec = spec_of(task, classes, query)
    declared = norms_of(declared_for(spec, query, neighbours, people))
    largest = largest_norms(examples(spec, query), neighbours, people)
    if neighbours == "replace_one" and query in QUERIES[-2:]:
        # With different weights of nodes, an example leaves one node and enters another.
        assert all(norm <= bound for norm, bound in zip(largest, declared, strict=True))
        assert largest[0] > declared[0] / 2
    else:
        assert largest == declared


@pytest.mark.parametrize("query", [QUERIES[0], QUERIES[2], QUERIES[3], QUERIES[5]], ids=str)
@pytest.mark.parametrize("people", [1, 2])
def test_the_shifts_are_those_of_the_change_that_is_worst_in_every_norm(
    people: int, query: Query
) -> None:
    spec = spec_of("multiclass", 3, query)
    declared = declared_for(spec, query, people=people)
    (change,) = changes(examples(spec, query), "add_remove", people)
    worst = np.sort(change[(change**2).sum(1).argmax()])
    shifts = [shift for shift, cells in declared.shifts for _ in range(cells)]
    assert worst[worst > 0].tolist() == shifts


def test_counting_all_and_positives_instead_would_cost_more() -> None:
    """Rows of all examples and of positives would have an L1 sensitivity of (K + 1) L."""
    query = Query(Tree((2, 2)))
    share = examples(spec_of("binary", 1, query), query).reshape(-1, 2, 6)
    misread = np.stack([share.sum(1), share[:, 1]], axis=1)
    assert misread.sum((1, 2)).max() == 4 > Sensitivity.of("binary", 1, 2).l1


def test_levels_that_are_counted_once_are_so_many_levels() -> None:
    assert Sensitivity.of("multilabel", 3, 4) == Sensitivity.of("multilabel", 3, (1, 1, 1, 1))
    expected = Sensitivity(((1, 2), (4, 1)))
    assert Sensitivity.of("binary", 1, (4, 1, 1)) == expected
    assert Sensitivity.of("binary", 1, (1, 4, 1)) == expected


@pytest.mark.parametrize(
    ("task", "classes", "levels", "name"),
    [
        ("ranking", 1, 1, "task"),
        ("binary", 2, 1, "classes"),
        ("multiclass", 1, 1, "classes"),
        ("binary", 1, 0, "levels"),
        ("binary", 1, 1.5, "levels"),
        ("binary", 1, (), "levels"),
        ("binary", 1, (4, 0), "shifts"),
    ],
)
def test_impossible_counts_are_refused_by_name(
    task: Task, classes: int, levels: int | tuple[int, ...], name: str
) -> None:
    with pytest.raises(InputError, match=f"`{name}`"):
        Sensitivity.of(task, classes, levels)


def test_neighbours_and_people_are_checked() -> None:
    with pytest.raises(InputError, match="`neighbours`"):
        Sensitivity.of("binary", 1, 1, neighbours="close")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`examples_per_person`"):
        Sensitivity.of("binary", 1, 1, examples_per_person=0)
    with pytest.raises(InputError, match=r"Sensitivity\.of"):
        Sensitivity(())


Example = tuple[str, float, int]
"""A person, a score and a label."""


def counts_of(metric: FederatedROC, examples: list[Example]) -> Tensor:
    """Return the counts of examples that come in two batches."""
    metric.reset()
    for batch in (examples[:2], examples[2:]):
        if batch:
            names, scores, labels = zip(*batch, strict=True)
            preds = torch.tensor(scores)
            if metric.spec.task == "multiclass":
                preds = torch.stack([preds, 1 - preds, preds / 2], 1)
            metric.update(preds, torch.tensor(labels), persons=names)
    return metric.counts.clone()


def interleavings(
    examples: list[Example], inserted: tuple[Example, ...]
) -> Iterator[list[Example]]:
    """Yield the examples with others inserted among them, in all ways."""
    size = len(examples) + len(inserted)
    for places in combinations(range(size), len(inserted)):
        rows = list(examples)
        for place, row in zip(places, inserted, strict=True):
            rows.insert(place, row)
        yield rows


@pytest.mark.parametrize("task", ["binary", "multiclass"])
@pytest.mark.parametrize("examples_per_person", [1, 2])
def test_with_ids_no_person_moves_the_counts_further_than_declared(
    task: Task, examples_per_person: int
) -> None:
    """A person has up to four examples, in all orders among those of other persons."""
    metric = FederatedROC(
        task,
        num_classes=3 if task == "multiclass" else None,
        privacy=CentralDP(1.0, examples_per_person=examples_per_person),
        grid=ScoreGrid.even(2),
        sums_to_one=False if task == "multiclass" else None,
    )
    declared = Sensitivity.of(task, metric.spec.classes, 1, examples_per_person=examples_per_person)
    without_eve = [("ann", 0.9, 1), ("bob", 0.9, 1), ("ann", 0.1, 0)]
    eve = [("eve", 0.9, 1), ("eve", 0.1, 0)]
    counts = counts_of(metric, without_eve)
    largest = 0
    for number in range(1, 5):
        for examples_of_eve in combinations_with_replacement(eve, number):
            for with_eve in interleavings(without_eve, examples_of_eve):
                change = counts_of(metric, with_eve) - counts
                largest = max(largest, int(change.abs().sum()))
    assert largest == declared.l1


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("people", [1, 2])
def test_two_models_are_one_cell_of_a_table_and_two_leaves_of_its_sides(
    people: int, neighbours: Neighbours, joint: bool
) -> None:
    """Every pair of scores and every target, counted by the metric, on the cells of a query."""
    metric = FederatedModelComparison(grid=ScoreGrid.from_edges([0, 0.25, 0.5, 0.75, 1]))
    table = Table((3, 2), (0, 1, 2, 4, 0, 2, 4), joint=joint)
    query = Query(table, 1.0 if joint else 5 / 64)
    scores = (0.1, 0.3, 0.6, 0.9)
    cells = []
    for first, second, target in product(scores, scores, (0, 1)):
        metric.reset()
        metric.update(torch.tensor([first]), torch.tensor([second]), torch.tensor([target]))
        cells.append(metric.spec.cells(query, metric.counts).flatten())
    single = np.unique(torch.stack(cells).numpy(), axis=0)
    declared = Sensitivity.of(
        "binary", 1, len(table.sizes), neighbours=neighbours, examples_per_person=people
    )
    assert largest_norms(single, neighbours, people) == norms_of(declared)
    levels = 1 if joint else 2
    sides = 2 if neighbours == "replace_one" else 1
    assert declared.l1 == levels * people * sides


@pytest.mark.parametrize("seed", range(200))
def test_scores_with_a_bounded_sum_never_weigh_more_than_declared(seed: int) -> None:
    """All numbers of scores in all leaves. Parts of two scores are all that the bound adds."""
    rng = np.random.default_rng(seed)
    leaves = int(rng.integers(1, 5))
    count = int(rng.integers(1, 5))
    edges = np.sort(rng.choice(17, leaves, replace=False) / 16)
    weights = rng.integers(1, 20, leaves)
    best = 0
    for numbers in product(range(count + 1), repeat=leaves):
        if sum(numbers) <= count and float(np.dot(numbers, edges)) <= 1.0:
            best = max(best, int(np.dot(numbers, weights)))
    bound = most_together(weights.tolist(), edges.tolist(), count=count, total=1.0)
    assert best <= bound
    assert bound < best + 2 * weights.max()


@pytest.mark.parametrize(
    ("weights", "edges", "count", "total", "attained"),
    [
        ([3, 3], [0.0, 0.5], 4, 1.0, 12),  # one weight: the sum does not matter
        ([1, 5], [0.0, 0.5], 9, 1.0, 17),  # two high scores and seven low ones
        ([1, 9], [0.0, 1.0], 9, 1.0, 17),  # one score of 1
        ([2, 4], [0.25, 0.5], 9, 1.0, 8),  # there is no room for nine scores
        ([5, 1], [0.0, 0.5], 3, 1.0, 15),  # a low score weighs more
    ],
)
def test_the_bound_of_weights_is_attained(
    weights: list[int], edges: list[float], count: int, total: float, attained: int
) -> None:
    assert most_together(weights, edges, count=count, total=total) == attained


def softmax_spec(classes: int, **options: Any) -> Spec:
    return FederatedROC("multiclass", num_classes=classes, privacy=CentralDP(1.0), **options).spec


def placed_by_softmax(spec: Spec) -> Query:
    """Return the second query of a release of softmax scores."""
    metric = FederatedROC("multiclass", num_classes=spec.classes, privacy=CentralDP(1.0))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, spec.classes, generator=generator)
    target = torch.randint(spec.classes, (4000,), generator=generator)
    logits[torch.arange(4000), target] += 1.5
    metric.update((2 * logits).softmax(1), target)
    return metric.release().queries[-1]


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("classes", [3, 5, 20])
@pytest.mark.parametrize("plan", ["placed", "pilot", "single"])
def test_no_softmax_row_moves_weighted_cells_further_than_declared(
    plan: str, classes: int, neighbours: Neighbours
) -> None:
    """Thousands of random rows and all rows of few high scores, counted by the metric.

    The bound is attained but for a leaf's width: scores lie inside leaves, and the sum of a row may
    be off by 1/64.
    """
    spec = softmax_spec(classes)
    queries = {
        "placed": placed_by_softmax(spec),
        "pilot": pilot_query(spec),
        "single": single_query(spec),
    }
    query = queries[plan]
    assert query.is_weighted
    rows = torch.cat([random_rows(classes), high_rows(spec, query)])
    metric = FederatedROC("multiclass", num_classes=classes, privacy=CentralDP(1.0))
    moved = []
    for row in rows:
        metric.reset()
        metric.update(row[None], torch.tensor([0]))
        moved.append(spec.cells(query, metric.counts).flatten().numpy())
    private = replace(spec, privacy=CentralDP(1.0, neighbours=neighbours))
    declared = private.sensitivity(query)
    single = np.stack(moved)
    largest = int(np.abs(single).sum(1).max())
    if neighbours == "replace_one":
        heaviest = single[np.abs(single).sum(1).argmax()]
        largest = int(np.abs(single - heaviest).sum(1).max())
    assert largest <= declared.l1
    if neighbours == "add_remove":
        assert largest > 0.93 * declared.l1


def random_rows(classes: int) -> Tensor:
    """Return rows that add up to 1: even ones, and ones with few high scores."""
    rng = np.random.default_rng(4)
    parts = [rng.dirichlet(np.full(classes, concentration), 100) for concentration in (0.05, 1, 20)]
    return torch.from_numpy(np.concatenate(parts))


def high_rows(spec: Spec, query: Query) -> Tensor:
    """Return rows with one or two negatives at lower edges of leaves, and nothing else but the
    positive, which has what is left of 1."""
    edges = spec.grid.edges[query.tree.places(spec.grid.bins)][:-1].tolist()
    edges = edges[:: max(len(edges) // 24, 1)]
    rows = []
    for first, second in combinations_with_replacement([0.0, *edges], 2):
        if first + second <= 1:
            row = torch.zeros(spec.classes, dtype=torch.float64)
            row[1] = first
            row[2] = second
            row[0] = 1 - first - second
            rows.append(row)
    return torch.stack(rows)


def test_weights_by_score_without_the_sum_of_scores_cost_all_of_them() -> None:
    """A spec that does not check the sum may not rest on it."""
    query = placed_by_softmax(softmax_spec(5))
    (level,) = query.weights
    declared = softmax_spec(5, sums_to_one=False).sensitivity(query)
    assert declared.l1 == level.positives[0] + 4 * max(level.negatives)
    assert declared.l1 > 1.5 * softmax_spec(5).sensitivity(query).l1


@pytest.mark.parametrize("limit", [1, 2, 3, None])
@pytest.mark.parametrize("pools_classes", [False, True])
@pytest.mark.parametrize("weights", [LevelWeights(), LevelWeights(positives=(4,))], ids=str)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_no_example_has_more_positive_labels_than_are_counted(
    limit: int | None, pools_classes: bool, weights: LevelWeights, neighbours: Neighbours
) -> None:
    """All labels in all leaves, counted by the metric."""
    query = Query(Tree((2,)), weights=(weights,), pools_classes=pools_classes)
    metric = FederatedROC(
        "multilabel",
        num_labels=3,
        grid=ScoreGrid.from_edges([0, 0.5, 1]),
        privacy=CentralDP(1.0, neighbours=neighbours),
        plan=query,
        labels_per_example=limit,
    )
    moved = []
    for target in product((0, 1), repeat=3):
        for scores in product((0.2, 0.8), repeat=3):
            metric.reset()
            metric.update(torch.tensor([scores]), torch.tensor([target]))
            moved.append(metric.spec.cells(query, metric.counts).flatten().numpy())
    single = np.unique(np.stack(moved), axis=0)
    declared = metric.spec.sensitivity(query)
    largest = largest_norms(single, neighbours, 1)
    if neighbours == "add_remove":
        assert largest[0] == declared.l1
    assert all(norm <= bound for norm, bound in zip(largest, norms_of(declared), strict=True))
