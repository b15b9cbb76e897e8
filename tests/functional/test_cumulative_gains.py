"""Gains and lift against scikit-learn's ROC curve, whose points are selected fractions and recalls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve
from torch import Tensor

from benchmarks.decisions import exact_gains
from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.functional import cumulative_gains
from torchmetrics_fed.functional.curve import count


def test_it_is_scikit_learns(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid, binned: Tensor
) -> None:
    """Tolerance 1e-12: of scores that share a bin as many are taken as there is room for, at random."""
    target = scored[1].numpy()
    fpr, tpr, _ = roc_curve(target, binned.numpy(), drop_intermediate=False)
    share = target.mean()
    q = np.linspace(0.01, 1, 100)
    result = cumulative_gains(count(*scored, grid=grid))
    expected = np.interp(q, share * tpr + (1 - share) * fpr, tpr)
    assert np.abs(result.recall.numpy() - expected).max() < 1e-12
    assert np.abs(result.lift.numpy() - expected / q).max() < 1e-10
    assert result.scalars["recall_top_decile"].item() == result.recall[9]
    assert result.scalars["lift_top_decile"].item() == result.lift[9]


def test_bounds_hold_the_sorted_scores(scored: tuple[Tensor, Tensor]) -> None:
    q = np.linspace(0.01, 1, 100)
    expected = exact_gains((scored[1].numpy(), scored[0].numpy()), q)
    metric = FederatedROC()
    metric.update(*scored)
    exact, sampled = (
        cumulative_gains(metric.release(), None, 0.95, population) for population in (False, True)
    )
    assert exact.low is not None
    assert exact.high is not None
    assert sampled.low is not None
    assert sampled.high is not None
    assert bool(
        ((exact.low.numpy() <= expected + 1e-9) & (expected - 1e-9 <= exact.high.numpy())).all()
    )
    # between classes' sizes as they are, recall at a fraction of all examples varies like a binomial
    width = float(sampled.high[49] - sampled.low[49])
    assert 0.005 < width < 0.1
    assert width > float(exact.high[49] - exact.low[49])


def test_classes_have_their_own_curves() -> None:
    metric = FederatedROC("multilabel", num_labels=2, privacy=CentralDP(3.0))
    target = torch.stack([torch.arange(4_000) % 2, torch.arange(4_000) % 4 == 0], 1).long()
    metric.update((0.5 * torch.rand(4_000, 2) + 0.4 * target), target)
    result = cumulative_gains(metric.release(), [0.25, 0.5], 0.95)
    assert result.low is not None
    assert result.recall.shape == result.low.shape == (2, 2)
    assert result.recall[0, 1] > 0.8
    assert result.recall[1, 0] > 0.6


def test_fractions_are_fractions() -> None:
    for wrong in ([], [0.0], [1.1]):
        with pytest.raises(InputError, match="fractions"):
            cumulative_gains(torch.ones(2, 2), wrong)
