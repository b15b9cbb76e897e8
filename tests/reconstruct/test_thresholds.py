"""Counts above thresholds: those of the tails at edges, between them in between, and intervals
that hold."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from benchmarks.bands import normal
from benchmarks.decisions import QUESTIONS, Truth
from benchmarks.decisions import release as released
from tests.functional.test_band import refuted
from torchmetrics_fed import CentralDP, FederatedROC
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import band, read
from torchmetrics_fed.functional import recalibration as recalibration_module
from torchmetrics_fed.reconstruct.uncertainty import thresholds as thresholds_module
from torchmetrics_fed.reconstruct.uncertainty.bands import UncertainTails
from torchmetrics_fed.reconstruct.uncertainty.thresholds import reach, uncertain_counts


@pytest.mark.parametrize("plan", ["adaptive", "single", "paper"])
def test_at_edges_they_are_the_tails_and_between_them_in_between(
    scored: tuple[Tensor, Tensor], plan: PlanName
) -> None:
    metric = FederatedROC(
        privacy=CentralDP(1.0), plan=plan, grid="even" if plan == "paper" else "two_sided"
    )
    metric.update(*scored)
    release = metric.release()
    histograms, own = read(release), release.last.edges.numpy()
    (tails,) = UncertainTails.of(release)
    at = np.sort(np.r_[own[1:-1], (own[1:] + own[:-1]) / 2])
    (known,) = uncertain_counts(release, histograms.flat, histograms.edges.numpy(), at)
    edges = 1 + np.searchsorted(at, own[1:-1])
    assert np.allclose(known.seen[:, 0], tails.seen[:, 0])
    assert np.allclose(known.seen[:, edges], tails.seen[:, 1:-1])
    assert np.allclose(known.draws[..., edges], tails.noise[..., 1:-1], atol=1e-3)
    assert not known.slack[:, edges].any()
    inner = edges[:-1] + 1
    ends = np.stack([tails.seen[:, 1:-2], tails.seen[:, 2:-1]])
    assert (known.seen[:, inner] >= ends.min(0) - 1e-9).all()
    assert (known.seen[:, inner] <= ends.max(0) + 1e-9).all()


def test_reach_holds_all_values_at_once() -> None:
    draws = np.random.default_rng(1).standard_normal((4_000, 30)) * np.arange(30)
    inside = np.abs(draws) <= reach(draws, 0.9)
    assert inside.all(1).mean() == pytest.approx(0.9, abs=0.001)
    assert reach(draws, 0.9)[0] == 0


@pytest.mark.audit
def test_coverage_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every interval of a release, and with a quarter of their width some must miss."""
    truth, runs = Truth(normal(8_000, 0.3, 2.0, 1.5)), 100
    held = np.mean([truth.held(released(truth.scores, 0.5)) for _ in range(runs)], 0)[:, 0]
    assert not [name for name, rate in zip(QUESTIONS, held, strict=True) if refuted(runs, rate)]
    monkeypatch.setattr(thresholds_module, "_OFF", 0.0)
    for module in (band, recalibration_module):
        monkeypatch.setattr(module, "reach", lambda draws, level: reach(draws, level) / 4)
    missed = np.mean([truth.held(released(truth.scores, 0.5)) for _ in range(runs)], 0)[:, 0]
    assert refuted(runs, missed[0])
    assert refuted(runs, missed[1])
