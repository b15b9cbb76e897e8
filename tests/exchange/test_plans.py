"""Which queries a release takes is decided by what was asked and summed so far, and by nothing
else."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

import pytest
import torch

from tests.grids import grid_for
from tests.queries import level_weights
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    Query,
    Release,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange import PlanArgument, PlanName, next_query, plan_from
from torchmetrics_fed.exchange.client import reply_cells
from torchmetrics_fed.exchange.placement import LEAST_BINS, placed_query
from torchmetrics_fed.exchange.plans import AllBins, Plan, make_release
from torchmetrics_fed.release import Sum

PRIVACY = CentralDP(1.0)
TASKS: list[dict[str, Any]] = [
    {"task": "binary"},
    {"task": "multiclass", "num_classes": 4},
    {"task": "multilabel", "num_labels": 3},
]


def spec_of(**options: Any) -> Spec:
    return FederatedAUROC(**{"privacy": PRIVACY, **options}).spec


def answered(spec: Spec, query: Query) -> Sum:
    """The sum of some data's answers."""
    counts = torch.full((spec.classes, spec.rows, spec.grid.bins), 3)
    return Sum(spec, query, reply_cells(spec, query, counts))


def asked(argument: PlanArgument, spec: Spec, **options: Any) -> list[Query]:
    """All queries of a release."""
    plan = plan_from(argument, spec)
    sums: list[Sum] = []
    while (query := next_query(plan, sums, spec=spec, **options)) is not None:
        sums.append(answered(spec, query))
    return [part.query for part in sums]


def released(argument: PlanArgument, spec: Spec, previous: Release | None = None) -> Release:
    """The release that a plan makes."""
    plan = plan_from(argument, spec)
    return make_release(plan, spec, lambda query: answered(spec, query), previous=previous)


def even_spec(**options: Any) -> Spec:
    """A spec that every plan can use."""
    return spec_of(grid="even", **options)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["task"])
def test_a_plan_is_the_same_for_every_task(task: dict[str, Any]) -> None:
    spec = even_spec(**task)
    assert [len(asked(plan, spec)) for plan in get_args(PlanName)] == [2, 1, 2, 1]
    assert len(asked(None, spec)) == 2
    assert len(asked(None, spec, can_ask_again=False)) == 1


@pytest.mark.parametrize(
    "plan", [None, *get_args(PlanName), Query(Tree((16, 16)), 0.5), Query(Tree((16,)))]
)
def test_fractions_add_up_to_one_exactly(plan: Any) -> None:
    assert sum(Fraction(query.fraction) for query in asked(plan, even_spec())) == 1


def test_exact_counts_are_one_flat_query() -> None:
    spec = spec_of(privacy=None)
    assert asked(None, spec) == [Query(Tree.flat(spec.grid.bins))]


def test_the_previous_release_saves_a_query() -> None:
    spec = spec_of()
    before = released("adaptive", spec)
    (carried,) = asked("carry_over", spec, previous=before)
    assert carried.fraction == 1
    assert carried.tree.edges is not None
    assert len(asked("adaptive", spec, previous=before)) == 2  # only the plan that asks for it


def test_the_previous_release_is_carried_as_data_by_the_plan_that_asks_for_it() -> None:
    """Its last sum and nothing else, so that a chain of releases stays as small as one; and only
    of the same spec."""
    spec = spec_of()
    other_spec = spec_of(privacy=CentralDP(0.5))
    release = released("carry_over", spec)
    assert len(release.queries) == 2
    assert release.prior is None
    for _ in range(3):
        before = release
        release = released("carry_over", spec, before)
        assert release.prior is before.last
    assert released("adaptive", spec, release).prior is None
    placed = released("carry_over", other_spec, release)
    assert placed.queries == (placed_query(release.last, 1.0),)
    assert placed.prior is None


def test_a_single_query_has_a_top_level_that_is_counted_more_often_where_noise_is_large() -> None:
    small, large = (
        asked("single", spec_of(privacy=CentralDP(epsilon)))[0] for epsilon in (2.0, 2.1)
    )
    assert level_weights(small)[0] > max(level_weights(small)[1:]) == 1
    assert set(level_weights(large)) == {1}


def test_nobody_is_asked_again_where_nobody_can_be() -> None:
    spec = spec_of()
    plans: list[PlanArgument] = [None, "adaptive", "carry_over"]
    for plan in plans:
        assert asked(plan, spec, can_ask_again=False) == asked("single", spec)


def test_few_bins_are_all_asked_for_at_once() -> None:
    spec = spec_of(quantiles=LEAST_BINS // 8)
    assert spec.grid.bins < LEAST_BINS
    assert len(asked(None, spec)) == 1
    plans: list[PlanArgument] = ["adaptive", "carry_over"]
    for plan in plans:
        with pytest.raises(InputError, match="bins to place leaves on"):
            plan_from(plan, spec)


def test_it_is_a_pure_function_of_the_sums() -> None:
    spec = spec_of()
    plan = plan_from("adaptive", spec)
    first = answered(spec, plan.unasked_query(spec))
    copy = Sum(spec, first.query, first.cells.clone())
    assert next_query(plan, [first], spec=spec) == next_query(plan, [copy], spec=spec)


def test_by_hand_a_second_query_comes_only_if_the_plan_says_so() -> None:
    spec = spec_of()
    assert plan_from(None, spec).unasked_query(spec).fraction == 1
    assert plan_from("adaptive", spec).unasked_query(spec).fraction < 1
    assert plan_from("carry_over", spec).unasked_query(spec).fraction < 1


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(InputError, match="plan"):
        FederatedROC(privacy=PRIVACY, plan="two")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="without `privacy`"):
        FederatedROC(plan="adaptive")
    with pytest.raises(InputError, match="whole bins"):
        FederatedROC(privacy=PRIVACY, plan=Query(Tree((3,))))


def test_a_metrics_epsilon_is_its_own_whatever_the_plan() -> None:
    for plan in (None, *get_args(PlanName)):
        assert (
            FederatedROC(privacy=DistributedDP(1.0, 5), plan=plan, grid=grid_for(plan)).spec.epsilon
            == 1
        )


def test_the_papers_plan_asks_for_the_papers_bins() -> None:
    with pytest.raises(InputError, match='Pass `grid="even"`'):
        FederatedROC(privacy=PRIVACY, plan="paper")


def test_a_release_spends_all_of_epsilon_or_is_none() -> None:
    spec = spec_of()
    with pytest.raises(Exception, match="Coordinator"):
        Release((answered(spec, plan_from("adaptive", spec).unasked_query(spec)),))


def test_a_plan_of_the_callers_own_is_asked_as_it_says() -> None:
    """A plan is a value with a first query; the second is placed as every plan places it."""

    @dataclass(frozen=True)
    class TwoHalves(Plan):
        name = "halves"

        def first_query(self, spec: Spec, *, can_ask_again: bool, previous: Sum | None) -> Query:
            return Query(Tree((16,)), 0.5)

    spec = spec_of()
    assert [query.fraction for query in asked(TwoHalves(), spec)] == [0.5, 0.5]
    metric = FederatedROC(privacy=PRIVACY, plan=TwoHalves())
    metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
    assert [query.fraction for query in metric.release().queries] == [0.5, 0.5]


def test_exact_counts_have_their_own_plan() -> None:
    assert isinstance(plan_from(None, spec_of(privacy=None)), AllBins)
    with pytest.raises(InputError, match="which is for exact counts"):
        plan_from(AllBins(), spec_of())
