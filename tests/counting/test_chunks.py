"""The chunks of a batch are the batch, in pieces."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed.counting.chunks import Chunks


@pytest.mark.parametrize("size", [1, 7, 64, 10_000, None])
@pytest.mark.parametrize("shape", [(50,), (50, 3), (5, 3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("has_columns", [True, False])
def test_chunks_hold_every_score_with_its_label_and_weight(
    shape: tuple[int, ...], has_columns: bool, size: int | None
) -> None:
    scores = torch.arange(torch.Size(shape).numel()).reshape(shape).double()
    per_example = scores if len(shape) == 1 else scores[:, 0]
    labels = scores if has_columns else per_example
    chunks = Chunks(scores, labels, per_example, size)
    scores_met = []
    for chunk in chunks:
        scores_met.append(chunk.scores.flatten())
        assert chunk.weight is not None
        if len(shape) > 1:
            assert torch.equal(chunk.weight, chunk.scores[:, 0])
        labels_met = chunk.labels if chunk.labels.ndim > 1 or len(shape) == 1 else chunk.weight
        assert torch.equal(chunk.labels, labels_met)
        if size is not None:
            assert chunk.scores.numel() <= max(size, 3)
    assert torch.equal(torch.cat(scores_met).sort().values, scores.flatten())
    assert chunks.several == (len(scores_met) > 1)
