"""Intervals of populations: from one engine, for every number, exact and private."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision
from torchmetrics.wrappers import BootStrapper

from benchmarks.populations import POPULATIONS
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedDET,
    FederatedMetric,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedROC,
    InputError,
    Release,
    federated_collection,
)
from torchmetrics_fed import functional as F

KINDS = [
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedROC,
    FederatedPrecisionRecallCurve,
    FederatedPrecisionRecallGain,
    FederatedDET,
    FederatedCalibration,
]
ALPHA = 1e-6
"""Probability that a test fails though the law holds."""


def binary(examples: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (1.5 * torch.randn(examples, generator=generator) + target).sigmoid(), target


def classes(examples: int, count: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, count, (examples,), generator=generator)
    logits = torch.randn(examples, count, generator=generator)
    logits[torch.arange(examples), target] += 2
    return logits.softmax(1), target


def released(preds: Tensor, target: Tensor, **options: Any) -> Release:
    metric = FederatedROC(**options)
    metric.update(preds, target)
    return metric.release()


def width(interval: F.Interval) -> float:
    return float(interval.high - interval.low)


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0)], ids=["exact", "private"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_every_metric_lies_in_its_interval(kind: Any, privacy: Any) -> None:
    metric = kind(privacy=privacy, confidence=0.95)
    metric.update(*binary(4_000))
    result = metric.compute()
    scalars = {metric.definition.name: result}
    if not isinstance(result, Tensor):
        scalars = result.scalars
    intervals = metric.intervals()
    assert intervals.keys() == scalars.keys()
    for name, interval in intervals.items():
        assert interval.low < scalars[name] < interval.high
        assert width(interval) < 0.1


@pytest.mark.parametrize("average", ["micro", "macro", "weighted", None])
@pytest.mark.parametrize("privacy", [None, CentralDP(3.0)], ids=["exact", "private"])
def test_averages_have_intervals_and_so_has_each_class(average: Any, privacy: Any) -> None:
    metric = FederatedAUROC(
        "multiclass", num_classes=4, average=average, privacy=privacy, confidence=0.95
    )
    metric.update(*classes(3_000, 4))
    interval = metric.interval()
    value = metric.compute()
    assert interval.low.shape == value.shape
    assert bool(((interval.low < value) & (value < interval.high)).all())


def test_a_mean_over_classes_is_known_better_than_each() -> None:
    release = released(*classes(3_000, 4), task="multiclass", num_classes=4)
    each = F.intervals(release, F.auroc_from_counts)["value"]
    mean = F.intervals(release, F.auroc_from_counts, average="macro")["value"]
    assert width(mean) < float((each.high - each.low).min())


@pytest.mark.parametrize("examples", [300, 5_000])
def test_exact_areas_have_delongs_interval(examples: int) -> None:
    preds, target = binary(examples)
    metric = FederatedAUROC(confidence=0.95)
    metric.update(preds, target)
    wins = (preds[target == 1][:, None] > preds[target == 0][None]).double()
    deviation = math.sqrt(wins.mean(1).var() / len(wins) + wins.mean(0).var() / wins.shape[1])
    # 300 draws know a standard deviation to 4%
    assert width(metric.interval()) == pytest.approx(2 * 1.96 * deviation, rel=0.15)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FederatedAUROC, BinaryAUROC),
        (FederatedAveragePrecision, BinaryAveragePrecision),
    ],
)
def test_exact_intervals_are_those_of_the_bootstrap(ours: Any, theirs: Any) -> None:
    preds, target = binary(1_000)
    metric = ours(confidence=0.95)
    metric.update(preds, target)
    torch.manual_seed(0)
    bootstrap = BootStrapper(theirs(), num_bootstraps=200, raw=True)
    bootstrap.update(preds, target)
    deviation = float(bootstrap.compute()["raw"].std())
    # 200 and 300 draws know the ratio of their standard deviations to 7%
    assert width(metric.interval()) == pytest.approx(2 * 1.96 * deviation, rel=0.3)


def refuted(runs: int, covered: int, claimed: float = 0.93) -> bool:
    """Whether so few covered runs are next to impossible if the claim is true."""
    return bool(binom.cdf(covered, runs, claimed) < ALPHA)


@pytest.mark.audit
@pytest.mark.parametrize("name", ["smooth, 5,000", "6 values", "1% positives"])
def test_intervals_and_bands_hold_the_population(name: str) -> None:
    """Power: intervals of a third of the width must miss the AUROC."""
    law, examples, epsilon = POPULATIONS[name]
    truth_target, truth_score = law(np.random.default_rng(1), 2_000_000)
    truth = released(torch.from_numpy(truth_score), torch.from_numpy(truth_target))
    functions: tuple[Callable[..., Tensor], ...] = (
        F.auroc_from_counts,
        F.average_precision_from_counts,
    )
    values = [float(function(truth)) for function in functions]
    runs = 120
    covered = [0, 0]
    narrow = 0
    generator = np.random.default_rng(2)
    for _ in range(runs):
        target, score = law(generator, examples)
        release = released(
            torch.from_numpy(score), torch.from_numpy(target), privacy=CentralDP(epsilon)
        )
        for place, function in enumerate(functions):
            low, high = F.intervals(release, function)["value"]
            covered[place] += bool(low <= values[place] <= high)
        low, high = F.auroc_interval(release)
        narrow += bool(abs((low + high) / 2 - values[0]) <= (high - low) / 6)
    assert not any(refuted(runs, count) for count in covered)
    assert refuted(runs, narrow)


def test_draws_are_the_same_again_and_cost_nothing() -> None:
    metric = FederatedAUROC(privacy=CentralDP(1.0), confidence=0.9)
    metric.update(*binary(2_000))
    assert torch.equal(torch.stack(metric.interval()), torch.stack(metric.interval()))
    loaded = FederatedAUROC.from_release(
        Release.from_bytes(bytes(metric.release())), confidence=0.9
    )
    assert torch.equal(torch.stack(metric.interval()), torch.stack(loaded.interval()))
    assert repr(metric.ledger).endswith(", 1 release)")


@pytest.mark.parametrize("plan", ["adaptive", "single", "paper", "carry_over"])
def test_every_plan_has_intervals(plan: Any) -> None:
    grid: Any = "even" if plan == "paper" else "two_sided"
    metric = FederatedAUROC(privacy=CentralDP(1.0), plan=plan, grid=grid, confidence=0.95)
    metric.update(*binary(5_000))
    value = float(metric.compute())
    low, high = metric.interval()
    assert low < value < high
    assert float(high - low) < 0.15
    assert float(F.roc_band(metric.release()).high.max()) == 1.0


def test_separated_classes_are_not_known_for_sure() -> None:
    metric = FederatedAUROC(confidence=0.95)
    metric.update(torch.linspace(0, 1, 100), (torch.arange(100) >= 50).long())
    low, high = metric.interval()
    assert float(low) == pytest.approx(1 - 3 / 50, abs=1e-5)
    assert float(high) == 1.0


def test_a_metric_with_several_numbers_says_so() -> None:
    metric = FederatedCalibration(confidence=0.95)
    metric.update(*binary(100))
    with pytest.raises(InputError, match="intervals"):
        metric.interval()
    with pytest.raises(InputError, match="has no band"):
        metric.band()
    mean = FederatedAUROC("multiclass", num_classes=3, confidence=0.95)
    mean.update(*classes(100, 3))
    with pytest.raises(InputError, match='of="population"'):
        mean.interval(of="examples")


def test_persons_with_several_examples_are_named() -> None:
    metric = FederatedAUROC(privacy=CentralDP(1.0, examples_per_person=3), confidence=0.95)
    preds, target = binary(3_000)
    metric.update(preds, target, persons=torch.arange(3_000) // 3)
    with pytest.warns(UserWarning, match="do not cluster by person"):
        metric.interval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.interval()


def test_all_metrics_of_a_collection_have_intervals() -> None:
    collection = federated_collection(
        metrics=["auroc", "det", "calibration"], confidence=0.95, privacy=CentralDP(1.0)
    )
    collection.update(*binary(3_000))
    for name, number in (("det", "equal_error_rate"), ("auroc", "auroc")):
        metric = collection[name]
        assert isinstance(metric, FederatedMetric)
        assert set(metric.intervals()) == {number}


def test_bands_have_points_at_both_ends_and_contain_the_curve() -> None:
    release = released(*binary(3_000), privacy=CentralDP(1.0))
    for band, (x, y) in (
        (F.roc_band(release), F.roc_from_counts(release)[:2]),
        (F.precision_recall_band(release), F.precision_recall_from_counts(release)[1::-1]),
    ):
        assert float(band.x[0]) == 0.0
        assert float(band.x[-1]) == 1.0
        assert bool((band.low <= band.high).all())
        is_shown = (x > 0.01) & (x < 0.99)
        assert float(band.contains(x[is_shown], y[is_shown]).double().mean()) > 0.99
