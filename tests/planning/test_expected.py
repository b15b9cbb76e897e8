"""The error to expect is that of real releases, and depends on epsilon, data and clients."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_curve, roc_curve

from tests.grids import grid_for
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    Query,
    Release,
    ScoreGrid,
    Spec,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange import PlanArgument, PlanName
from torchmetrics_fed.exchange.placement import pilot_query
from torchmetrics_fed.functional import area_error_pr, area_error_roc
from torchmetrics_fed.planning import (
    ExpectedError,
    ReferenceScores,
    expected_area_error,
    expected_sampling_error,
)
from torchmetrics_fed.simulate import simulate

PLANS: tuple[PlanName, ...] = get_args(PlanName)
_FINE_EDGES = ScoreGrid.two_sided(1 << 14).edges.numpy()


def _samples(n_pos: int, n_neg: int, runs: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Examples with reference scores, each score somewhere in its bin."""
    generator = np.random.default_rng(11)
    widths = np.diff(_FINE_EDGES)
    for _ in range(runs):
        counts = ReferenceScores(n_pos, n_neg).counts(_FINE_EDGES, generator)
        scores = []
        for row in counts:
            lower = np.repeat(_FINE_EDGES[:-1], row)
            scores.append(lower + np.repeat(widths, row) * generator.random(row.sum()))
        target = np.repeat([0, 1], counts.sum(1))
        yield torch.from_numpy(np.concatenate(scores)), torch.from_numpy(target)


