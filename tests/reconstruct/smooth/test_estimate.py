"""Counts on every bin, from trees of any shape: near to the truth where noise is small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.queries import level_weights, weighted
from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, Query, Release
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.exchange import plan_from
from torchmetrics_fed.exchange.plans import PlanArgument, PlanName, make_release
from torchmetrics_fed.functional import area_error_roc, auroc, roc
from torchmetrics_fed.reconstruct.smooth.estimate import are_smooth, bin_counts
from torchmetrics_fed.reconstruct.smooth.mass import ScoreMass
from torchmetrics_fed.release import Sum

Scored = tuple[Tensor, Tensor]
"""Scores and labels."""

BINS = 4096
EDGES = tuple(range(0, BINS + 1, 64))
QUERIES = [
    weighted(Tree((64,), EDGES), 4),
    weighted(Tree((8, 8), EDGES), 4, 1),
    weighted(Tree((8, 8), EDGES), 1, 4),
    weighted(Tree((4, 4, 4), EDGES), 4, 1, 1),
    weighted(Tree((4, 4, 4), EDGES), 2, 3, 5),
    weighted(Tree((4, 4, 4), EDGES), 1, 1, 2),
    weighted(Tree((4, 4, 2, 2), EDGES), 4, 2, 1, 1),
    weighted(Tree((4, 4, 4)), 4, 1, 1),
    weighted(Tree((8, 8)), 1, 4),
]


def name_of(query: Query) -> str:
    is_placed = query.tree.edges is not None
    return f"{query.tree.branching} {level_weights(query)} {is_placed}"


def normal(examples: int = 20_000, seed: int = 0) -> Scored:
    """Return the scores of two normal classes."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target


def tied(examples: int = 20_000, seed: int = 0) -> Scored:
    """Return scores with five values in all."""
    scores, target = normal(examples, seed)
    return (scores * 5).floor().clamp(max=4) / 5 + 0.1, target


def released(scored: Scored, epsilon: float, plan: PlanArgument) -> Release:
    metric = FederatedROC(privacy=CentralDP(epsilon), plan=plan)
    metric.update(*scored)
    return metric.release()


def area_of(release: Release) -> float:
    return float(FederatedAUROC.from_release(release).compute())


def error_of(release: Release, scored: Scored) -> float:
    """Return the Area Error of the ROC curve."""
    return area_error_roc(FederatedROC.from_release(release).compute(), roc(*scored))


def mean_error(scored: Scored, query: Query) -> float:
    """Return the mean error of 30 releases at epsilon 0.3."""
    return float(np.mean([error_of(released(scored, 0.3, query), scored) for _ in range(30)]))


@pytest.mark.parametrize("query", QUERIES, ids=name_of)
def test_a_weighted_tree_of_any_shape_is_read(query: Query) -> None:
    """As the only query and as the pilot: area and sums of leaves are near the exact ones."""
    scored = normal()
    exact = FederatedROC()
    exact.update(*scored)
    exact_area = float(auroc(*scored))
    for plan in (query, replace(query, fraction=0.25)):
        release = released(scored, 20.0, plan)
        assert area_of(release) == pytest.approx(exact_area, abs=0.01)
        if release.last.query.tree.edges is None:
            continue
        starts = release.last.places[:-1]
        estimate = np.add.reduceat(bin_counts(release)[0].numpy(), starts, axis=1)
        truth = np.add.reduceat(exact.counts[0].numpy(), starts, axis=1)
        assert np.abs(estimate - truth).max() < 0.1 * truth.max()
        assert np.abs(estimate - truth).sum() < 0.1 * truth.sum()


@pytest.mark.parametrize(
    "query", [*QUERIES, Query(Tree((8, 8))), Query(Tree((4, 4, 4)))], ids=name_of
)
def test_a_pilot_of_any_shape_places_leaves_for_the_model(query: Query) -> None:
    """With few examples, so that the second query has one level."""
    scored = normal(2_000)
    release = released(scored, 1.0, replace(query, fraction=0.5))
    pilot, last = release.sums
    assert len(last.query.tree.branching) == 1
    assert area_of(release) == pytest.approx(float(auroc(*scored)), abs=0.1)
    assert len(ScoreMass.of(pilot).smooth) == 1
    assert len(ScoreMass.of(last).smooth) == 1


@pytest.mark.parametrize("plan", ["single", "adaptive"])
@pytest.mark.parametrize("make", [normal, tied])
def test_smooth_scores_are_not_taken_for_tied_ones(
    make: Callable[[], Scored], plan: PlanName
) -> None:
    for _ in range(5):
        assert are_smooth(released(make(), 1.0, plan)) == [make is normal]


def test_atoms_at_the_ends_stand_beside_the_smooth_model() -> None:
    scores, target = normal()
    chance = torch.rand(len(scores), generator=torch.Generator().manual_seed(1))
    scores[chance < 0.3] = 0.0
    scores[chance > 0.8] = 1.0
    exact_area = float(auroc(scores, target))
    for _ in range(3):
        release = released((scores, target), 1.0, "adaptive")
        assert are_smooth(release) == [True]
        counts = bin_counts(release)[0]
        for value, place in ((0.0, 0), (1.0, -1)):
            is_atom = scores == value
            truth = [int((is_atom & (target == label)).sum()) for label in (0, 1)]
            assert counts[:, place].tolist() == pytest.approx(truth, abs=40)
        assert area_of(release) == pytest.approx(exact_area, abs=0.02)


