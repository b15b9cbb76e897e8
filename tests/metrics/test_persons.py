"""`update(..., persons=ids)`: no client counts more than `examples_per_person` examples of
anybody."""

from __future__ import annotations

import pickle
from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    Release,
    ReleaseError,
    federated_collection,
)
from torchmetrics_fed.simulate import simulate

pytestmark = [
    pytest.mark.filterwarnings("ignore:No (positive|negative) examples"),
    pytest.mark.filterwarnings("ignore:The AUROC of this release"),
]
MOST = 3


def private(**options: Any) -> FederatedROC:
    return FederatedROC(privacy=CentralDP(1.0, examples_per_person=MOST, **options), quantiles=4)


def batches(times: int = 64) -> list[tuple[Tensor, Tensor, Tensor]]:
    """One person, 7, in every one of many batches, once or several times, among others who come
    once."""
    generator = torch.Generator().manual_seed(3)
    examples = []
    for number in range(times):
        ids = torch.arange(1000 + 8 * number, 1008 + 8 * number)
        ids[: 1 + number % 3] = 7
        examples.append(
            (
                torch.rand(8, generator=generator),
                torch.randint(0, 2, (8,), generator=generator),
                ids,
            )
        )
    return examples


@pytest.mark.parametrize("backwards", [False, True])
def test_one_person_in_64_batches_is_counted_as_often_as_allowed(backwards: bool) -> None:
    metric = private()
    data = batches()
    order = data
    if backwards:
        order = data[::-1]
    for preds, target, ids in order:
        metric.update(preds, target, persons=ids)
    comes = Counter(int(person) for _, _, ids in data for person in ids)
    assert int(metric.counts.sum()) == sum(min(times, MOST) for times in comes.values()) < 64 * 8
    assert metric.persons.left_out == comes[7] - MOST
    assert metric.persons.bound_enforced
    metric.reset()
    assert (metric.persons.left_out, metric.persons.bound_enforced) == (0, False)
    metric.update(*data[0][:2], persons=data[0][2])
    assert int(metric.counts.sum()) == 8


def test_a_refused_batch_uses_up_nothing() -> None:
    metric = private()
    with pytest.raises(InputError, match="`preds`"):
        metric.update(torch.tensor([0.1, 1.5]), torch.tensor([0, 1]), persons=[1, 1])
    for _ in range(2):
        metric.update(torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), persons=[1, 2])
        with pytest.raises(InputError, match="`persons`"):
            metric.update(
                torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), persons=torch.tensor([1.5, 2.5])
            )
        with pytest.raises(InputError, match="`target`"):
            metric.update(
                torch.tensor([0.1, 0.5, 0.5, 0.5]), torch.tensor([0, 7, 1, 1]), persons=[1, 2, 2, 2]
            )
    metric.update(torch.tensor([0.1, 0.5]), torch.tensor([0, 1]), persons=[1, 1])
    assert (int(metric.counts.sum()), metric.persons.left_out) == (5, 1)


def test_batches_without_ids_do_not_mix_with_others() -> None:
    score = torch.tensor([0.5])
    label = torch.tensor([0])
    for first, then in ((None, [1]), ([1], None)):
        metric = private()
        metric.update(score, label, persons=first)
        with pytest.raises(InputError, match="with every batch"):
            metric.update(score, label, persons=then)
        assert int(metric.counts.sum()) == 1
    metric = private()
    with pytest.raises(InputError, match="`preds`"):
        metric.update(score + 1, label, persons=[1])
    metric.update(score, label)  # what was refused does not count
    assert not metric.persons.bound_enforced


def test_an_enforced_bound_needs_ids() -> None:
    metric = private(enforced=True)
    for call in (metric.update, metric):
        with pytest.raises(InputError, match="with every batch"):
            call(torch.tensor([0.5]), torch.tensor([0]))
    metric(torch.tensor([0.5] * 4), torch.tensor([0] * 4), persons=["a"] * 4)
    assert int(metric.counts.sum()) == MOST
    assert metric.release().spec.privacy == CentralDP(1.0, examples_per_person=MOST, enforced=True)
    assert Release.from_bytes(bytes(metric.release())).spec == metric.spec
    with pytest.raises(InputError, match="`enforced`"):
        LocalDP(1.0, enforced=1)  # type: ignore[arg-type]


def test_exact_metrics_have_no_bound() -> None:
    metric = FederatedROC()
    with pytest.raises(InputError, match="without `privacy`"):
        metric.update(torch.tensor([0.5]), torch.tensor([0]), persons=[1])
    assert not metric.update_called


@pytest.mark.parametrize("groups", [True, False])
def test_a_collection_counts_a_person_once_for_all_its_metrics(groups: bool) -> None:
    collection: Any = federated_collection(
        privacy=CentralDP(1.0, examples_per_person=MOST, enforced=True)
    )
    collection._enable_compute_groups = groups
    for preds, target, ids in batches():
        collection.update(preds, target, persons=ids)
    roc = collection["roc"]
    precision_recall = collection["precision_recall_curve"]
    assert (
        int(roc.counts.sum()) == int(precision_recall.counts.sum()) == 64 * 8 - roc.persons.left_out
    )
    assert roc.persons.left_out == precision_recall.persons.left_out > 100
    assert roc.persons.bound_enforced
    assert precision_recall.persons.bound_enforced
    collection.compute()
    assert len(roc.ledger) == 1


