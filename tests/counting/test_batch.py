"""Weights, further dimensions and refused examples: what the plain operations are for."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed import FederatedROC, ScoreGrid
from torchmetrics_fed.counting import batch
from torchmetrics_fed.counting.validation import Rules
from torchmetrics_fed.typing import Task

GRID = ScoreGrid.two_sided(64)


@pytest.mark.parametrize("chunk", [50, 32_768])
@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_a_weight_is_how_often_an_example_counts(
    task: Task, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", chunk)
    columns = 1 if task == "binary" else 4
    scores = torch.rand(300) if task == "binary" else torch.rand(300, columns)
    target = torch.randint(0, 2, scores.shape if task == "multilabel" else (300,))
    weight = torch.randint(0, 5, (300,))
    weighted = GRID.add(GRID.empty(columns), scores, target, Rules(task), weight=weight)
    repeated_scores = scores.repeat_interleave(weight, 0)
    repeated_target = target.repeat_interleave(weight, 0)
    repeated = GRID.add(GRID.empty(columns), repeated_scores, repeated_target, Rules(task))
    assert torch.equal(weighted, repeated)


def test_weights_of_images_go_with_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.rand(2, 3, 8, 8)
    target = torch.randint(0, 3, (2, 8, 8))
    weight = torch.randint(0, 5, (2, 8, 8))
    whole = GRID.add(GRID.empty(3), scores, target, Rules("multiclass"), weight=weight)
    monkeypatch.setattr(batch, "CHUNK", 30)
    chunked = GRID.add(GRID.empty(3), scores, target, Rules("multiclass"), weight=weight)
    assert torch.equal(whole, chunked)
    assert whole.sum() == 3 * weight.sum()


@pytest.mark.parametrize("examples", [1, 4])
def test_labels_with_positions_may_be_ignored(examples: int) -> None:
    metric = FederatedROC("multilabel", num_labels=3, ignore_index=-1)
    target = torch.randint(-1, 2, (examples, 3, 2))
    metric.update(torch.rand(examples, 3, 2), target)
    assert metric.counts.sum() == (target >= 0).sum()


def test_an_example_is_refused_once_whatever_is_wrong_with_it() -> None:
    refused = torch.zeros((), dtype=torch.int64)
    scores = torch.tensor([0.1, torch.nan, 0.3, 2.0])
    target = torch.tensor([0, 1, 7, 9])
    counts = GRID.add(GRID.empty(), scores, target, refused=refused)
    assert counts.sum() == 1
    assert refused == 3