def _errors(release: Release, preds: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """The Area Errors of both curves, against those of scikit-learn."""
    roc = FederatedROC.from_release(release).compute()
    precision_recall = FederatedPrecisionRecallCurve.from_release(release).compute()
    return (
        area_error_roc(roc, roc_curve(target, preds)),
        area_error_pr(precision_recall, precision_recall_curve(target, preds)),
    )


def _agree(expected: ExpectedError, measured: ExpectedError, factor: float = 1.0) -> bool:
    """Whether both means are within 4.5 standard errors of their difference.

    The expected errors are multiplied by a factor first.
    """
    roc_spread = math.hypot(
        factor * expected.roc_standard_error,
        measured.roc_standard_error,
    )
    pr_spread = math.hypot(
        factor * expected.precision_recall_standard_error,
        measured.precision_recall_standard_error,
    )
    roc_difference = abs(factor * expected.roc - measured.roc)
    pr_difference = abs(factor * expected.precision_recall - measured.precision_recall)
    return roc_difference < 4.5 * roc_spread and pr_difference < 4.5 * pr_spread


@pytest.mark.audit
@pytest.mark.parametrize("plan", PLANS)
def test_it_is_the_error_of_real_releases(plan: PlanName) -> None:
    metric = FederatedROC(privacy=CentralDP(0.5), plan=plan, grid=grid_for(plan))
    real = []
    for preds, target in _samples(1_000, 4_000, 41):
        metric.reset()
        metric.update(preds, target)
        real.append(_errors(metric.release(), preds, target))
    measured = ExpectedError.of(real[1:])  # the first has nothing to carry over
    expected = expected_area_error(plan, 0.5, 1_000, 4_000, runs=120)
    assert _agree(expected, measured)
    assert not _agree(expected, measured, factor=2.5)  # noise of another epsilon would show


@pytest.mark.audit
@pytest.mark.parametrize(
    "privacy",
    [
        DistributedDP(epsilon=0.5, min_clients=4, max_colluding=2),
        LocalDP(0.5),
        DistributedDP(epsilon=0.5, min_clients=8, mechanism="skellam", delta=1e-6),
    ],
    ids=["distributed", "local", "skellam"],
)
def test_noise_adds_up_over_clients_as_it_really_does(privacy: Privacy) -> None:
    real = []
    for preds, target in _samples(1_000, 4_000, 30):
        metric = FederatedROC(privacy=privacy, plan="single")
        order = torch.randperm(len(preds))
        parts = [(preds[part], target[part]) for part in order.chunk(10)]
        real.append(_errors(simulate(parts, metric).release, preds, target))
    measured = ExpectedError.of(real)
    expected = expected_area_error("single", privacy, 1_000, 4_000, clients=10, runs=120)
    assert _agree(expected, measured)
    # nor would noise of one client, or of all of them, pass for that of ten
    assert not _agree(expected, measured, factor=2.5)


@pytest.mark.parametrize("plan", PLANS)
def test_more_epsilon_and_more_examples_mean_less_error(plan: PlanName) -> None:
    errors = [
        expected_area_error(plan, epsilon, 2_000, 8_000, runs=8) for epsilon in (0.1, 1.0, 10.0)
    ]
    errors.append(expected_area_error(plan, 10.0, 200_000, 800_000, runs=8))
    for before, after in pairwise(errors):
        assert after.roc < before.roc
        assert after.precision_recall < before.precision_recall


def test_the_error_grows_from_central_to_distributed_to_local_noise() -> None:
    settings: list[tuple[Privacy, int]] = [
        (CentralDP(0.5), 1),
        (DistributedDP(epsilon=0.5, min_clients=5), 20),
        (LocalDP(0.5), 20),
        (LocalDP(0.5), 200),
    ]
    errors = []
    for privacy, clients in settings:
        error = expected_area_error("single", privacy, 2_000, 8_000, clients=clients, runs=10)
        errors.append(error.roc)
    assert errors == sorted(errors)


def test_the_error_depends_on_the_seed_alone() -> None:
    options: dict[str, Any] = {"n_pos": 500, "n_neg": 500, "runs": 3}
    error = expected_area_error("adaptive", 1.0, **options, seed=1)
    assert expected_area_error("adaptive", 1.0, **options, seed=1) == error
    assert expected_area_error("adaptive", 1.0, **options, seed=2) != error


def test_it_is_fast_whatever_the_number_of_examples() -> None:
    start = time.process_time()
    error = expected_area_error("adaptive", 1.0, 10**9, 10**10)
    assert time.process_time() - start < 6  # 0.5 s on an idle core
    assert 0 < error.roc < 1e-5


def queries_of(plan: PlanArgument, quantiles: int = 1024) -> tuple[Query, ...]:
    return expected_area_error(plan, 1.0, 1_000, 1_000, runs=2, quantiles=quantiles).queries


def test_queries_are_those_of_the_plan() -> None:
    pilot, placed = queries_of("adaptive")
    assert pilot == pilot_query(Spec.build("binary", privacy=CentralDP(1.0)))
    assert placed.fraction == 1 - pilot.fraction
    (carried_over,) = queries_of("carry_over")
    assert carried_over.fraction == 1
    assert queries_of("paper", quantiles=64) == (Query(Tree.binary(256)),)


def test_a_query_of_a_user_is_asked_and_the_rest_of_epsilon_after_it() -> None:
    query = Query(Tree((8, 8)))
    assert queries_of(query) == (query,)
    first, second = queries_of(Query(Tree((8, 8)), 0.5))
    assert first.fraction == 0.5
    assert second.fraction == 0.5


def test_a_class_that_noise_swallows_is_an_error_and_no_warning() -> None:
    assert 0 < expected_area_error("adaptive", 0.01, 2, 2, runs=3).roc <= 1


@pytest.mark.parametrize("mechanism", ["discrete_gaussian", "gamma"])
@pytest.mark.filterwarnings("ignore:mechanism")
def test_every_mechanism_can_be_tried(mechanism: Any) -> None:
    delta = 0.0 if mechanism == "gamma" else 1e-6
    error = expected_area_error(
        "single", CentralDP(1.0, mechanism=mechanism, delta=delta), 1_000, 4_000, runs=3
    )
    assert 0 < error.roc < 0.1


def test_sampling_error_falls_with_the_square_root_of_the_examples() -> None:
    small = expected_sampling_error(500, 1_500, runs=40)
    large = expected_sampling_error(8_000, 24_000, runs=40)
    assert small.roc / large.roc == pytest.approx(4, rel=0.4)
    assert small.precision_recall / large.precision_recall == pytest.approx(4, rel=0.4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan": "three_round"}, "`plan` to be a Query or one of .* but got 'three_round'"),
        ({"privacy": -1.0}, "`epsilon` to be a positive finite number but got -1.0"),
        ({"n_pos": 0}, "`n_pos` to be an int of at least 1 but got 0"),
        ({"clients": 0}, "`clients` to be an int of at least 1 but got 0"),
        ({"runs": 1}, "`runs` to be an int of at least 2 but got 1"),
        (
            {"privacy": DistributedDP(1.0, 8), "clients": 5},
            "at least min_clients=8 clients but got 5",
        ),
        ({"plan": "adaptive", "quantiles": 16}, "at least 256 bins .* but there are 64"),
        ({"auroc": 1.0}, "`auroc` between 0.5 and 1 but got 1.0"),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, Any], named: str) -> None:
    arguments: dict[str, Any] = {
        "plan": "single",
        "privacy": 1.0,
        "n_pos": 100,
        "n_neg": 100,
        **changes,
    }
    with pytest.raises(InputError, match=named):
        expected_area_error(**arguments)
