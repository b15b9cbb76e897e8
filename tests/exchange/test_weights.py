"""Weights of several classes: they depend on what is public, and are the best of their kind."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from torchmetrics_fed import CentralDP, FederatedModelComparison, Privacy, Spec
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.placement import pilot_query, single_query
from torchmetrics_fed.exchange.weights import pooled_weights, query_weights
from torchmetrics_fed.release import Query
from torchmetrics_fed.release.query import MOST_WEIGHT, LevelWeights
from torchmetrics_fed.typing import Task

PURE = CentralDP(1.0)
DELTA = CentralDP(1.0, mechanism="discrete_gaussian", delta=1e-6)
TREE = Tree((8,), (0, 600, 1200, 1800, 2400, 2900, 3400, 3900, 4096))


def spec_of(classes: int, privacy: Privacy = PURE, *, sums_to_one: bool = True) -> Spec:
    return Spec.build("multiclass", num_classes=classes, privacy=privacy, sums_to_one=sums_to_one)


def labels_spec(limit: int | None, privacy: Privacy = PURE) -> Spec:
    return Spec.build("multilabel", num_labels=14, privacy=privacy, labels_per_example=limit)


@pytest.mark.parametrize(
    "spec",
    [
        Spec.build("binary", privacy=PURE),
        Spec.build("multiclass", num_classes=5, multi_class="ovo", privacy=PURE),
        labels_spec(None),
        labels_spec(14),
        FederatedModelComparison(privacy=PURE).spec,
    ],
    ids=["binary", "one against one", "any labels", "all labels", "two models"],
)
def test_where_any_cell_may_hold_an_example_all_cells_weigh_alike(spec: Spec) -> None:
    assert query_weights(spec, TREE) == (LevelWeights(),)
    assert pooled_weights(spec) == (LevelWeights(),)
    assert query_weights(spec, Tree((2, 4)), times=(4, 1)) == (LevelWeights.of(4), LevelWeights())


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
def test_positives_get_half_of_epsilon(classes: int) -> None:
    """What a positive costs is half of the sensitivity, with and without weights by score."""
    for sums_to_one in (True, False):
        spec = spec_of(classes, sums_to_one=sums_to_one)
        (level,) = weights = query_weights(spec, TREE)
        part = level.positives[0] / spec.sensitivity(Query(TREE, weights=weights)).l1
        assert part == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("classes", [3, 10, 100, 1000, 50_000])
def test_negatives_weigh_more_where_their_score_is_higher(classes: int) -> None:
    (level,) = query_weights(spec_of(classes), TREE)
    assert list(level.negatives) == sorted(level.negatives)
    assert level.negatives[0] < level.negatives[-1] <= MOST_WEIGHT
    assert level.positives[0] <= MOST_WEIGHT


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_negatives_of_one_example_weigh_far_less_than_the_heaviest_of_each(classes: int) -> None:
    """The sum of the scores is what saves it: without it, each negative may be the heaviest."""
    weights = query_weights(spec_of(classes), TREE)
    query = Query(TREE, weights=weights)
    unbounded = spec_of(classes, sums_to_one=False).sensitivity(query).l1
    assert spec_of(classes).sensitivity(query).l1 < unbounded * 2 / (classes**0.5)


def test_noise_with_a_delta_weighs_no_negative_by_its_score() -> None:
    """Its sensitivity is an L2 norm, which the sum of the scores does not bound tightly."""
    (level,) = query_weights(spec_of(10, DELTA), TREE)
    assert level == LevelWeights(positives=(round(9**0.75),))


@pytest.mark.parametrize("privacy", [PURE, DELTA], ids=["pure", "delta"])
@pytest.mark.parametrize("limit", [1, 3, 7])
@pytest.mark.parametrize("size_ratio", [2.0, 10.0, 60.0])
def test_the_weight_of_a_positive_label_is_the_best_one(
    privacy: CentralDP, limit: int, size_ratio: float
) -> None:
    """The squared noise of a curve, relative to the class sizes, minimised numerically."""
    spec = labels_spec(limit, privacy)
    sizes = (1000 * size_ratio, 1000.0)
    (level,) = query_weights(spec, TREE, sizes=sizes)
    power = 1 if privacy is PURE else 2

    def squared_noise(log_ratio: float) -> float:
        ratio = np.exp(log_ratio)
        scale = (limit * ratio**power + (14 - limit)) ** (2 / power)
        return float(scale * (1 / (ratio * sizes[1]) ** 2 + 1 / sizes[0] ** 2))

    best = np.exp(minimize_scalar(squared_noise, bounds=(-3, 8), method="bounded").x)
    assert level.positives[0] == max(round(best), 1)


def test_sizes_of_nothing_but_noise_give_finite_weights() -> None:
    (level,) = query_weights(labels_spec(2), TREE, sizes=(1e9, 1.0))
    assert level.positives[0] < MOST_WEIGHT
    (level,) = query_weights(labels_spec(2), TREE, sizes=(1.0, 1e9))
    assert level.positives[0] >= 1


@pytest.mark.parametrize(
    ("task", "classes", "limit"),
    [("multiclass", 10, None), ("multilabel", 10, 2), ("multilabel", 10, None)],
)
def test_a_pilot_adds_up_classes_and_other_queries_tell_them_apart(
    task: Task, classes: int, limit: int | None
) -> None:
    is_multiclass = task == "multiclass"
    spec = Spec.build(
        task,
        num_classes=classes if is_multiclass else None,
        num_labels=None if is_multiclass else classes,
        privacy=PURE,
        labels_per_example=limit,
    )
    assert pilot_query(spec).pools_classes
    assert not single_query(spec).pools_classes
    assert spec.shape(pilot_query(spec))[0] == 1
    assert spec.shape(single_query(spec))[0] == classes
