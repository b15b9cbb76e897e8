"""Plans: leaves from a private release only, portions that add up to one epsilon, and estimates on every bin."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
    Spec,
    federated_collection,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import SpecMismatchError
from torchmetrics_fed.functional import auroc
from torchmetrics_fed.reconstruct.smooth.estimate import bin_counts

ONE = CentralDP(1.0)


def updated(examples: int = 20_000, seed: int = 0, **options: Any) -> FederatedROC:
    metric = FederatedROC(**({"privacy": ONE} | options))
    count(metric, examples, seed)
    return metric


def count(metric: FederatedROC, examples: int = 20_000, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    metric.update((torch.randn(examples, generator=generator) + 1.5 * target).sigmoid(), target)


def test_a_plan_is_never_made_from_exact_counts() -> None:
    with pytest.raises(InputError, match="private release"):
        Query.from_release(updated(privacy=None).release())


def test_both_messages_spend_epsilon_once_in_one_entry() -> None:
    ledger = PrivacyLedger(budget=1.0)
    metric = updated(plan="adaptive", ledger=ledger)
    release = metric.release()
    assert len(ledger) == 1
    assert ledger.spent().epsilon == 1.0
    assert release.pilot is not None
    assert release.pilot.spec.fraction + release.spec.fraction == 1
    assert release.spec.epsilon + release.pilot.spec.epsilon == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 0.7, 3.3])
def test_the_noise_of_both_messages_adds_up_to_epsilon_exactly(epsilon: float) -> None:
    """Pure noise of rate r loses r for each cell that an example is in: one of every level of both messages."""
    release = updated(privacy=CentralDP(epsilon), plan="adaptive").release()
    loss = 0.0
    for one in (release, release.pilot):
        assert one is not None
        rate = 2 * math.asinh(math.sqrt(0.5 / one.noise_variance))
        loss += rate * len(one.spec.tree.branching)
    assert loss == pytest.approx(epsilon, rel=1e-9)


def test_leaves_follow_the_scores() -> None:
    narrow = FederatedROC(privacy=ONE, plan="adaptive")
    target = torch.randint(0, 2, (50_000,))
    narrow.update(0.4 + 0.02 * torch.rand(50_000), target)
    edges = narrow.release().spec.edges
    inside = ((edges > 0.38) & (edges < 0.44)).double().mean()
    assert inside > 0.5


@pytest.mark.parametrize("plan", [None, "single", "adaptive", "carry_over", "paper"])
def test_every_plan_finds_the_area(plan: Any) -> None:
    metric = updated(40_000, plan=plan)
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (40_000,), generator=generator)
    exact = auroc((torch.randn(40_000, generator=generator) + 1.5 * target).sigmoid(), target)
    assert abs(FederatedAUROC.from_release(metric.release()).compute() - exact) < 0.02


def test_the_next_evaluation_is_planned_from_the_last_release() -> None:
    metric = updated(plan="carry_over")
    first = metric.release()
    assert first.pilot is not None  # nothing to carry yet: two rounds
    metric.reset()
    count(metric, seed=1)
    second = metric.release()
    assert second.pilot is None
    assert second.spec.fraction == 1
    assert second.spec.tree == Query.from_release(first).tree
    assert metric.ledger.spent().epsilon == 2


def test_a_collection_carries_over_for_all_its_metrics() -> None:
    collection = federated_collection(metrics=["roc", "auroc"], privacy=ONE, plan="carry_over")
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        collection.update(torch.rand(5_000, generator=generator), torch.randint(0, 2, (5_000,), generator=generator))
        collection.compute()
        roc: Any = collection["roc"]
        release = roc.release()
        collection.reset()
    assert release.pilot is None
    assert release.spec.tree.edges is not None


def clients(privacy: Any, number: int = 4) -> list[FederatedROC]:
    return [updated(5_000, seed, privacy=privacy, plan="adaptive") for seed in range(number)]


@pytest.mark.parametrize("privacy", [LocalDP(2.0), DistributedDP(2.0, min_clients=3, trusted_aggregator=True)])
def test_clients_answer_two_messages_and_no_third(privacy: Any) -> None:
    metrics = clients(privacy)
    pilot = Release.sum(metric.share(round="round") for metric in metrics)
    plan = Query.from_release(pilot)
    sent = Query.from_bytes(bytes(plan))
    shares = [metric.release("round", plan=sent) for metric in metrics]
    release = Release.sum(shares, pilot=pilot)
    curve = FederatedROC.from_release(release).compute()
    assert curve.tpr[-1] == 1
    assert all(metric.ledger.spent().epsilon == 2.0 for metric in metrics)
    assert metrics[0].release("round", plan=sent) is shares[0]
    with pytest.raises(ReleaseError, match="plan"):
        metrics[0].release("round", plan=Query(Tree((16,)), 0.5))
    with pytest.raises(ReleaseError, match="round"):
        metrics[0].release("another", plan=sent)
    assert metrics[0].ledger.spent().epsilon == 2.0


def test_a_first_message_is_no_pilot_of_another_spec_or_of_too_much() -> None:
    pilot = Release.sum(metric.share(round="round") for metric in clients(LocalDP(1.0)))
    whole = Release.sum([updated(privacy=LocalDP(1.0)).share(round="round")])
    with pytest.raises(InputError, match="share one epsilon"):
        dataclasses.replace(whole, pilot=pilot)
    other = Release.sum([updated(privacy=LocalDP(0.5)).share(round="round")])
    with pytest.raises(SpecMismatchError):
        dataclasses.replace(other, pilot=pilot)


def test_a_plan_without_privacy_or_with_too_few_bins_is_refused() -> None:
    with pytest.raises(InputError, match="without `privacy`"):
        FederatedROC(plan="adaptive")
    with pytest.raises(InputError, match="at least 256 bins"):
        FederatedROC(privacy=ONE, quantiles=16, plan="adaptive")
    with pytest.raises(InputError, match="plan"):
        FederatedROC(privacy=ONE, plan="three_round")  # type: ignore[arg-type]
    with pytest.raises(ReleaseError, match="without `privacy`"):
        updated(privacy=None).release(plan=Query(Tree((16,))))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"branching":[2],"edges":[0,1],"portion":"0x1p0"}', b"\xff"])
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        Query.from_bytes(data)


@pytest.mark.parametrize("options", [{"task": "multiclass", "num_classes": 3}, {"task": "multilabel", "num_labels": 3}])
@pytest.mark.parametrize("multi_class", ["ovr", "ovo"])
def test_several_classes_share_the_leaves(options: dict[str, Any], multi_class: Any) -> None:
    if options["task"] == "multilabel" and multi_class == "ovo":
        pytest.skip("only classes can be one against one")
    metric = FederatedAUROC(privacy=CentralDP(3.0), plan="adaptive", multi_class=multi_class, **options)
    target = torch.randint(0, 3, (6_000,)) if "num_classes" in options else torch.randint(0, 2, (6_000, 3))
    one_hot = torch.nn.functional.one_hot(target, 3) if target.ndim == 1 else target
    metric.update((torch.randn(6_000, 3) + 2 * one_hot).sigmoid(), target)
    assert 0.85 < metric.compute() < 0.97


@given(
    cells=st.lists(st.sampled_from([-50, -1, 0, 0, 0, 1, 3, 1_000, 10**6, 10**9]), min_size=64, max_size=64),
    more=st.lists(st.sampled_from([-50, -1, 0, 0, 1, 3, 1_000, 10**6]), min_size=2, max_size=80),
    epsilon=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    bins=st.sampled_from([256, 4096]),
)
@settings(max_examples=150, deadline=None)
def test_any_integers_give_finite_counts(cells: list[int], more: list[int], epsilon: float, bins: int) -> None:
    """Whatever noise makes of the messages: a plan, and counts on every bin that are numbers and not negative."""
    base = FederatedROC(quantiles=bins // 4, privacy=CentralDP(epsilon), plan="adaptive").spec
    pilot = Release(base, torch.tensor(cells).reshape(base.shape))
    plan = Query.from_release(pilot)
    spec: Spec = base.planned(plan.tree, plan.fraction)
    noisy = np.resize(more, spec.shape)
    for release in (Release(spec, torch.from_numpy(noisy), pilot=pilot), Release(spec, torch.from_numpy(noisy))):
        counts = bin_counts(release)
        assert counts.shape == (1, 2, bins)
        assert bool(counts.isfinite().all())
        assert bool((counts >= 0).all())
        Query.from_release(release)


@pytest.mark.parametrize("portion", [0.0, -1.0, 1e-6, 1.5, math.nan])
def test_a_server_cannot_ask_for_a_portion_that_is_none(portion: float) -> None:
    metric = updated(100, privacy=LocalDP(1.0))
    with pytest.raises(InputError, match="portion"):
        metric.release("round", plan=Query.from_bytes(bytes(Query(Tree((16,)), portion))))
    assert len(metric.ledger) == 0


def test_a_redraw_for_another_round_starts_over() -> None:
    metric = updated(100, privacy=DistributedDP(1.0, min_clients=3), plan="adaptive")
    for name in ("first", "second"):
        pilot = metric.vector(name)
        plan = Query(Tree((16,)), 1 - metric.spec.fraction)
        second = metric.vector(name, plan)
        assert len(pilot) == 64
        assert len(second) == 32
    assert metric.ledger.spent().epsilon == 2.0
