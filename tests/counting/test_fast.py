"""The fast path counts as the plain one does, or leaves a batch to it untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.counting import batch, fast
from torchmetrics_fed.counting.batch import empty_counts
from torchmetrics_fed.counting.chunks import Chunks
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.typing import Task

GRIDS = [ScoreGrid.two_sided(64), ScoreGrid.two_sided(1024), ScoreGrid.even(1024)]
CASES: list[tuple[Task, int, dict[str, Any]]] = [
    ("binary", 2, {}),
    ("binary", 2, {"ignore_index": 1}),
    ("binary", 2, {"normalization": "sigmoid"}),
    ("multiclass", 2, {}),
    ("multiclass", 2, {"normalization": "softmax", "ignore_index": 0}),
    ("multiclass", 7, {}),
    ("multilabel", 2, {}),
]


def drawn(task: Task, examples: int) -> tuple[Tensor, Tensor]:
    if task == "binary":
        return torch.rand(examples), torch.randint(0, 2, (examples,))
    scores = (3 * torch.randn(examples, 7)).softmax(1)
    if task == "multilabel":
        return scores, torch.randint(0, 2, (examples, 7))
    return scores, torch.randint(0, 7, (examples,))


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.kind} {grid.bins}")
@pytest.mark.parametrize("examples", [100, 900, 20_000])
@pytest.mark.parametrize(("task", "rows", "options"), CASES)
def test_both_ways_count_alike(
    grid: ScoreGrid,
    examples: int,
    task: Task,
    rows: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = Rules(task, **options)
    scores, target = drawn(task, examples)
    columns = 1 if task == "binary" else 7
    assert fast.has_fast_way(grid.binning, rules)
    counts = grid.add(grid.empty(columns, rows), scores, target, rules)
    monkeypatch.setattr(batch, "has_fast_way", lambda *_: False)
    assert torch.equal(counts, grid.add(grid.empty(columns, rows), scores, target, rules))
    assert counts.sum() > 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1e-30, 1.0000001, -0.0])
@pytest.mark.parametrize("place", [0, 99_999])
def test_a_batch_that_is_not_plain_is_left_untouched(value: float, place: int) -> None:
    """-0.0 is a score that can be counted; the plain operations count it."""
    scores = torch.rand(100_000)
    scores[place] = value
    counts = empty_counts(1, 2, 4096)
    chunks = Chunks(scores, torch.zeros(100_000, dtype=torch.int64), None, 32_768)
    assert not fast.add_fast(counts, chunks, ScoreGrid.two_sided(1024).binning, Rules())
    assert counts.sum() == 0


def test_grids_without_a_fast_way() -> None:
    for grid in (
        ScoreGrid.two_sided(1 << 15),
        ScoreGrid.even(64, (-1.0, 1.0)),
        ScoreGrid.from_edges([0.0, 0.3, 1.0]),
    ):
        assert not fast.has_fast_way(grid.binning, Rules())
