"""Counts of several classes or labels: each column's histograms, by brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import InputError, ScoreGrid
from torchmetrics_fed.counting import batch as counting
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.typing import Task

GRID = ScoreGrid(bins=64)
K = 5


def brute(scores: Tensor, rows: Tensor, count: int, grid: ScoreGrid = GRID) -> Tensor:
    """Histograms of each column of (N, K) scores, one for each row number in (N, K)."""
    edges = grid.edges.numpy()
    result = torch.zeros(scores.shape[1], count, grid.bins, dtype=torch.int64)
    for column in range(scores.shape[1]):
        for row in range(count):
            mine = scores[:, column][rows[:, column] == row].double().numpy()
            result[column, row] = torch.from_numpy(np.histogram(mine, bins=edges)[0])
    return result


def batch(size: int = 500, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(size, K, generator=generator).softmax(1)
    scores[: min(size, 3)] = torch.eye(K)[: min(size, 3)]  # scores of exactly 0 and 1
    classes = torch.randint(0, K, (size,), generator=generator)
    labels = torch.randint(0, 2, (size, K), generator=generator)
    return scores.to(dtype), classes, labels


@pytest.fixture(params=[32_768, 64], ids=["whole", "chunked"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_against_the_rest(dtype: torch.dtype) -> None:
    scores, classes, _ = batch(dtype=dtype)
    counts = GRID.add(GRID.empty(K), scores, classes, Rules("multiclass"))
    assert torch.equal(counts, brute(scores, (classes[:, None] == torch.arange(K)).long(), 2))


@pytest.mark.usefixtures("chunk")
def test_one_against_one() -> None:
    scores, classes, _ = batch()
    counts = GRID.add(GRID.empty(K, K), scores, classes, Rules("multiclass"))
    assert torch.equal(counts, brute(scores, classes[:, None].expand(-1, K), K))


@pytest.mark.usefixtures("chunk")
def test_labels() -> None:
    scores, _, labels = batch()
    assert torch.equal(
        GRID.add(GRID.empty(K), scores, labels, Rules("multilabel")), brute(scores, labels, 2)
    )


@pytest.mark.usefixtures("chunk")
def test_batches_add_up_whatever_the_layout_of_the_counts() -> None:
    scores, classes, _ = batch()
    whole = GRID.add(GRID.empty(K), scores, classes, Rules("multiclass"))
    counts = GRID.empty(K)
    for some_scores, some_classes in zip(scores.split(37), classes.split(37), strict=True):
        counts = GRID.add(counts.clone(), some_scores, some_classes, Rules("multiclass"))
    assert torch.equal(whole, counts)
    assert torch.equal(
        GRID.add(whole.contiguous(), scores, classes, Rules("multiclass")), 2 * counts
    )


@pytest.mark.parametrize("ignore_index", [-1, 0, 255])
def test_ignored_examples_leave_no_trace(ignore_index: int) -> None:
    scores, classes, labels = batch()
    classes[::3] = ignore_index
    kept = classes != ignore_index
    expected = GRID.add(GRID.empty(K), scores[kept], classes[kept], Rules("multiclass"))
    scores[~kept] = torch.nan
    assert torch.equal(
        GRID.add(GRID.empty(K), scores, classes, Rules("multiclass", None, ignore_index)), expected
    )
    scores, _, labels = batch()
    labels[::3, 1] = ignore_index
    ignored = labels == ignore_index
    rows = torch.where(ignored, 9, labels)
    expected = brute(scores, rows, 2)
    scores[ignored] = torch.nan
    assert torch.equal(
        GRID.add(GRID.empty(K), scores, labels, Rules("multilabel", None, ignore_index)), expected
    )


def test_logits() -> None:
    _, classes, labels = batch()
    logits = 4 * torch.randn(500, K)
    softmax = GRID.add(GRID.empty(K), logits, classes, Rules("multiclass", "softmax"))
    assert torch.equal(
        softmax, GRID.add(GRID.empty(K), logits.softmax(1), classes, Rules("multiclass"))
    )
    sigmoid = GRID.add(GRID.empty(K), logits, labels, Rules("multilabel", "sigmoid"))
    assert torch.equal(
        sigmoid, GRID.add(GRID.empty(K), logits.sigmoid(), labels, Rules("multilabel"))
    )


def test_further_dimensions_and_ranges() -> None:
    scores, classes, labels = batch(512)
    image = scores.view(8, 8, 8, K).movedim(-1, 1)
    expected = GRID.add(GRID.empty(K), scores, classes, Rules("multiclass"))
    assert torch.equal(
        GRID.add(GRID.empty(K), image, classes.view(8, 8, 8), Rules("multiclass")), expected
    )
    masks = labels.view(8, 8, 8, K).movedim(-1, 1)
    expected = GRID.add(GRID.empty(K), scores, labels, Rules("multilabel"))
    assert torch.equal(GRID.add(GRID.empty(K), image, masks, Rules("multilabel")), expected)
    grid = ScoreGrid(bins=16, score_range=(-1.0, 3.0))
    rows = (classes[:, None] == torch.arange(K)).long()
    assert torch.equal(
        grid.add(grid.empty(K), scores, classes, Rules("multiclass")), brute(scores, rows, 2, grid)
    )


@pytest.mark.parametrize(
    ("task", "spoil", "named"),
    [
        ("multiclass", lambda s, c, _: (s * 3, c), r"\[0.0, 1.0\]"),
        ("multiclass", lambda s, c, _: (s.index_fill(0, torch.tensor([499]), torch.nan), c), "NaN"),
        ("multiclass", lambda s, c, _: (s, c.index_fill(0, torch.tensor([499]), K)), "from 0 to 4"),
        (
            "multiclass",
            lambda s, c, _: (s, c.index_fill(0, torch.tensor([499]), -1)),
            "from 0 to 4",
        ),
        ("multiclass", lambda s, c, _: (s[:, :-1], c), "shapes"),
        ("multiclass", lambda s, c, _: (s, c[:-1]), "shapes"),
        ("multilabel", lambda s, _, y: (s, y + 1), "from 0 to 1"),
        ("multilabel", lambda s, c, _: (s, c), "same shape"),
        ("multilabel", lambda s, _, y: (s, y.to(torch.complex64)), "target.real.long"),
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(
    task: Task,
    spoil: Callable[..., tuple[Tensor, Tensor]],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "CHUNK", 64)  # the last of many chunks is the bad one
    counts = GRID.add(GRID.empty(K), *batch()[:2], Rules("multiclass"))
    before = counts.clone()
    preds, target = spoil(*batch())
    with pytest.raises(InputError, match=named):
        GRID.add(counts, preds, target, Rules(task=task))
    assert torch.equal(counts, before)
