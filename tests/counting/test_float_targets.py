"""Floating targets: whole numbers count as the labels they are, on every path, and nothing is counted of others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.counting import kernel, plain
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.typing import Task

GRID, K = ScoreGrid.two_sided(64), 5
TASKS: list[Task] = ["binary", "multiclass", "multilabel"]


@pytest.fixture(params=["plain", "plain in pieces", "device"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain in pieces":
        for name, size in (("FEW", 0), ("PIECE", 70), ("GROUP", 150), ("CHUNK", 150)):
            monkeypatch.setattr(plain, name, size)
    elif request.param == "device":
        for name in ("add_flat", "add_columns"):
            monkeypatch.setattr(kernel, name, lambda *_: False)
        monkeypatch.setattr(kernel, "CHUNK", None)


def batch(task: Task) -> tuple[Tensor, Tensor]:
    scores = torch.rand(500) if task == "binary" else torch.rand(500, K)
    return scores, torch.randint(0, K, (500,)) if task == "multiclass" else torch.randint(
        0, 2, scores.shape
    )


def counted(scores: Tensor, target: Tensor, task: Task, **options: Any) -> Tensor:
    return GRID.add(
        GRID.empty(1 if task == "binary" else K), scores, target, Rules(task=task, **options)
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("ignore_index", [None, -1, 1])
def test_whole_numbers_are_labels(
    task: Task, dtype: torch.dtype, validate: bool, ignore_index: int | None
) -> None:
    scores, target = batch(task)
    if ignore_index == -1:
        target.view(-1)[::7] = -1
    options = {"validate": validate, "ignore_index": ignore_index}
    expected = counted(scores, target, task, **options)
    assert expected.sum() > 0
    assert torch.equal(counted(scores, target.to(dtype), task, **options), expected)


def test_zero_has_two_signs() -> None:
    target = torch.tensor([0.0, -0.0, 1.0])
    assert counted(torch.rand(3), target, "binary").sum(-1).tolist() == [[2, 1]]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "label", [0.5, 1e-7, 0.999999, -0.25, math.nan, math.inf, -math.inf, 1e30, -1e30, 7.0]
)
@pytest.mark.parametrize("ignore_index", [None, -1])
def test_nothing_is_counted_of_a_batch_with_others(
    task: Task, label: float, ignore_index: int | None
) -> None:
    scores, target = batch(task)
    counts = counted(scores, target, task)
    before = counts.clone()
    target = target.double()
    target.view(-1)[-1] = label
    with pytest.raises(InputError, match=r"Make labels of them|or name the one to leave out"):
        GRID.add(counts, scores, target, Rules(task=task, ignore_index=ignore_index))
    assert torch.equal(counts, before)


@pytest.mark.parametrize("task", TASKS)
def test_fractions_are_never_shown(task: Task) -> None:
    scores, target = batch(task)
    target = target.double()
    target.view(-1)[3] = 0.375
    with pytest.raises(InputError, match=r"\.long\(\)") as caught:
        counted(scores, target, task, private=True)
    assert "375" not in str(caught.value)
