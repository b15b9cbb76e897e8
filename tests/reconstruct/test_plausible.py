"""Plausible counts have the errors of the estimate, whatever the release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedROC, Release
from torchmetrics_fed.reconstruct.uncertainty.plausible import (
    MOST_CELLS,
    plausible_counts,
    response,
)


def binary(examples: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (1.5 * torch.randn(examples, generator=generator) + target).sigmoid(), target


def released(examples: int = 4_000, **options: Any) -> Release:
    metric = FederatedROC(**options)
    metric.update(*binary(examples))
    return metric.release()


OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {},
    "adaptive": {"privacy": CentralDP(1.0)},
    "single": {"privacy": CentralDP(1.0), "plan": "single"},
    "paper": {"privacy": CentralDP(1.0), "plan": "paper", "grid": "even"},
    "two levels": {"privacy": CentralDP(8.0)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_counts_are_finite_not_negative_and_on_common_cells(name: str) -> None:
    plausible = plausible_counts(released(**OPTIONS[name]))
    sets = plausible.sets
    assert np.isfinite(sets).all()
    assert (sets >= 0).all()
    assert sets.shape[-1] == len(plausible.edges) - 1 == len(plausible.places) - 1
    assert sets.shape[-1] < 3 * MOST_CELLS
    assert (np.diff(plausible.edges) > 0).all()
    # alternatives within leaves move no count out of its leaf
    for alternative in (plausible.grained, plausible.untied):
        held = np.add.reduceat(alternative, plausible.first_cells, axis=-1)
        expected = np.add.reduceat(plausible.estimate, plausible.first_cells, axis=-1)
        assert held == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_size_of_a_class_varies_as_much_as_it_should(name: str) -> None:
    """By sampling its size has the variance of its mean; noise and smoothing add to it."""
    plausible = plausible_counts(released(**OPTIONS[name]))
    size = plausible.estimate[0].sum(-1)
    variance = plausible.draws[:, 0].sum(-1).var(0)
    assert (variance > 0.7 * size).all()
    if name in ("exact", "adaptive"):
        assert (variance < 1.6 * size).all()


def test_noise_alone_has_no_sampling_error() -> None:
    release = released(20_000, privacy=CentralDP(3.0))
    noise = plausible_counts(release, sampling=False).draws.sum(-1).var(0)
    both = plausible_counts(release).draws.sum(-1).var(0)
    assert (noise < both / 20).all()


def test_an_exact_release_without_sampling_has_no_errors() -> None:
    plausible = plausible_counts(released(), sampling=False)
    assert (plausible.draws == plausible.estimate).all()


def test_without_noise_the_estimate_follows_every_error() -> None:
    leaf = np.array([[50.0, 30.0, 20.0, 10.0], [5.0, 10.0, 30.0, 60.0]])
    assert response(leaf, np.full_like(leaf, 1e-9)) == pytest.approx(np.eye(8), abs=1e-6)


def test_much_noise_is_smoothed_away_but_for_what_all_leaves_share() -> None:
    leaf = np.tile(np.array([[200.0], [100.0]]), (1, 12))
    operator = response(leaf, np.full_like(leaf, 5_000.0))
    gain = np.square(operator).sum(1)
    assert (gain < 0.9).all()
    assert (gain[[5, 17]] < 0.3).all()
    shift = operator @ np.concatenate([np.ones(12), np.zeros(12)])
    assert shift[:12].mean() == pytest.approx(1.0, abs=0.2)


def test_a_small_class_in_much_noise_is_lost() -> None:
    assert plausible_counts(released(100, privacy=CentralDP(0.01))).lost.all()
    assert not plausible_counts(released(4_000, privacy=CentralDP(1.0))).lost.any()


def test_tied_scores_are_cells_of_their_own() -> None:
    metric = FederatedROC()
    preds, target = binary(4_000)
    metric.update((preds * 5).round() / 5, target)
    plausible = plausible_counts(metric.release())
    held = plausible.estimate[0].sum(0)
    assert held[plausible.tied[0]].sum() == pytest.approx(4_000)
    assert (held > 0).sum() == 6
