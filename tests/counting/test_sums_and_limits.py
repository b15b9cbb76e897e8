"""Values that the noise of several classes rests on: sums of scores, and numbers of labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedROC,
    InputError,
    LocalDP,
    ScoreGrid,
)
from torchmetrics_fed.errors import FederatedMetricError
from torchmetrics_fed.simulate import simulate

PURE = CentralDP(1.0)
DELTA = CentralDP(1.0, mechanism="skellam", delta=1e-6)


def softmax_scores(examples: int, classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (2 * torch.randn(examples, classes, generator=generator)).softmax(1)


def classes_metric(classes: int = 3, **options: Any) -> FederatedROC:
    return FederatedROC("multiclass", num_classes=classes, **{"privacy": PURE, **options})


@pytest.mark.parametrize("row", [[0.9, 0.9, 0.9], [0.1, 0.1, 0.1], [0.5, 0.5, 0.05]])
@pytest.mark.parametrize("size", [1, 40, 5_000])
def test_a_batch_with_another_sum_is_refused_and_changes_nothing(
    row: list[float], size: int
) -> None:
    """The fast way and the plain one: few scores, one chunk, several chunks."""
    metric = classes_metric()
    target = torch.zeros(size, dtype=torch.int64)
    scores = softmax_scores(size, 3)
    metric.update(scores, target)
    counts = metric.counts.clone()
    scores[size // 2] = torch.tensor(row)
    with pytest.raises(InputError, match="add up to 1") as caught:
        metric.update(scores, target)
    assert "sums_to_one=False" in str(caught.value)
    assert torch.equal(metric.counts, counts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_softmax_in_every_dtype_adds_up(dtype: torch.dtype, classes: int) -> None:
    metric = classes_metric(classes)
    metric.update(softmax_scores(200, classes).to(dtype), torch.zeros(200, dtype=torch.int64))
    assert metric.counts[0].sum() == 200


def test_deferred_checks_leave_such_examples_out_and_say_so_before_anything_leaves() -> None:
    metric = classes_metric(validate_args="deferred")
    scores = softmax_scores(10, 3)
    scores[4] = 0.9
    metric.update(scores, torch.zeros(10, dtype=torch.int64))
    assert metric.counts[0].sum() == 9
    with pytest.raises(FederatedMetricError):
        metric.compute()
    assert len(metric.ledger) == 0


def test_ignored_examples_may_have_any_scores() -> None:
    metric = classes_metric(ignore_index=-1)
    scores = softmax_scores(4, 3)
    scores[1] = 0.9
    metric.update(scores, torch.tensor([0, -1, 2, 1]))
    assert metric.counts[0].sum() == 3


def test_softmax_of_the_metric_needs_no_check() -> None:
    metric = classes_metric(normalization="softmax")
    metric.update(100 * torch.randn(50, 3), torch.zeros(50, dtype=torch.int64))
    assert metric.counts[0].sum() == 50


@pytest.mark.parametrize(
    "options",
    [
        {"privacy": None},
        {"privacy": DELTA},
        {"sums_to_one": False},
        {"multi_class": "ovo"},
        {"grid": ScoreGrid.even(64, (0.0, 2.0))},
    ],
    ids=["exact", "delta", "asked for", "one against one", "another range"],
)
def test_where_noise_does_not_rest_on_it_scores_may_add_up_to_anything(
    options: dict[str, Any],
) -> None:
    metric = classes_metric(**options)
    assert not metric.spec.sums_to_one
    metric.update(torch.full((4, 3), 0.9), torch.zeros(4, dtype=torch.int64))
    assert metric.counts[0].sum() == 4


@pytest.mark.parametrize(
    ("task", "options", "name"),
    [
        ("multiclass", {"num_classes": 3}, "sums_to_one=False"),
        ("multilabel", {"num_labels": 3, "labels_per_example": 1}, "labels_per_example=None"),
    ],
)
def test_values_that_noise_rests_on_are_always_checked(
    task: Any, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError, match="validate_args") as caught:
        FederatedROC(task, privacy=PURE, validate_args=False, **options)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("binary", {"sums_to_one": True}),
        ("multiclass", {"num_classes": 3, "sums_to_one": True, "privacy": None}),
        ("multiclass", {"num_classes": 3, "sums_to_one": 1}),
        ("multiclass", {"num_classes": 3, "labels_per_example": 1}),
        ("multilabel", {"num_labels": 3, "labels_per_example": 4}),
        ("multilabel", {"num_labels": 3, "labels_per_example": 0}),
    ],
)
def test_impossible_promises_are_refused(task: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"sums_to_one|labels_per_example"):
        FederatedROC(task, **{"privacy": PURE, **options})


def limited_counts(target: list[list[int]], limit: int | None, **options: Any) -> Tensor:
    """Return the counts of labels whose scores are all the same, ``(labels, 2)``."""
    metric = FederatedROC(
        "multilabel",
        num_labels=len(target[0]),
        labels_per_example=limit,
        **{"privacy": PURE, **options},
    )
    labels = torch.tensor(target)
    metric.update(torch.full(labels.shape, 0.3), labels)
    return metric.counts.sum(-1)


@pytest.mark.parametrize("privacy", [None, PURE], ids=["exact", "private"])
def test_the_first_positive_labels_are_counted_and_the_others_left_out(privacy: Any) -> None:
    counts = limited_counts([[1, 1, 0, 1], [0, 0, 1, 0]], 2, privacy=privacy)
    assert counts.tolist() == [[1, 1], [1, 1], [1, 1], [1, 0]]


def test_labels_within_the_limit_are_counted_as_ever() -> None:
    target = [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert torch.equal(limited_counts(target, 2), limited_counts(target, None))


def test_ignored_labels_do_not_fill_the_limit() -> None:
    counts = limited_counts([[-1, 1, 1, 1]], 2, ignore_index=-1)
    assert counts.tolist() == [[0, 0], [0, 1], [0, 1], [0, 0]]


def test_wrong_labels_are_still_refused() -> None:
    with pytest.raises(InputError, match="target"):
        limited_counts([[1, 1, 1, -1]], 2)
    with pytest.raises(InputError, match="target"):
        limited_counts([[1, 1, 1, 2]], 2)


@pytest.mark.parametrize("positions", [(), (3,)])
def test_the_limit_holds_for_groups_positions_and_dtypes(positions: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 2, (50, 5, *positions), generator=generator)
    preds = torch.rand(target.shape, generator=generator)
    groups = torch.randint(0, 2, (50, *positions), generator=generator)
    metric = FederatedROC("multilabel", num_labels=5, privacy=PURE, labels_per_example=2, groups=2)
    metric.update(preds, target.bool() if not positions else target, groups)
    expected = torch.minimum(target.sum(1), torch.tensor(2)).sum()
    assert metric.counts[:, 1::2].sum() == expected
    assert metric.counts[:, ::2].sum() == (target == 0).sum()


def test_simulated_clients_keep_both_promises() -> None:
    labels = FederatedAUROC("multilabel", num_labels=3, privacy=LocalDP(5.0), labels_per_example=1)
    batch = (torch.full((5, 3), 0.4), torch.ones(5, 3, dtype=torch.int64))
    release = simulate([batch] * 3, labels).release
    assert release.spec.labels_per_example == 1
    classes = FederatedAUROC("multiclass", num_classes=3, privacy=LocalDP(1.0))
    with pytest.raises(InputError, match="add up to 1"):
        simulate([(torch.full((5, 3), 0.9), torch.zeros(5, dtype=torch.int64))], classes)
