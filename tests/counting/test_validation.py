"""A batch that cannot be counted is refused whole, by an error that names the problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.counting import batch
from torchmetrics_fed.counting.validation import Rules, check_batch, check_weight
from torchmetrics_fed.typing import Task

GRID = ScoreGrid.two_sided(64)
CLASSES = 5
TASKS: list[Task] = ["binary", "multiclass", "multilabel"]

Batch = tuple[Tensor, Tensor]
"""Scores and labels."""


@pytest.fixture(params=["fast", "fast in chunks", "device"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on every way to count."""
    if request.param == "fast in chunks":
        monkeypatch.setattr(batch, "CHUNK", 20)
    elif request.param == "device":
        monkeypatch.setattr(batch, "has_fast_way", lambda *_: False)
        monkeypatch.setattr(batch, "CHUNK", None)


def batch_of(task: Task) -> Batch:
    if task == "binary":
        return torch.rand(500), torch.randint(0, 2, (500,))
    if task == "multilabel":
        return torch.rand(500, CLASSES), torch.randint(0, 2, (500, CLASSES))
    return torch.rand(500, CLASSES), torch.randint(0, CLASSES, (500,))


def counts_of(scores: Tensor, target: Tensor, rules: Rules) -> Tensor:
    classes = 1 if rules.task == "binary" else CLASSES
    return GRID.add(GRID.empty(classes), scores, target, rules)


# Batches of a binary task


def last_score(value: float) -> Callable[[Tensor, Tensor], Batch]:
    """Return a function that sets the last score of a batch."""

    def change(scores: Tensor, target: Tensor) -> Batch:
        scores = scores.clone()
        scores[-1] = value
        return scores, target

    return change


def last_label(value: int) -> Callable[[Tensor, Tensor], Batch]:
    """Return a function that sets the last label of a batch."""

    def change(scores: Tensor, target: Tensor) -> Batch:
        target = target.clone()
        target[-1] = value
        return scores, target

    return change


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (last_score(math.nan), "NaN"),
        (last_score(math.inf), r"\[0.0, 1.0\]"),
        (last_score(-math.inf), r"\[0.0, 1.0\]"),
        (last_score(-1e-7), "normalization"),
        (last_score(1.0000001), r"scores in \[0.0, 1.0\]"),
        (last_label(2), "only 0 and 1"),
        (last_label(-1), "ignore_index"),
        (last_label(2**32), "4294967296"),
        (last_label(2**16 + 1), "65537"),
        (lambda scores, target: (scores, target[:-1]), "same shape"),
        (lambda scores, target: (scores, target.to(torch.complex64)), "target.real.long"),
        (lambda scores, target: ((scores * 2).long(), target), "floating"),
        (lambda scores, target: (scores.numpy(), target), "torch.Tensor but got ndarray"),
        (lambda scores, target: (scores, target.tolist()), "torch.Tensor but got list"),
    ],
)
@pytest.mark.parametrize("grid", [GRID, ScoreGrid()], ids=["two-sided", "even"])
def test_a_bad_batch_is_refused_and_changes_nothing(
    grid: ScoreGrid,
    change: Callable[[Tensor, Tensor], tuple[Any, Any]],
    message: str,
    scored: Batch,
) -> None:
    scores, target = scored
    counts = grid.add(grid.empty(), scores, target)
    before = counts.clone()
    bad_scores, bad_target = change(scores, target)
    with pytest.raises(InputError, match=message):
        grid.add(counts, bad_scores, bad_target)
    assert torch.equal(counts, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_must_be_finite(value: float) -> None:
    logits = torch.tensor([0.0, value])
    with pytest.raises(InputError, match="finite logits"):
        counts_of(logits, torch.tensor([0, 1]), Rules(normalization="sigmoid"))


def test_a_one_hot_target_is_refused_but_not_a_single_row() -> None:
    target = torch.tensor([[0, 1], [1, 0]])
    scores = torch.rand(2, 2)
    with pytest.raises(InputError, match="one-hot"):
        counts_of(scores, target, Rules())
    assert counts_of(scores[:1], target[:1], Rules()).sum() == 2


# Floating targets: whole numbers count as the labels they are


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
    ],
)
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("ignore_index", [None, -1, 1])
def test_whole_numbers_are_labels(
    task: Task, dtype: torch.dtype, validate: bool, ignore_index: int | None
) -> None:
    scores, target = batch_of(task)
    if ignore_index == -1:
        target.view(-1)[::7] = -1
    rules = Rules(task, validate=validate, ignore_index=ignore_index)
    expected = counts_of(scores, target, rules)
    assert expected.sum() > 0
    assert torch.equal(counts_of(scores, target.to(dtype), rules), expected)


