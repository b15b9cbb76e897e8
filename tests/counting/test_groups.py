"""Counts by group are the counts of each group's examples, to the bit, on every path of the kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError
from torchmetrics_fed.typing import Task

GROUPS = 3
TASKS: list[tuple[Task, dict[str, Any]]] = [
    ("binary", {}),
    ("multiclass", {"num_classes": 4}),
    ("multiclass", {"num_classes": 4, "multi_class": "ovo"}),
    ("multilabel", {"num_labels": 4}),
]


def batch(task: Task, size: int, ignore_index: int | None) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    shape = (size,) if task == "binary" else (size, 4)
    logits = torch.randn(shape, generator=generator)
    labels = torch.randint(
        0,
        4 if task == "multiclass" else 2,
        shape[:1] if task == "multiclass" else shape,
        generator=generator,
    )
    if ignore_index is not None:
        labels[torch.rand(labels.shape, generator=generator) < 0.2] = ignore_index
    scores = logits.softmax(1) if task == "multiclass" else logits.sigmoid()
    return scores, labels, torch.randint(0, GROUPS, (size,), generator=generator)


def added(metric: FederatedROC, scores: Tensor, labels: Tensor, *groups: Tensor) -> Tensor:
    metric.update(scores, labels, *groups)
    return metric.spec.by_group(metric.counts)


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("ignore_index", [None, -1, 1, 255])
@pytest.mark.parametrize("way", ["few", "many", "bfloat16", "deferred", "unchecked"])
def test_each_group_has_the_counts_of_its_examples(
    task: Task, options: dict[str, Any], ignore_index: int | None, way: str
) -> None:
    scores, labels, groups = batch(task, 40_000 if way == "many" else 400, ignore_index)
    scores = scores.to(torch.bfloat16) if way == "bfloat16" else scores
    checked = {"deferred": "deferred", "unchecked": False}.get(way, True)
    options = {**options, "quantiles": 64, "ignore_index": ignore_index, "validate_args": checked}
    counts = added(FederatedROC(task, groups=GROUPS, **options), scores, labels, groups)
    alone = [
        added(FederatedROC(task, **options), scores[groups == g], labels[groups == g])
        for g in range(GROUPS)
    ]
    assert torch.equal(counts, torch.cat(alone))


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("bad", [-1, GROUPS, 1 << 40])
def test_a_group_that_there_is_not_refuses_the_batch(
    task: Task, options: dict[str, Any], bad: int
) -> None:
    metric = FederatedROC(task, groups=GROUPS, **options)
    scores, labels, groups = batch(task, 50, None)
    groups[7] = bad
    with pytest.raises(InputError, match="from 0 to 2, one for each group"):
        metric.update(scores, labels, groups)
    assert not metric.counts.any()
    assert not metric.update_called
    labels[..., 0] = 9
    with pytest.raises(InputError, match="argument `target`"):
        metric.update(scores, labels, groups.clamp(0, 2))
    metric = FederatedROC(task, groups=GROUPS, ignore_index=9, **options)
    metric.update(
        scores[:1], torch.full_like(labels[:1], 9), torch.tensor([bad])
    )  # ignored, whatever its group
    assert not metric.counts.any()


def test_deferred_strangers_are_counted_and_refused_at_the_end() -> None:
    metric = FederatedROC(groups=2, validate_args="deferred")
    metric.update(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 0]), torch.tensor([0, 2, 1]))
    assert int(metric._refused) == 1
    assert int(metric.counts.sum()) == 2
    with pytest.raises(InputError, match="1 could not be counted"):
        metric.release()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "Expected argument `groups`, an integer from 0 to 1"),
        (torch.tensor([0.0, 1.0]), "integers from 0 to 1 but got torch.float32"),
        (torch.tensor([True, False]), "got torch.bool"),
        (torch.tensor([0]), "of shape \\(2,\\) but got \\(1,\\)"),
        ([0, 1], "of shape \\(2,\\) but got list"),
    ],
)
def test_what_is_no_group_says_what_is(groups: Any, message: str) -> None:
    metric = FederatedROC(groups=("a", "b"))
    with pytest.raises(InputError, match=message):
        metric.update(torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), groups)
    assert not metric.counts.any()


@pytest.mark.parametrize("size", [0, 1])
def test_groups_come_exactly_where_a_metric_has_them(size: int) -> None:
    scores, labels = torch.full((size,), 0.1), torch.zeros(size, dtype=torch.int64)
    with pytest.raises(InputError, match="this metric has none"):
        FederatedROC().update(scores, labels, labels)
    grouped = FederatedROC(groups=2)
    with pytest.raises(InputError, match="but got none"):
        grouped.update(scores, labels)
    assert not grouped.update_called


@pytest.mark.parametrize(
    "groups",
    [0, 1, True, 257, "ab", ("a",), ("a", "a"), (1, 2), ("a", ""), ("a", "x" * 256), [], 2.0],
)
def test_groups_are_several_different_names(groups: Any) -> None:
    with pytest.raises(InputError, match="2 to 256 different names"):
        FederatedROC(groups=groups)


def test_weights_count_in_their_group() -> None:
    metric = FederatedROC(groups=2, quantiles=64)
    scores, labels, groups = (
        torch.tensor(each) for each in ([0.1, 0.9, 0.9], [0, 1, 1], [0, 1, 0])
    )
    metric.update(scores, labels, groups, sample_weight=torch.tensor([2, 3, 5]))
    sizes = {
        name: part.leaf.sum(-1).flatten().tolist()
        for name, part in metric.release().by_group.items()
    }
    assert sizes == {"0": [2, 5], "1": [0, 3]}


def test_every_order_of_batches_counts_alike() -> None:
    scores, labels, groups = batch("binary", 60, None)
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    found = []
    for order in itertools.permutations(parts):
        metric = FederatedROC(groups=GROUPS, quantiles=64)
        for part in order:
            metric.update(scores[part], labels[part], groups[part])
        found.append(metric.counts)
    assert all(torch.equal(counts, found[0]) for counts in found)
