"""Counts by group are the counts of the examples of each group, to the bit, on every path."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import FederatedROC, InputError
from torchmetrics_fed.typing import Task, Validation

GROUPS = 3
CLASSES = 4
TASKS: list[tuple[Task, dict[str, Any]]] = [
    ("binary", {}),
    ("multiclass", {"num_classes": CLASSES}),
    ("multiclass", {"num_classes": CLASSES, "multi_class": "ovo"}),
    ("multilabel", {"num_labels": CLASSES}),
]


def batch(task: Task, size: int, ignore_index: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, labels and groups; a fifth of the labels is ignored."""
    generator = torch.Generator().manual_seed(size)
    if task == "binary":
        scores = torch.rand(size, generator=generator)
        labels = torch.randint(0, 2, (size,), generator=generator)
    elif task == "multilabel":
        scores = torch.rand(size, CLASSES, generator=generator)
        labels = torch.randint(0, 2, (size, CLASSES), generator=generator)
    else:
        scores = torch.randn(size, CLASSES, generator=generator).softmax(1)
        labels = torch.randint(0, CLASSES, (size,), generator=generator)
    if ignore_index is not None:
        is_ignored = torch.rand(labels.shape, generator=generator) < 0.2
        labels[is_ignored] = ignore_index
    groups = torch.randint(0, GROUPS, (size,), generator=generator)
    return scores, labels, groups


def counts_by_group(metric: FederatedROC) -> Tensor:
    return metric.spec.by_group(metric.counts)


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("ignore_index", [None, -1, 1, 255])
@pytest.mark.parametrize(
    ("size", "dtype", "validate_args"),
    [
        (400, torch.float32, True),
        (40_000, torch.float32, True),
        (400, torch.bfloat16, True),
        (400, torch.float32, "deferred"),
        (400, torch.float32, False),
    ],
    ids=["few", "many", "bfloat16", "deferred", "unchecked"],
)
def test_each_group_has_the_counts_of_its_examples(
    task: Task,
    options: dict[str, Any],
    ignore_index: int | None,
    size: int,
    dtype: torch.dtype,
    validate_args: Validation,
) -> None:
    scores, labels, groups = batch(task, size, ignore_index)
    scores = scores.to(dtype)
    arguments = {
        **options,
        "quantiles": 64,
        "ignore_index": ignore_index,
        "validate_args": validate_args,
    }
    grouped = FederatedROC(task, groups=GROUPS, **arguments)
    grouped.update(scores, labels, groups)
    parts = []
    for group in range(GROUPS):
        metric = FederatedROC(task, **arguments)
        metric.update(scores[groups == group], labels[groups == group])
        parts.append(counts_by_group(metric))
    assert torch.equal(counts_by_group(grouped), torch.cat(parts))


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("missing", [-1, GROUPS, 1 << 40])
def test_a_batch_with_a_missing_group_is_refused(
    task: Task, options: dict[str, Any], missing: int
) -> None:
    metric = FederatedROC(task, groups=GROUPS, **options)
    scores, labels, groups = batch(task, 50, None)
    groups[7] = missing
    with pytest.raises(InputError, match="from 0 to 2, one for each group"):
        metric.update(scores, labels, groups)
    assert not metric.counts.any()
    assert not metric.update_called
    labels[..., 0] = 9
    with pytest.raises(InputError, match="argument `target`"):
        metric.update(scores, labels, groups.clamp(0, 2))


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("missing", [-1, GROUPS, 1 << 40])
def test_an_ignored_example_may_have_any_group(
    task: Task, options: dict[str, Any], missing: int
) -> None:
    metric = FederatedROC(task, groups=GROUPS, ignore_index=9, **options)
    scores, labels, _ = batch(task, 1, None)
    metric.update(scores, torch.full_like(labels, 9), torch.tensor([missing]))
    assert not metric.counts.any()


def test_deferred_examples_without_a_group_are_refused_at_the_release() -> None:
    metric = FederatedROC(groups=2, validate_args="deferred")
    scores = torch.tensor([0.1, 0.2, 0.3])
    metric.update(scores, torch.tensor([0, 1, 0]), torch.tensor([0, 2, 1]))
    assert int(metric.counts.sum()) == 2
    with pytest.raises(InputError, match="1 could not be counted"):
        metric.release()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "Expected argument `groups`, an integer from 0 to 1"),
        (torch.tensor([0.0, 1.0]), "integers from 0 to 1 but got torch.float32"),
        (torch.tensor([True, False]), "got torch.bool"),
        (torch.tensor([0]), r"of shape \(2,\) but got \(1,\)"),
        ([0, 1], r"of shape \(2,\) but got list"),
    ],
)
def test_a_bad_argument_groups_is_refused(groups: Any, message: str) -> None:
    metric = FederatedROC(groups=("a", "b"))
    with pytest.raises(InputError, match=message):
        metric.update(torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), groups)
    assert not metric.counts.any()


@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_has_groups_if_and_only_if_the_metric_has_them(size: int) -> None:
    scores = torch.full((size,), 0.1)
    labels = torch.zeros(size, dtype=torch.int64)
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
    metric.update(
        torch.tensor([0.1, 0.9, 0.9]),
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 0]),
        sample_weight=torch.tensor([2, 3, 5]),
    )
    releases = metric.release().by_group
    assert releases["0"].leaf.sum(-1).flatten().tolist() == [2, 5]
    assert releases["1"].leaf.sum(-1).flatten().tolist() == [0, 3]


def test_every_order_of_batches_counts_alike() -> None:
    scores, labels, groups = batch("binary", 60, None)
    at_once = FederatedROC(groups=GROUPS, quantiles=64)
    at_once.update(scores, labels, groups)
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    for order in itertools.permutations(parts):
        metric = FederatedROC(groups=GROUPS, quantiles=64)
        for part in order:
            metric.update(scores[part], labels[part], groups[part])
        assert torch.equal(metric.counts, at_once.counts)