@pytest.mark.usefixtures("path")
def test_zero_has_two_signs() -> None:
    target = torch.tensor([0.0, -0.0, 1.0])
    counts = counts_of(torch.rand(3), target, Rules())
    assert counts.sum(-1).tolist() == [[2, 1]]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "label",
    [
        0.5,
        1e-7,
        0.999999,
        -0.25,
        math.nan,
        math.inf,
        -math.inf,
        1e30,
        -1e30,
        7.0,
    ],
)
@pytest.mark.parametrize("ignore_index", [None, -1])
def test_nothing_is_counted_of_a_batch_with_other_numbers(
    task: Task, label: float, ignore_index: int | None
) -> None:
    scores, target = batch_of(task)
    counts = counts_of(scores, target, Rules(task))
    before = counts.clone()
    target = target.double()
    target.view(-1)[-1] = label
    rules = Rules(task, ignore_index=ignore_index)
    with pytest.raises(InputError, match=r"Make labels of them|or name the one to leave out"):
        GRID.add(counts, scores, target, rules)
    assert torch.equal(counts, before)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("task", TASKS)
def test_under_privacy_fractions_are_not_shown(task: Task) -> None:
    scores, target = batch_of(task)
    target = target.double()
    target.view(-1)[3] = 0.375
    with pytest.raises(InputError, match=r"\.long\(\)") as error:
        counts_of(scores, target, Rules(task, private=True))
    assert "375" not in str(error.value)


# Shapes


@pytest.mark.parametrize(
    ("task", "scores", "labels", "remedy"),
    [
        ("binary", (4, 1), (4,), r"preds\.squeeze\(1\)"),
        ("binary", (4, 2), (4,), r"preds\[:, 1\]"),
        ("binary", (4, 3), (4,), "num_classes=3"),
        ("binary", (4,), (4, 1), r"target\.squeeze\(1\)"),
        ("binary", (4,), (4, 2), r"target\.argmax\(1\)"),
        ("binary", (4, 2), (4, 1), r"preds\[:, 1\].*target\.squeeze\(1\)"),
        ("binary", (4,), (5,), "one label for each score"),
        ("multiclass", (4, 5), (4, 1), r"target\.squeeze\(1\)"),
        ("multiclass", (4, 5), (4, 5), r"target\.argmax\(1\)"),
        ("multiclass", (4, 3), (4,), "num_classes=3"),
        ("multiclass", (4,), (4,), "one score for each class"),
        ("multiclass", (4, 5), (3,), "for each class of each example"),
        ("multilabel", (4, 3), (4, 3), "num_labels=3"),
        ("multilabel", (4, 5), (4,), "for each label of each example"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_a_remedy(
    task: Task, scores: tuple[int, ...], labels: tuple[int, ...], remedy: str
) -> None:
    target = torch.zeros(labels, dtype=torch.int64)
    with pytest.raises(InputError, match=f"{task}.*{remedy}"):
        check_batch(torch.zeros(scores), target, CLASSES, task)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(4), "hold integers but got torch.float32"),
        (torch.ones(3, dtype=torch.int64), r"of shape \(4,\) but got \(3,\)"),
        ([1, 1, 1, 1], r"of shape \(4,\) but got list"),
    ],
    ids=["floats", "too few", "a list"],
)
def test_bad_weights_are_refused(weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_weight(weight, torch.zeros(4, dtype=torch.int64), "binary")
