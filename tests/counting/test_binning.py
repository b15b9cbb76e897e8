"""A score and its complement have mirrored bins, however fine the grid is."""

from __future__ import annotations

import pytest
import torch

from torchmetrics_fed.counting.binning import Binning, TwoSidedBinning
from torchmetrics_fed.counting.validation import probabilities

BINS = [4, 64, 4096, 1 << 17, 1 << 20]


@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_are_those_between_the_edges(bins: int, dtype: torch.dtype) -> None:
    binning = TwoSidedBinning(bins)
    scores = torch.rand(2_000, dtype=dtype)
    scores = torch.cat([scores, scores**8, 1 - scores**8, torch.tensor([0.0, 0.5, 1.0]).to(dtype)])
    expected = Binning(binning.edges, (0.0, 1.0)).of(scores.double())
    assert torch.equal(binning.of(scores), expected)


@pytest.mark.parametrize("bins", BINS[:-1])  # the finest grid is finer than float32 is
def test_negated_logits_have_the_mirrored_bins(bins: int) -> None:
    """Above a half, the complement says where a score is: it keeps the digits that 1 - s lost."""
    binning = TwoSidedBinning(bins)
    logits = 20 * torch.rand(5_000) + 1e-3
    high = binning.of(*probabilities(logits, "sigmoid"))
    low = binning.of(*probabilities(-logits, "sigmoid"))
    # only a score on an edge is in a bin that has no mirror image
    assert (high + low == bins - 1).double().mean() > 0.999


def test_float32_logits_stay_apart_on_the_finest_grids() -> None:
    logits = torch.linspace(18, 28, 400)
    score, complement = probabilities(logits, "sigmoid")
    assert (score == 1).all()
    assert len(TwoSidedBinning(1 << 17).of(score, complement).unique()) > 350
