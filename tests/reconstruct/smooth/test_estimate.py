"""Counts on every bin, of trees of any shape: near to the truth where noise is small, whatever is weighted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.queries import weighted
from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, Query, Release
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.functional import area_error_roc, auroc, roc
from torchmetrics_fed.reconstruct.smooth.estimate import are_smooth, bin_counts
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Sum

BINS = 4096
QUERIES = [
    weighted(Tree((64,), tuple(range(0, BINS + 1, 64))), 4),
    weighted(Tree((8, 8), tuple(range(0, BINS + 1, 64))), 4, 1),
    weighted(Tree((8, 8), tuple(range(0, BINS + 1, 64))), 1, 4),
    weighted(Tree((4, 4, 4), tuple(range(0, BINS + 1, 64))), 4, 1, 1),
    weighted(Tree((4, 4, 4), tuple(range(0, BINS + 1, 64))), 2, 3, 5),
    weighted(Tree((4, 4, 4), tuple(range(0, BINS + 1, 64))), 1, 1, 2),
    weighted(Tree((4, 4, 2, 2), tuple(range(0, BINS + 1, 64))), 4, 2, 1, 1),
    weighted(Tree((4, 4, 4)), 4, 1, 1),
    weighted(Tree((8, 8)), 1, 4),
]


def normal(examples: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target


def tied(examples: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Five values in all."""
    scores, target = normal(examples, seed)
    return (scores * 5).floor().clamp(max=4) / 5 + 0.1, target


def released(scores: Tensor, target: Tensor, epsilon: float, plan: object) -> Release:
    metric = FederatedROC(privacy=CentralDP(epsilon), plan=plan)  # type: ignore[arg-type]
    metric.update(scores, target)
    return metric.release()


@pytest.mark.parametrize(
    "query",
    QUERIES,
    ids=lambda query: (
        f"{query.tree.branching} {query.level_weights} {query.tree.edges is not None}"
    ),
)
def test_a_weighted_tree_of_any_shape_is_read(query: Query) -> None:
    """As the only query and as the pilot: the area is near the exact one, and so are the sums of the leaves."""
    scores, target = normal()
    exact = FederatedROC()
    exact.update(scores, target)
    for plan in (query, replace(query, fraction=0.25)):
        release = released(scores, target, 20.0, plan)
        assert FederatedAUROC.from_release(release).compute() == pytest.approx(
            float(auroc(scores, target)), abs=0.01
        )
        if release.last.query.tree.edges is None:
            continue
        counts, places = bin_counts(release)[0].numpy(), release.last.places
        found, truth = (
            np.add.reduceat(each, places[:-1], axis=1) for each in (counts, exact.counts[0].numpy())
        )
        assert np.abs(found - truth).max() < 0.1 * truth.max()
        assert np.abs(found - truth).sum() < 0.1 * truth.sum()


@pytest.mark.parametrize(
    "query",
    [*QUERIES, Query(Tree((8, 8))), Query(Tree((4, 4, 4)))],
    ids=lambda query: (
        f"{query.tree.branching} {query.level_weights} {query.tree.edges is not None}"
    ),
)
def test_a_pilot_of_any_shape_places_leaves_for_the_model(query: Query) -> None:
    """Few examples, so that the second query has one level; only a pilot that the model was fitted to tells more."""
    scores, target = normal(2_000)
    release = released(scores, target, 1.0, replace(query, fraction=0.5))
    assert len(release.last.query.tree.branching) == 1
    assert FederatedAUROC.from_release(release).compute() == pytest.approx(
        float(auroc(scores, target)), abs=0.1
    )
    assert len(ScoreMass.of(release.sums[0]).smooth) == len(ScoreMass.of(release.last).smooth) == 1


@pytest.mark.parametrize("plan", ["single", "adaptive"])
@pytest.mark.parametrize("make", [normal, tied])
def test_smooth_scores_are_not_taken_for_tied_ones(
    make: Callable[[], tuple[Tensor, Tensor]], plan: str
) -> None:
    for _ in range(5):
        assert are_smooth(released(*make(), 1.0, plan)) == [make is normal]


