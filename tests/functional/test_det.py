"""DET against scikit-learn on binned scores."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import det_curve
from torch import Tensor

from tests.grids import bin_of
from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.functional.tradeoffs import det_from_counts


def test_it_is_scikit_learns_at_every_threshold_of_its(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, binned: Tensor
) -> None:
    curve = det_from_counts(count(*scored, grid=grid))
    fpr, fnr, thresholds = (torch.from_numpy(part.copy()) for part in det_curve(scored[1], binned))
    at = (
        bin_of(thresholds, grid) + thresholds.isinf()
    )  # the edge below each centre; the highest for infinity
    assert len(at) > (
        60 if grid.kind == "even" else 45
    )  # the narrowest bins see errors of one kind only
    assert torch.allclose(curve.fpr[at], fpr, rtol=0, atol=1e-12)
    assert torch.allclose(curve.fnr[at], fnr, rtol=0, atol=1e-12)
    # what scikit-learn leaves out has no error of one kind
    left_out = torch.ones(65, dtype=torch.bool).index_fill(0, at, False)
    assert bool((torch.minimum(curve.fpr, curve.fnr)[left_out] == 0).all())


def test_order_and_ends(scored: tuple[Tensor, Tensor]) -> None:
    fpr, fnr, thresholds = det_from_counts(count(*scored).leaf)
    assert [end.item() for end in (fpr[0], fnr[0], fpr[-1], fnr[-1])] == [1, 0, 0, 1]
    assert bool(
        (thresholds.diff() > 0).all() and (fpr.diff() <= 0).all() and (fnr.diff() >= 0).all()
    )


def test_leading_axes() -> None:
    leaf = torch.randint(0, 9, (3, 4, 2, 16), generator=torch.Generator().manual_seed(1)) + 1
    curves, one = det_from_counts(leaf), det_from_counts(leaf[1, 2])
    assert curves.fpr.shape == curves.fnr.shape == (3, 4, 17)
    assert torch.equal(curves.fpr[1, 2], one.fpr)
    assert torch.equal(curves.fnr[1, 2], one.fnr)


def test_without_a_class_it_warns() -> None:
    with pytest.warns(UserWarning, match="No positive"):
        assert det_from_counts(torch.tensor([[1, 2], [0, 0]])).fnr.tolist() == [1, 1, 1]
    with pytest.warns(UserWarning, match="No negative"):
        assert det_from_counts(torch.tensor([[0, 0], [1, 0]])).fpr.tolist() == [0, 0, 0]