@pytest.mark.parametrize(("plan", "epsilon"), [("single", 1.0), ("single", 4.0), ("adaptive", 1.0)])
def test_ties_are_steps(plan: PlanName, epsilon: float) -> None:
    """Five values are some five bins, and the curve through them is the exact one but for noise."""
    scored = tied()
    for _ in range(5):
        release = released(scored, epsilon, plan)
        counts = bin_counts(release)[0]
        mass = (counts / counts.sum(1, keepdim=True)).mean(0)
        assert mass.topk(10).values.sum() > 0.9
        assert error_of(release, scored) < 0.02


def test_a_top_level_that_is_counted_several_times_lowers_the_error() -> None:
    """For a single query at a small epsilon, beside the same tree with all levels counted once."""
    scored = normal(2_000)
    tree = released(scored, 0.3, "single").last.query.tree
    several_times = mean_error(scored, weighted(tree, 4, 1, 1))
    once = mean_error(scored, weighted(tree, 1, 1, 1))
    assert several_times < 0.8 * once


@pytest.mark.parametrize(("weight", "end_count"), [(1, 0), (8, 200)])
def test_ends_of_one_level_are_judged_by_the_noise_that_is_there(
    weight: int, end_count: int
) -> None:
    """25 examples in each leaf of an end are as good as none, unless they are counted 8 times."""
    epsilon = 0.02 * weight  # so that cells have the same noise
    spec = FederatedROC(privacy=CentralDP(epsilon)).spec
    query = weighted(Tree((16,), tuple(range(0, BINS + 1, BINS // 16))), weight)
    rough = torch.tensor([60_000, 2_000] * 4 + [25] * 8)
    cells = weight * torch.stack([rough, rough.flip(0)])[None]
    release = Release((Sum(spec, query, cells),))
    assert are_smooth(release) == [False]
    leaf = bin_counts(release)[0, 0].unflatten(-1, (16, -1)).sum(-1)
    assert leaf[:8].tolist() == pytest.approx(rough[:8].tolist())
    assert float(leaf[8:].sum()) == pytest.approx(end_count, abs=1e-6)


@pytest.mark.parametrize("plan", [None, "single", "carry_over"])
def test_each_of_several_classes_that_are_alike_is_estimated(plan: PlanName | None) -> None:
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


@pytest.mark.parametrize("plan", ["single", "adaptive"])
def test_a_release_without_examples_has_no_counts(plan: PlanName) -> None:
    spec = FederatedROC(privacy=CentralDP(1.0)).spec

    def empty_sum(query: Query) -> Sum:
        return Sum(spec, query, torch.zeros(spec.shape(query), dtype=torch.int64))

    counts = bin_counts(make_release(plan_from(plan, spec), spec, empty_sum))
    assert bool(counts.isfinite().all())
    assert float(counts.sum()) < 10


def test_an_estimate_is_computed_once_for_a_release() -> None:
    release = released(normal(), 1.0, "adaptive")
    assert bin_counts(release) is bin_counts(release)


def softmax_classes(classes: int, examples: int = 6_000) -> Scored:
    """Return softmax scores of classes that are separated unequally well."""
    generator = torch.Generator().manual_seed(9)
    target = torch.randint(0, classes, (examples,), generator=generator)
    logits = torch.randn(examples, classes, generator=generator)
    separation = torch.linspace(0.5, 4.0, classes)
    logits[torch.arange(examples), target] += separation[target]
    return (1.5 * logits).softmax(1), target


def released_classes(scored: Scored, classes: int, epsilon: float) -> Release:
    metric = FederatedROC("multiclass", num_classes=classes, privacy=CentralDP(epsilon))
    metric.update(*scored)
    return metric.release()


def test_classes_add_up_to_all_of_them_together() -> None:
    """In every leaf, the estimated positives of all classes are those of the sum of the leaves.

    They differ by the part of the noise that the common fit takes away.
    """
    release = released_classes(softmax_classes(12), 12, 3.0)
    assert all(are_smooth(release))
    places = release.last.places
    estimated = bin_counts(release).sum(0).numpy()
    of_leaves = np.add.reduceat(estimated, places[:-1], axis=1)
    noisy = release.last.leaf.sum(0).numpy()
    deviations = np.sqrt(12 * release.last.variances[0])
    assert (np.abs(of_leaves - noisy) < 5 * deviations + 0.02 * noisy.max()).all()


@pytest.mark.slow
def test_the_mean_area_of_many_small_classes_is_not_drawn_towards_the_prior() -> None:
    """40 classes of 150 examples: each is uncertain by .02, their mean by .002."""
    scored = softmax_classes(40)
    exact = float(auroc(*scored, task="multiclass", num_classes=40, average="macro"))
    means = []
    for _ in range(8):
        release = released_classes(scored, 40, 2.0)
        mean = FederatedAUROC.from_release(release, average="macro").compute()
        means.append(float(mean) - exact)
    assert abs(np.mean(means)) < 0.005


def test_a_pilot_of_each_class_by_itself_is_read_as_well() -> None:
    """A query of the caller's own need not add up classes."""
    scored = softmax_classes(4)
    metric = FederatedAUROC(
        "multiclass",
        num_classes=4,
        privacy=CentralDP(5.0),
        plan=Query(Tree((16,), tuple(range(0, BINS + 1, BINS // 16))), 0.25),
    )
    metric.update(*scored)
    exact = auroc(*scored, task="multiclass", num_classes=4, average="macro")
    assert float(metric.compute()) == pytest.approx(float(exact), abs=0.03)
    assert metric.release().sums[0].cells.shape[0] == 4
