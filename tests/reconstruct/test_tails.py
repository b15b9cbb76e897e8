"""Tails: monotone, from 0 to 1, whatever the counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchmetrics_fed import InputError
from torchmetrics_fed.reconstruct import Interpolation, Method, Reconstruction

RECONSTRUCTIONS = [
    Reconstruction("aligned"),
    Reconstruction("quantile", 16, "pchip"),
    Reconstruction("quantile", 16, "linear"),
]


@pytest.mark.parametrize("reconstruction", RECONSTRUCTIONS)
@given(leaf=st.lists(st.integers(0, 10**12), min_size=3, max_size=40))
@settings(max_examples=40, deadline=None)
def test_tails_rise_from_0_to_1(reconstruction: Reconstruction, leaf: list[int]) -> None:
    edges = torch.linspace(-2, 3, len(leaf) + 1, dtype=torch.float64)
    tails = reconstruction.tails([torch.tensor([leaf])], edges)
    assert tails.thresholds[0] == 3
    assert tails.thresholds[-1] == -2
    assert bool((tails.thresholds.diff() <= 0).all())
    assert bool(tails.tail.isfinite().all())
    assert tails.tail[0, 0] == 0
    assert tails.tail[0, -1] == (1 if sum(leaf) else 0)
    assert bool((tails.tail.diff() >= -1e-12).all())


def test_constant_scores_are_a_step() -> None:
    leaf = torch.zeros(64, dtype=torch.int64)
    leaf[10] = 1000
    for reconstruction in RECONSTRUCTIONS:
        tails = reconstruction.tails([leaf[None]], torch.linspace(0, 1, 65, dtype=torch.float64))
        assert bool((tails.tail[0, tails.thresholds > 11 / 64] == 0).all())
        # the paper's first quantile is the lowest edge, so its tail may fall by one quantile before the step
        allowed = 0.0 if reconstruction.method == "aligned" else 1 / 15 + 1e-12
        assert bool((tails.tail[0, tails.thresholds < 10 / 64] >= 1 - allowed).all())


def test_more_quantiles_come_closer_to_the_counts() -> None:
    leaf = torch.randint(50, 150, (1, 1024), generator=torch.Generator().manual_seed(5))
    edges = torch.linspace(0, 1, 1025, dtype=torch.float64)
    exact = Reconstruction("aligned").tails([leaf], edges)
    errors = []
    for quantiles in (8, 32, 128, 512):
        tails = Reconstruction("quantile", quantiles).tails([leaf], edges)
        at_edges = torch.searchsorted(-tails.thresholds, -exact.thresholds).clamp(
            max=len(tails.thresholds) - 1
        )
        errors.append((tails.tail[0, at_edges] - exact.tail[0]).abs().mean().item())
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(("method", "interpolation"), [("exact", "pchip"), ("quantile", "cubic")])
def test_unknown_reconstructions_are_refused(method: Method, interpolation: Interpolation) -> None:
    with pytest.raises(InputError, match="one of"):
        Reconstruction(method, 16, interpolation)
