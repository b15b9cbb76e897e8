"""Bands hold the exact curve: always without noise, and as often as they say with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from benchmarks.bands import Cell, Truth, always, federated, held, normal, once
from tests.functional.scores import Scored
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    Release,
    federated_collection,
)
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import (
    Band,
    Interval,
    auroc_interval,
    average_precision_interval,
    precision_recall_band,
    roc_band,
)
from torchmetrics_fed.reconstruct.uncertainty import bands as bands_module
from torchmetrics_fed.reconstruct.uncertainty.bands import order_statistic


def test_without_noise_everything_is_held(scored: Scored) -> None:
    preds, target = scored
    scores = target.numpy(), preds.numpy()
    assert held(Cell("", always(scores), Truth.exact(scores), once(None)))[:4] == [1, 1, 1, 1]


def released(preds: Tensor, target: Tensor, **options: Any) -> Release:
    metric = FederatedROC(**options)
    metric.update(preds, target)
    return metric.release()


def width(interval: Interval) -> float:
    return float(interval.high - interval.low)


def area_of(band: Band) -> float:
    return float(torch.trapezoid(band.high - band.low, band.x))


def at_the_ends(
    zeros: float,
    ones: float,
    examples: int = 5_000,
) -> tuple[Tensor, Tensor]:
    """Scores with a part of exact zeros, mostly negatives, and of exact ones, mostly positives."""
    rng = np.random.default_rng(3)
    target = rng.random(examples) < 0.3
    scores = 1 / (1 + np.exp(1 - 1.5 * target - 1.2 * rng.normal(size=examples)))
    scores[rng.random(examples) < zeros * np.where(target, 0.7, 1.1)] = 0.0
    scores[rng.random(examples) < ones * np.where(target, 1.2, 0.5)] = 1.0
    return torch.from_numpy(scores), torch.from_numpy(target.astype(np.int64))


def hard(examples: int = 5_000) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(4)
    target = rng.random(examples) < 0.3
    scores = (rng.random(examples) < np.where(target, 0.8, 0.2)).astype(np.float64)
    return torch.from_numpy(scores), torch.from_numpy(target.astype(np.int64))


ENDS = {
    "zeros": at_the_ends(0.4, 0.0),
    "ones": at_the_ends(0.0, 0.4),
    "both": at_the_ends(0.3, 0.2),
    "hard": hard(),
}


@pytest.mark.parametrize("name", ENDS)
def test_scores_of_exactly_0_and_1_are_ties_that_nothing_is_allowed_for(name: str) -> None:
    preds, target = ENDS[name]
    scores = target.numpy(), preds.numpy()
    bands = held(Cell("", always(scores), Truth.exact(scores), once(None)))[:2]
    assert bands == [1, 1]
    release = released(preds, target)
    area = roc_auc_score(target, preds)
    average_precision = average_precision_score(target, preds)
    for interval, truth in (
        (auroc_interval(release, of="examples"), area),
        (average_precision_interval(release, of="examples"), average_precision),
    ):
        assert float(interval.low) - 1e-12 <= truth <= float(interval.high) + 1e-12
        assert width(interval) < 0.002
    assert area_of(roc_band(release, of="examples")) < 0.02
    assert area_of(precision_recall_band(release, of="examples")) < 0.02


@pytest.mark.parametrize("name", ENDS)
def test_a_private_release_finds_ties_at_the_ends(name: str) -> None:
    preds, target = ENDS[name]
    interval = auroc_interval(released(preds, target, privacy=CentralDP(1.0)), of="examples")
    truth = roc_auc_score(target.numpy(), preds.numpy())
    assert width(interval) < 0.025
    assert abs(float(interval.low + interval.high) / 2 - truth) < 0.025


@pytest.mark.parametrize("plan", ["single", "adaptive"])
def test_the_band_is_the_same_again_and_costs_nothing(
    scored: Scored,
    plan: PlanName,
) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0), plan=plan, confidence=0.9)
    metric.update(*scored)
    first = metric.band()
    second = metric.band()
    assert torch.equal(torch.stack(first), torch.stack(second))
    assert repr(metric.ledger).endswith(", 1 release)")
    fpr, tpr, _ = metric.compute()  # a curve is still three tensors
    assert len(fpr) == len(tpr)


@pytest.mark.parametrize("band_of", [roc_band, precision_recall_band])
def test_bands_are_wider_with_more_confidence_and_less_epsilon(
    scored: Scored,
    band_of: Callable[..., Band],
) -> None:
    release = released(*scored, privacy=CentralDP(1.0), plan="single")
    noisier = released(*scored, privacy=CentralDP(0.1), plan="single")
    for of in ("population", "examples"):
        area = area_of(band_of(release, of=of))
        assert area < area_of(band_of(release, 0.99, of))
        assert area < area_of(band_of(noisier, of=of))


@pytest.mark.parametrize("interval_of", [auroc_interval, average_precision_interval])
def test_intervals_are_wider_with_less_epsilon_and_sampling(
    scored: Scored,
    interval_of: Callable[..., Interval],
) -> None:
    release = released(*scored, privacy=CentralDP(1.0), plan="single")
    noisier = released(*scored, privacy=CentralDP(0.1), plan="single")
    exact = released(*scored)
    assert width(interval_of(exact, of="examples")) < width(interval_of(exact))
    for of in ("population", "examples"):
        assert width(interval_of(release, of=of)) < width(interval_of(noisier, of=of))


def test_each_class_has_its_band() -> None:
    metric = FederatedPrecisionRecallCurve(
        "multiclass",
        num_classes=3,
        privacy=CentralDP(3.0),
        confidence=0.95,
    )
    target = torch.randint(0, 3, (3_000,))
    logits = torch.randn(3_000, 3) + 2 * torch.nn.functional.one_hot(target, 3)
    metric.update(logits.softmax(1), target)
    assert metric.band().low.shape[0] == 3
    assert average_precision_interval(metric.release()).low.shape == (3,)


def test_a_class_lost_in_the_noise_is_unknown() -> None:
    metric = FederatedAveragePrecision(privacy=CentralDP(0.01), plan="single", confidence=0.95)
    metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
    low, high = metric.interval()
    assert (float(low), float(high)) == (0.0, 1.0)


def test_what_cannot_be_banded_is_refused() -> None:
    with pytest.raises(InputError, match=r"confidence.*0\.99"):
        FederatedROC(confidence=1.0)
    with pytest.raises(InputError, match="ovr"):
        FederatedAUROC("multiclass", num_classes=3, multi_class="ovo", confidence=0.95)
    with pytest.raises(InputError, match="a mean of curves has no band"):
        FederatedAUROC("multiclass", num_classes=3, confidence=0.95).band()
    with pytest.raises(InputError, match="`of`"):
        roc_band(FederatedROC().release(), of=cast(Any, "everything"))
    with pytest.raises(InputError, match="built with `confidence`"):
        FederatedROC().band()
    ovo = FederatedROC("multiclass", num_classes=3, multi_class="ovo")
    ovo.update(torch.rand(9, 3).softmax(1), torch.arange(9) % 3)
    with pytest.raises(InputError, match="ovr"):
        roc_band(ovo.release())
    with pytest.raises(InputError, match="binning"):
        auroc_interval(FederatedROC().release(), of="examples", binning=2.0)


def test_plots_shade_the_band(scored: Scored) -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("Agg")
    metrics = federated_collection(
        metrics=["roc", "auroc", "precision_recall_curve", "average_precision", "det"],
        confidence=0.95,
    )
    metrics.update(*scored)
    for name in ("roc", "auroc", "precision_recall_curve", "average_precision"):
        fig, ax = metrics[name].plot()
        assert [patch.get_gid() for patch in ax.collections] == ["band"]
        mpl.pyplot.close(fig)


def refuted(runs: int, covered: float, claimed: float = 0.95) -> bool:
    """Whether so few covered runs are next to impossible, alpha 1e-6, if the claim is true."""
    return bool(binom.cdf(covered * runs, runs, claimed) < 1e-6)


@pytest.mark.audit
def test_coverage_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One query, two, and more clients than noise was calibrated for.

    Power: bands of half the width must miss the curves. The scores are drawn again, and 900 runs
    tell half the width for any of them.
    """
    scores = normal(8_000, 0.3, 2.0, 1.5)
    truth = Truth.exact(scores)
    runs = 100
    two = once(CentralDP(0.5), "adaptive")
    releases = [
        two,
        once(CentralDP(1.0), "single"),
        federated(DistributedDP(0.5, 3), 6, "adaptive"),
    ]
    for release in releases:
        cell = Cell("", always(scores), truth, release)
        rates = np.mean([held(cell) for _ in range(runs)], 0)[:4]
        assert not any(refuted(runs, rate) for rate in rates)
    monkeypatch.setattr(
        bands_module,
        "order_statistic",
        lambda values, level: order_statistic(values, level) / 2,
    )
    cell = Cell("", always(scores), truth, two)
    rates = np.mean([held(cell) for _ in range(9 * runs)], 0)
    assert refuted(9 * runs, rates[0])
    assert refuted(9 * runs, rates[1])


def test_classes_with_and_without_ties_at_the_ends_have_bands_side_by_side() -> None:
    preds, target = ENDS["zeros"]
    smooth = torch.rand(len(preds), generator=torch.Generator().manual_seed(5)).double()
    metric = FederatedROC("multilabel", num_labels=2)
    metric.update(torch.stack([preds, smooth], 1), torch.stack([target, target], 1))
    release = metric.release()
    for band in (roc_band(release), precision_recall_band(release)):
        assert band.x.shape == band.low.shape == band.high.shape
        assert (band.x.diff() >= 0).all()
        assert (band.low <= band.high).all()