def test_atoms_at_the_ends_stand_beside_the_smooth_model() -> None:
    scores, target = normal()
    chance = torch.rand(len(scores), generator=torch.Generator().manual_seed(1))
    scores[chance < 0.3] = 0.0
    scores[chance > 0.8] = 1.0
    for _ in range(3):
        release = released(scores, target, 1.0, "adaptive")
        assert are_smooth(release) == [True]
        counts = bin_counts(release)[0]
        for value, place in ((0.0, 0), (1.0, -1)):
            truth = [int(((scores == value) & (target == label)).sum()) for label in (0, 1)]
            assert counts[:, place].tolist() == pytest.approx(truth, abs=40)
        assert FederatedAUROC.from_release(release).compute() == pytest.approx(
            float(auroc(scores, target)), abs=0.02
        )


@pytest.mark.parametrize(("plan", "epsilon"), [("single", 1.0), ("single", 4.0), ("adaptive", 1.0)])
def test_ties_are_steps(plan: str, epsilon: float) -> None:
    """Five values are some five bins, and the curve through them is the exact one but for noise."""
    scores, target = tied()
    exact = roc(scores, target)
    for _ in range(5):
        release = released(scores, target, epsilon, plan)
        counts = bin_counts(release)[0]
        share = (counts / counts.sum(1, keepdim=True)).mean(0)
        assert share.topk(10).values.sum() > 0.9
        assert area_error_roc(FederatedROC.from_release(release).compute(), exact) < 0.02


def test_a_level_that_is_counted_more_often_is_found_more_often() -> None:
    """Of a single query at small epsilon, the weighted tree is nearer to the exact curve than the same one without."""
    scores, target = normal(2_000)
    exact, errors = roc(scores, target), []
    for weights in ((4, 1, 1), (1, 1, 1)):
        tree = released(scores, target, 0.3, "single").last.query.tree
        plan = weighted(tree, *weights)
        found = [
            FederatedROC.from_release(released(scores, target, 0.3, plan)).compute()
            for _ in range(30)
        ]
        errors.append(np.mean([area_error_roc(each, exact) for each in found]))
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize(("weight", "kept"), [(1, 0), (8, 200)])
def test_ends_of_one_level_are_judged_by_the_noise_that_is_there(weight: int, kept: int) -> None:
    """25 examples in each leaf of an end are as good as none, unless they were counted 8 times."""
    spec, query = (
        FederatedROC(
            privacy=CentralDP(epsilon=0.02 * weight)
        ).spec,  # so that cells have the same noise
        weighted(Tree((16,), tuple(range(0, BINS + 1, BINS // 16))), weight),
    )
    rough = torch.tensor([60_000, 2_000] * 4 + [25] * 8)
    release = Release((Sum(spec, query, weight * torch.stack([rough, rough.flip(0)])[None]),))
    assert are_smooth(release) == [False]
    found = bin_counts(release)[0, 0].unflatten(-1, (16, -1)).sum(-1)
    assert found[:8].tolist() == pytest.approx(rough[:8].tolist())
    assert float(found[8:].sum()) == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize("plan", [None, "single", "carry_over"])
def test_several_classes_that_are_alike_are_each_found(plan: str | None) -> None:
    generator = torch.Generator().manual_seed(2)
    target = torch.randint(0, 2, (8_000, 4), generator=generator)
    scores = (torch.randn(8_000, 4, generator=generator) + 1.5 * target).sigmoid()
    metric = FederatedAUROC(
        "multilabel", num_labels=4, average=None, privacy=CentralDP(2.0), plan=plan
    )
    exact = auroc(scores, target, task="multilabel", num_labels=4, average=None)
    for _ in range(2):
        metric.reset()
        metric.update(scores, target)
        assert metric.compute() == pytest.approx(exact, abs=0.04)


def test_a_release_of_nobody_has_no_counts() -> None:
    spec = FederatedROC(privacy=CentralDP(1.0)).spec
    for plan in ("single", "adaptive"):
        release = make_release(
            plan, spec, lambda query: Sum(spec, query, torch.zeros(spec.shape(query)).long())
        )
        assert bool(bin_counts(release).isfinite().all())
        assert float(bin_counts(release).sum()) < 10
