"""Intervals of two models: exact ones are DeLong's, private ones hold as often as they claim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, norm
from torch import Tensor

from tests.grids import centred
from torchmetrics_fed import (
    CentralDP,
    FederatedModelComparison,
    FederatedROC,
    InputError,
    Release,
    evaluation_report,
)
from torchmetrics_fed.comparison import compare_models
from torchmetrics_fed.functional import (
    auroc_interval,
    average_precision_interval,
    calibration_from_counts,
    precision_recall_band,
    read,
    roc_band,
    roc_from_counts,
)

Batch = tuple[Tensor, Tensor, Tensor]


def drawn(
    size: int,
    correlation: float = 0.9,
    areas: tuple[float, float] = (0.8, 0.84),
    seed: int = 1,
) -> Batch:
    """Return scores of two models, normal in each class before a sigmoid."""
    generator = np.random.default_rng(seed)
    target = (np.arange(size) % 3 == 0).astype(np.int64)
    noise = generator.normal(size=(2, size))
    noise[1] = correlation * noise[0] + math.sqrt(1 - correlation**2) * noise[1]
    scores = []
    for row, auroc in zip(noise, areas, strict=True):
        separation = math.sqrt(2) * norm.ppf(auroc)
        logits = row + separation * (target - 0.5) + 0.3
        scores.append(torch.from_numpy(1 / (1 + np.exp(-logits))))
    return scores[0], scores[1], torch.from_numpy(target)


def compared(batch: Batch, **options: Any) -> FederatedModelComparison:
    metric = FederatedModelComparison(**options)
    metric.update(*batch)
    return metric


def delong(first: Tensor, second: Tensor, target: Tensor) -> tuple[float, float, float]:
    """Return both AUROCs and the variance of their difference by pairs (DeLong et al. 1988)."""
    of_positives = []
    of_negatives = []
    for scores in (first, second):
        positive = scores[target == 1][:, None]
        negative = scores[target == 0][None]
        wins = (positive > negative).double() + (positive == negative).double() / 2
        of_positives.append(wins.mean(1))
        of_negatives.append(wins.mean(0))
    variance = 0.0
    for placements in (of_positives, of_negatives):
        change = placements[1] - placements[0]
        variance += float(torch.var(change)) / len(change)
    return float(of_positives[0].mean()), float(of_positives[1].mean()), variance


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("size", [60, 900])
def test_exact_is_delong_on_binned_scores(size: int, correlation: float) -> None:
    first, second, target = drawn(size, correlation, seed=size)
    metric = compared((first, second, target), confidence=0.9)
    result = metric.compute()
    grid = metric.spec.grid
    auroc_first, auroc_second, variance = delong(
        centred(first, grid), centred(second, grid), target
    )
    difference = auroc_second - auroc_first
    reach = norm.ppf(0.95) * math.sqrt(variance)
    p_value = 2 * norm.sf(abs(difference) / math.sqrt(variance))
    assert result.auroc.tolist() == pytest.approx([auroc_first, auroc_second], abs=1e-6)
    assert float(result.difference) == pytest.approx(difference, abs=1e-6)
    assert float(result.interval.low) == pytest.approx(difference - reach, abs=1e-6)
    assert float(result.interval.high) == pytest.approx(difference + reach, abs=1e-6)
    assert float(result.p_value) == pytest.approx(p_value, abs=1e-9)
    for curve, scores in zip(result.curves, (first, second), strict=True):
        roc = FederatedROC(grid=grid)
        roc.update(scores, target)
        assert all(map(torch.equal, curve, roc.compute()))


@pytest.mark.parametrize("thresholds", [(0.5, 0.5), (0.3, 0.7123), (0.1001, 0.1002)])
def test_reclassification_is_that_of_the_scores_themselves(thresholds: tuple[float, float]) -> None:
    first, second, target = drawn(900, 0.6)
    result = compared((first, second, target), thresholds=thresholds).compute()
    called_by_first = first >= thresholds[0]
    called_by_second = second >= thresholds[1]
    positive = target == 1
    up = ~called_by_first & called_by_second
    down = called_by_first & ~called_by_second
    up_negatives = int((up & ~positive).sum())
    down_negatives = int((down & ~positive).sum())
    up_positives = int((up & positive).sum())
    down_positives = int((down & positive).sum())
    assert result.reclassified.tolist() == [
        [up_negatives, down_negatives],
        [up_positives, down_positives],
    ]
    assert tuple(result.thresholds.tolist()) == thresholds
    m = int(positive.sum())
    n = int((~positive).sum())
    net_positives = up_positives - down_positives
    net_negatives = down_negatives - up_negatives
    net = net_positives / m + net_negatives / n
    assert float(result.net_reclassification) == pytest.approx(net)
    variance = (up_positives + down_positives - net_positives**2 / m) / m**2
    variance += (up_negatives + down_negatives - net_negatives**2 / n) / n**2
    high = net + norm.ppf(0.975) * math.sqrt(variance)
    assert float(result.net_interval.high) == pytest.approx(high)
    better = up_positives + down_negatives
    worse = down_positives + up_negatives
    statistic = (better - worse) ** 2 / (better + worse)
    assert float(result.mcnemar) == pytest.approx(statistic)
    assert float(result.mcnemar_p_value) == pytest.approx(chi2.sf(statistic, 1))


def test_a_model_against_itself() -> None:
    first, _, target = drawn(300)
    result = compared((first, first, target)).compute()
    assert result.difference == result.interval.low == result.interval.high == result.mcnemar == 0
    assert result.p_value == result.mcnemar_p_value == 1


def test_swapped_models_differ_in_sign() -> None:
    first, second, target = drawn(900)
    result = compared((first, second, target)).compute()
    swapped = compared((second, first, target)).compute()
    assert float(result.difference) == pytest.approx(-float(swapped.difference))
    assert float(result.interval.low) == pytest.approx(-float(swapped.interval.high))
    net = float(swapped.net_reclassification)
    assert float(result.net_reclassification) == pytest.approx(-net)


RUNS = 60
LEAST_COVERAGE = 0.93
"""The least coverage of a 95% interval that is tolerated."""
WIDEST = {0.5: 1.7, 0.97: 4.5}
"""The largest mean width, by the correlation of the models, as a multiple of DeLong's."""
WIDER_IF_SINGLE = 1.6
"""A single query has to do without a pilot that places its leaves."""