def test_a_metric_taken_out_of_its_collection_does_not_forget() -> None:
    collection: Any = federated_collection(privacy=CentralDP(1.0, examples_per_person=MOST))
    for preds, target, ids in batches(4):
        collection.update(preds, target, persons=ids)
    preds = torch.tensor([0.5] * 4)
    target = torch.tensor([0] * 4)
    refusals = 0
    for name in ("roc", "precision_recall_curve"):
        metric = collection[name]
        before = int(collection[name].counts.sum())
        try:  # one of them has counted for both, and knows everybody
            metric.update(preds, target, persons=[7] * 4)
        except InputError:
            refusals += 1
        assert int(metric.counts.sum()) == before
    assert refusals == 1


def test_a_copy_does_not_double_the_bound() -> None:
    metric = private()
    preds = torch.tensor([0.5] * 2)
    target = torch.tensor([0] * 2)
    metric.update(preds, target, persons=[1, 2])
    twin = deepcopy(metric)
    for member in (metric, twin):
        for _ in range(4):
            member.update(preds, target, persons=[1, 2])
        assert int(member.counts.sum()) == 2 * MOST
    with pytest.raises(ReleaseError, match="Divide the data by person"):
        metric.merge_state(twin)
    assert int(metric.counts.sum()) == 2 * MOST
    metric.compute()


def test_metrics_merge_with_their_persons() -> None:
    preds = torch.tensor([0.5] * 2)
    target = torch.tensor([0] * 2)
    first = private()
    second = private()
    empty = private()
    first.update(preds, target, persons=[1, 2])
    second.update(preds, target, persons=[1, 3])
    empty.merge_state(first)
    empty.merge_state(second)
    empty.update(preds, target, persons=[1, 1])
    assert int(empty.counts.sum()) == 5
    assert empty.persons.left_out == 1
    assert empty.persons.bound_enforced
    without = private()
    without.update(preds, target)
    for incoming in (without, without.metric_state, second.metric_state):
        with pytest.raises(InputError, match="merge metrics"):
            first.merge_state(incoming)
    with pytest.raises(InputError, match="merge metrics"):
        without.merge_state(first)
    assert int(first.counts.sum()) == 2


def test_ids_stay_out_of_what_is_kept(tmp_path: Any) -> None:
    metric = private()
    metric.update(torch.rand(4), torch.tensor([0, 1, 0, 1]), persons=["ann", "bob", "cleo", "dan"])
    metric.compute()
    state = metric.__getstate__()
    assert state["_persons"].table is None
    assert state["_client"].persons is None
    metric.reset()
    assert pickle.loads(pickle.dumps(private())).persons.left_out == 0


@pytest.mark.parametrize("validate", [True, False, "deferred"])
@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_what_is_counted_is_what_the_admitted_examples_count(task: Any, validate: Any) -> None:
    options_of_tasks: Any = {
        "multiclass": {"num_classes": 3, "sums_to_one": False},
        "multilabel": {"num_labels": 3},
    }
    options: Any = options_of_tasks.get(task, {})
    generator = torch.Generator().manual_seed(1)
    preds = torch.rand((20, 3, 2) if options else (20, 2), generator=generator)
    target = torch.randint(
        0, 2, (20, 3, 2) if task == "multilabel" else (20, 2), generator=generator
    )
    target[:3] = -1
    ids = torch.randint(0, 6, (20,), generator=generator)
    privacy = LocalDP(1.0, examples_per_person=MOST)
    metric = FederatedAUROC(
        task, privacy=privacy, ignore_index=-1, validate_args=validate, **options
    )
    metric.update(preds, target, persons=ids)
    expected = FederatedAUROC(task, privacy=privacy, ignore_index=-1, **options)
    occurrences = Counter[int]()
    for row in range(3, 20):
        for position in range(2):
            person = int(ids[row])
            occurrences[person] += 1
            if occurrences[person] <= MOST:
                expected.update(
                    preds[row : row + 1, ..., position], target[row : row + 1, ..., position]
                )
    assert torch.equal(metric.counts, expected.counts)
    assert metric.persons.left_out == sum(max(times - MOST, 0) for times in occurrences.values())


def test_each_simulated_client_bounds_its_own_persons() -> None:
    privacy = DistributedDP(20.0, min_clients=2, examples_per_person=MOST, enforced=True)
    batch: dict[str, Any] = {
        "preds": torch.rand(5_000),
        "target": torch.arange(5_000) % 2,
        "persons": ["x"] * 5_000,
    }
    metric = FederatedROC(privacy=privacy, quantiles=4, plan="paper", grid="even")
    release = simulate([batch, [batch, batch], iter([batch] * 3)], metric).release
    assert abs(int(release.leaf.sum())) < 1_000  # of 30,000: 9, and noise
    for wrong in (
        (batch["preds"], batch["target"]),
        {"preds": batch["preds"], "target": batch["target"]},
    ):
        with pytest.raises(InputError, match=r"Client 1.*with every batch"):
            simulate([batch, wrong], metric)
    word = FederatedROC(privacy=LocalDP(1.0, examples_per_person=MOST))
    mixed: list[Any] = [(batch["preds"], batch["target"]), batch]
    with pytest.raises(InputError, match="one kind"):
        simulate([mixed], word)
    assert not word.update_called
