"""Warnings about noise: the closed form is right, and each release is warned of once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    Release,
    evaluation_report,
    federated_collection,
)
from torchmetrics_fed.functional import average_precision_interval
from torchmetrics_fed.reconstruct.uncertainty.areas import noisy_areas


def binary(examples: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (torch.randn(examples, generator=generator) + target).sigmoid(), target


def classes(examples: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    target = torch.randint(0, count, (examples,), generator=generator)
    logits = torch.randn(examples, count, generator=generator)
    logits[torch.arange(examples), target] += 3
    return logits.softmax(1), target


def warnings_of(metric: Any) -> list[str]:
    """Return the warnings of ``compute`` about noise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "95%" in text]


@pytest.mark.parametrize(("plan", "epsilon"), [("single", 0.3), ("single", 1.0), ("adaptive", 1.0)])
def test_the_closed_form_is_the_spread_of_releases(
    plan: Any,
    epsilon: float,
) -> None:
    scores, target = binary(3_000)
    areas = []
    deviations = []
    for _ in range(60):
        metric = FederatedAUROC(privacy=CentralDP(epsilon), plan=plan)
        metric.update(scores, target)
        area, deviation = noisy_areas(metric.release())
        areas.append(area[0])
        deviations.append(deviation[0])
    # 60 runs know a standard deviation to 9%: five of those, and the first order's own error
    assert np.std(areas, ddof=1) == pytest.approx(np.mean(deviations), rel=0.5)
    assert np.std(deviations) < 0.5 * np.mean(deviations)


def test_noise_that_drowns_twenty_classes_is_named_once() -> None:
    scores, target = classes(3_000, 20)
    metric = FederatedAUROC("multiclass", num_classes=20, privacy=CentralDP(0.05))
    metric.update(scores, target)
    (text,) = warnings_of(metric)
    for word in (
        "mean AUROC",
        "epsilon 0.05 over 20 classes",
        "(95%)",
        "More examples, fewer classes",
        "plan",
    ):
        assert word in text
    assert warnings_of(metric) == []
    metric = FederatedAUROC("multiclass", num_classes=20, average=None, privacy=CentralDP(0.05))
    metric.update(scores, target)
    assert "AUROC of class" in warnings_of(metric)[0]


def test_a_collection_warns_once() -> None:
    scores, target = binary(60)
    collection = federated_collection(metrics=("roc", "auroc", "det"), privacy=CentralDP(0.3))
    collection.update(scores, target)
    assert len(warnings_of(collection)) == 1


def test_an_accurate_release_is_not_warned_of() -> None:
    for epsilon, examples in ((1.0, 5_000), (0.3, 30_000)):
        metric = FederatedROC(privacy=CentralDP(epsilon))
        metric.update(*binary(examples))
        assert warnings_of(metric) == []


def test_a_loaded_release_is_warned_of_again() -> None:
    metric = FederatedROC(privacy=CentralDP(0.3))
    metric.update(*binary(60))
    assert len(warnings_of(metric)) == 1
    loaded = Release.from_bytes(bytes(metric.release()))
    assert len(warnings_of(FederatedROC.from_release(loaded))) == 1


def test_a_report_shows_the_intervals_of_private_areas() -> None:
    scores, target = binary(5_000)
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(scores, target)
    report = evaluation_report(metric.release())
    for name, area in (("auroc", report.auroc), ("average_precision", report.average_precision)):
        interval = report.intervals[name]
        assert f"{area:.4f} ({interval})" in str(report)
        assert interval.low < area < interval.high
    exact = FederatedROC()
    exact.update(scores, target)
    assert " to " not in str(evaluation_report(exact.release()))


@pytest.mark.slow
@pytest.mark.parametrize("values", [6, 20, 50])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("plan", ["adaptive", "single"])
def test_no_interval_of_tied_scores_claims_more_than_it_covers(
    values: int,
    epsilon: float,
    plan: Any,
) -> None:
    """At 95% each, 4 misses of 12 have a probability of 1e-3; of 216 in all, 30 have 1e-6."""
    scores, target = binary(8_000)
    tied = (scores * (values - 1)).round() / (values - 1)
    truth = average_precision_score(target.numpy(), tied.numpy())
    covered = 0
    for _ in range(12):
        metric = FederatedAveragePrecision(privacy=CentralDP(epsilon), plan=plan)
        metric.update(tied, target)
        low, high = average_precision_interval(metric.release())
        covered += bool(low <= truth <= high)
    assert covered >= 9


def test_an_uncertain_average_precision_is_named_with_its_remedy() -> None:
    scores, target = binary(8_000)
    metric = FederatedAveragePrecision(privacy=CentralDP(1.0))
    metric.update((scores * 5).round() / 5, target)
    (text,) = warnings_of(metric)
    assert "average precision may be anything" in text
    assert "ScoreGrid.from_edges" in text
    smooth = FederatedAveragePrecision(privacy=CentralDP(1.0))
    smooth.update(*binary(20_000))
    assert warnings_of(smooth) == []