@pytest.mark.filterwarnings("ignore:About")
@pytest.mark.audit
@pytest.mark.parametrize("correlation", [0.5, 0.97])
@pytest.mark.parametrize("plan", [None, "single"])
def test_private_intervals_hold_the_difference(plan: str | None, correlation: float) -> None:
    covered = 0
    relative_widths = []
    for seed in range(RUNS):
        batch = drawn(3000, correlation, seed=seed)
        result = compared(batch, privacy=CentralDP(epsilon=1.0), plan=plan).compute()
        low, high = result.interval
        covered += bool(low <= 0.04 <= high)
        _, _, variance = delong(*batch)
        relative_widths.append(float(high - low) / (2 * 1.96 * math.sqrt(variance)))
    assert binom.cdf(covered, RUNS, LEAST_COVERAGE) > 1e-6
    # the test has power: an interval of a third of the width would be noticed
    assert binom.cdf(RUNS // 2, RUNS, LEAST_COVERAGE) < 1e-6
    widest = WIDEST[correlation]
    if plan == "single":
        widest *= WIDER_IF_SINGLE
    assert np.mean(relative_widths) < widest


def test_a_second_query_puts_thresholds_on_edges() -> None:
    metric = compared(drawn(6000), thresholds=(0.25, 0.7), privacy=CentralDP(epsilon=1.0))
    result = metric.compute()
    assert result.thresholds.tolist() == [0.25, 0.7]
    assert len(metric.release().queries) == 2
    assert abs(float(result.auroc[1] - result.auroc[0] - result.difference)) < 1e-9


def test_noise_that_hides_a_difference_warns_and_noise_that_drowns_a_class_withholds() -> None:
    with pytest.warns(UserWarning, match=r"0\.02 between two AUROCs cannot be seen"):
        compared(drawn(900), privacy=CentralDP(epsilon=1.0)).compute()
    metric = compared(drawn(90), privacy=CentralDP(epsilon=0.05))
    with pytest.warns(UserWarning, match="withheld"):
        result = metric.compute()
    assert math.isnan(result.difference)
    assert [float(end) for end in result.interval] == [-1, 1]
    assert [float(end) for end in result.net_interval] == [-2, 2]
    for name in ("auroc_first", "net_reclassification", "mcnemar_p_value"):
        assert math.isnan(result.scalars[name])


def test_without_examples_of_a_class_the_comparison_is_withheld() -> None:
    metric = compared((torch.rand(9), torch.rand(9), torch.ones(9)))
    with (
        pytest.warns(UserWarning, match="withheld"),
        pytest.warns(UserWarning, match="No negative examples"),
    ):
        result = metric.compute()
    assert math.isnan(result.difference)


@pytest.mark.parametrize("privacy", [None, CentralDP(epsilon=1.0)])
@pytest.mark.parametrize(
    "function",
    [
        read,
        roc_from_counts,
        calibration_from_counts,
        roc_band,
        precision_recall_band,
        auroc_interval,
        average_precision_interval,
        evaluation_report,
    ],
)
def test_functions_of_one_model_refuse_two(function: Any, privacy: CentralDP | None) -> None:
    release = compared(drawn(900), privacy=privacy).release()
    with pytest.raises(InputError, match="compares two"):
        function(release)


def test_a_release_of_one_model_is_no_comparison() -> None:
    metric = FederatedROC()
    metric.update(torch.rand(9), torch.randint(0, 2, (9,)))
    for call in (compare_models, FederatedModelComparison.from_release):
        with pytest.raises(InputError, match="single model"):
            call(metric.release())
    with pytest.raises(InputError, match="Release"):
        compare_models(torch.zeros(2, 2))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:About")
@pytest.mark.parametrize("privacy", [None, CentralDP(epsilon=1.0)])
def test_a_saved_release_gives_the_same_result(privacy: CentralDP | None, tmp_path: Any) -> None:
    metric = compared(drawn(900), privacy=privacy, thresholds=(0.3, 0.6), models=("ours", "theirs"))
    result = metric.compute()
    metric.release().save(tmp_path / "a.release")
    release = Release.load(tmp_path / "a.release")
    loaded = FederatedModelComparison.from_release(release).compute()
    assert loaded.models == ("ours", "theirs")
    assert tuple(loaded.scalars) == FederatedModelComparison.definition.scalars
    for name, value in loaded.scalars.items():
        assert float(value) == float(result.scalars[name])


def test_the_figure_names_models_areas_and_the_difference() -> None:
    result = compared(drawn(900)).compute()
    _, ax = result.plot()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[1:] == [
        f"{name} (AUROC {area:.4f})" for name, area in zip(result.models, result.auroc, strict=True)
    ]
    assert f"{result.difference:+.4f}" in ax.get_legend().get_title().get_text()
