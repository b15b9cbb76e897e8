"""Warnings about noise: they quote the value and its interval, once for each release."""

from __future__ import annotations

import warnings
from typing import Any

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


def test_noise_that_drowns_twenty_classes_is_named_once() -> None:
    scores, target = classes(600, 20)
    metric = FederatedAUROC("multiclass", num_classes=20, privacy=CentralDP(0.1))
    metric.update(scores, target)
    (text,) = warnings_of(metric)
    for word in (
        "mean AUROC",
        "epsilon 0.1 over 20 classes",
        "(95%)",
        "More examples, fewer classes",
        "plan",
    ):
        assert word in text
    assert warnings_of(metric) == []
    metric = FederatedAUROC("multiclass", num_classes=20, average=None, privacy=CentralDP(0.1))
    metric.update(scores, target)
    assert "AUROC of class" in warnings_of(metric)[0]


def test_the_warning_quotes_the_value_that_is_returned() -> None:
    metric = FederatedAUROC(privacy=CentralDP(0.3))
    metric.update(*binary(200))
    (text,) = warnings_of(metric)
    value = float(metric.compute())
    low, high = FederatedAUROC.from_release(metric.release(), confidence=0.95).interval()
    assert f"is {value:.2f}, but in the population" in text
    assert f"from {float(low):.2f} to {float(high):.2f} (95%)" in text
    assert float(low) < value < float(high)


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
    assert " to " in str(evaluation_report(exact.release()))
    assert " to " not in str(evaluation_report(exact.release(), of="examples"))


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
        low, high = average_precision_interval(metric.release(), of="examples")
        covered += bool(low <= truth <= high)
    assert covered >= 9


def test_an_uncertain_average_precision_is_named_with_its_remedy() -> None:
    scores, target = binary(8_000)
    metric = FederatedAveragePrecision(privacy=CentralDP(0.3))
    metric.update(scores[:400], target[:400])
    texts = [text for text in warnings_of(metric) if "average precision" in text]
    assert "may be anything" in texts[0]
    assert "ScoreGrid.from_edges" in texts[0]
    smooth = FederatedAveragePrecision(privacy=CentralDP(1.0))
    smooth.update(*binary(20_000))
    assert warnings_of(smooth) == []
