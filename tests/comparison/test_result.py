"""Comparisons of two models: exact ones are DeLong's, private ones hold the difference as often as they say."""

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
from torchmetrics_fed.functional import (
    auroc_interval,
    average_precision_interval,
    calibration_from_counts,
    compare_models,
    precision_recall_band,
    read,
    roc_band,
    roc_from_counts,
)

Batch = tuple[Tensor, Tensor, Tensor]


def drawn(
    size: int, correlation: float = 0.9, areas: tuple[float, float] = (0.8, 0.84), seed: int = 1
) -> Batch:
    """Scores of two models, normal in each class before a sigmoid."""
    generator = np.random.default_rng(seed)
    target = (np.arange(size) % 3 == 0).astype(np.int64)
    noise = generator.normal(size=(2, size))
    noise[1] = correlation * noise[0] + math.sqrt(1 - correlation**2) * noise[1]
    first, second = (
        1 / (1 + np.exp(-(row + math.sqrt(2) * norm.ppf(area) * (target - 0.5)) - 0.3))
        for row, area in zip(noise, areas, strict=True)
    )
    return torch.from_numpy(first), torch.from_numpy(second), torch.from_numpy(target)


def compared(batch: Batch, **options: Any) -> FederatedModelComparison:
    metric = FederatedModelComparison(**options)
    metric.update(*batch)
    return metric


def delong(first: Tensor, second: Tensor, target: Tensor) -> tuple[float, float, float]:
    """Both areas and the variance of their difference, pair by pair as DeLong et al. wrote it down."""
    placements = []
    for scores in (first, second):
        positive, negative = scores[target == 1][:, None], scores[target == 0][None]
        wins = (positive > negative).double() + (positive == negative).double() / 2
        placements.append((wins.mean(1), wins.mean(0)))
    variance = sum(
        float(torch.var(placements[1][label] - placements[0][label])) / len(placements[0][label])
        for label in (0, 1)
    )
    return float(placements[0][0].mean()), float(placements[1][0].mean()), variance


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("size", [60, 900])
def test_exact_is_delong_on_binned_scores(size: int, correlation: float) -> None:
    first, second, target = drawn(size, correlation, seed=size)
    metric = compared((first, second, target), confidence=0.9)
    found, grid = metric.compute(), metric.spec.grid
    one, two, variance = delong(centred(first, grid), centred(second, grid), target)
    reach = norm.ppf(0.95) * math.sqrt(variance)
    expected = [one, two, two - one, two - one - reach, two - one + reach]
    assert [*found.auroc, found.difference, *found.interval] == pytest.approx(expected, abs=1e-6)
    assert found.p_value.item() == pytest.approx(
        2 * norm.sf(abs(two - one) / math.sqrt(variance)), abs=1e-9
    )
    for curve, scores in zip(found.curves, (first, second), strict=True):
        alone = FederatedROC(grid=grid)
        alone.update(scores, target)
        assert all(map(torch.equal, curve, alone.compute()))


@pytest.mark.parametrize("thresholds", [(0.5, 0.5), (0.3, 0.7123), (0.1001, 0.1002)])
def test_reclassification_is_that_of_the_scores_themselves(thresholds: tuple[float, float]) -> None:
    first, second, target = drawn(900, 0.6)
    found = compared((first, second, target), thresholds=thresholds).compute()
    old, new, positive = first >= thresholds[0], second >= thresholds[1], target == 1
    up, down = ~old & new, old & ~new
    counts = [
        [(moved & (target == label)).sum().item() for moved in (up, down)] for label in (0, 1)
    ]
    assert found.reclassified.tolist() == counts
    assert tuple(found.thresholds.tolist()) == thresholds
    m, n = positive.sum().item(), (~positive).sum().item()
    (up0, down0), (up1, down1) = counts
    net = (up1 - down1) / m + (down0 - up0) / n
    better, worse = up1 + down0, down1 + up0
    assert found.net_reclassification.item() == pytest.approx(net)
    spread = (up1 + down1 - (up1 - down1) ** 2 / m) / m**2 + (
        up0 + down0 - (up0 - down0) ** 2 / n
    ) / n**2
    assert found.net_interval.high.item() == pytest.approx(
        net + norm.ppf(0.975) * math.sqrt(spread)
    )
    assert found.mcnemar.item() == pytest.approx((better - worse) ** 2 / (better + worse))
    assert found.mcnemar_p_value.item() == pytest.approx(
        chi2.sf((better - worse) ** 2 / (better + worse), 1)
    )


def test_a_model_against_itself() -> None:
    first, _, target = drawn(300)
    found = compared((first, first, target)).compute()
    assert found.difference == found.interval.low == found.interval.high == found.mcnemar == 0
    assert found.p_value == found.mcnemar_p_value == 1


def test_swapped_models_differ_in_sign() -> None:
    first, second, target = drawn(900)
    one, other = (
        compared(batch).compute() for batch in ((first, second, target), (second, first, target))
    )
    assert one.difference.item() == pytest.approx(-other.difference.item())
    assert one.interval.low.item() == pytest.approx(-other.interval.high.item())
    assert one.net_reclassification.item() == pytest.approx(-other.net_reclassification.item())


RUNS = 60


@pytest.mark.filterwarnings("ignore:About")
@pytest.mark.audit
@pytest.mark.parametrize("correlation", [0.5, 0.97])
@pytest.mark.parametrize("plan", [None, "single"])
def test_private_intervals_hold_the_difference(plan: str | None, correlation: float) -> None:
    held, widths = 0, []
    for seed in range(RUNS):
        batch = drawn(3000, correlation, seed=seed)
        found = compared(batch, privacy=CentralDP(epsilon=1.0), plan=plan).compute()
        held += bool(found.interval.low <= 0.04 <= found.interval.high)
        widths.append(
            float(found.interval.high - found.interval.low)
            / 2
            / 1.96
            / math.sqrt(delong(*batch)[2])
        )
    assert binom.cdf(held, RUNS, 0.93) > 1e-6
    assert (
        binom.cdf(RUNS // 2, RUNS, 0.93) < 1e-6
    )  # an interval of a third of the width would be noticed
    assert np.mean(widths) < {0.5: 1.7, 0.97: 4.5}[correlation] * (1 if plan is None else 1.6)


def test_a_second_query_puts_thresholds_on_edges() -> None:
    metric = compared(drawn(6000), thresholds=(0.25, 0.7), privacy=CentralDP(epsilon=1.0))
    found = metric.compute()
    assert found.thresholds.tolist() == [0.25, 0.7]
    assert len(metric.release().queries) == 2
    assert abs(float(found.auroc[1] - found.auroc[0] - found.difference)) < 1e-9


def test_noise_that_hides_is_said_and_noise_that_drowns_withholds() -> None:
    with pytest.warns(UserWarning, match=r"0\.02 between two AUROCs cannot be seen"):
        compared(drawn(900), privacy=CentralDP(epsilon=1.0)).compute()
    metric = compared(drawn(90), privacy=CentralDP(epsilon=0.05))
    with pytest.warns(UserWarning, match="withheld"):
        found = metric.compute()
    assert math.isnan(found.difference)
    assert [float(end) for end in (*found.interval, *found.net_interval)] == [-1, 1, -2, 2]
    assert all(
        math.isnan(found.scalars[name])
        for name in ("auroc_first", "net_reclassification", "mcnemar_p_value")
    )


def test_without_examples_of_a_class_nothing_is_said() -> None:
    metric = compared((torch.rand(9), torch.rand(9), torch.ones(9)))
    with (
        pytest.warns(UserWarning, match="withheld"),
        pytest.warns(UserWarning, match="No negative examples"),
    ):
        found = metric.compute()
    assert math.isnan(found.difference)


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
def test_what_reads_one_model_refuses_two(function: Any, privacy: CentralDP | None) -> None:
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
def test_a_release_that_was_saved_says_the_same(privacy: CentralDP | None, tmp_path: Any) -> None:
    metric = compared(drawn(900), privacy=privacy, thresholds=(0.3, 0.6), models=("ours", "theirs"))
    found = metric.compute()
    metric.release().save(tmp_path / "a.release")
    again = FederatedModelComparison.from_release(Release.load(tmp_path / "a.release"))
    result = again.compute()
    assert result.models == ("ours", "theirs")
    assert {name: float(value) for name, value in result.scalars.items()} == {
        name: float(value) for name, value in found.scalars.items()
    }
    assert tuple(result.scalars) == FederatedModelComparison.definition.scalars


def test_the_figure_names_models_areas_and_the_difference() -> None:
    found = compared(drawn(900)).compute()
    _, ax = found.plot()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[1:] == [
        f"{name} (AUROC {area:.4f})" for name, area in zip(found.models, found.auroc, strict=True)
    ]
    assert f"{found.difference:+.4f}" in ax.get_legend().get_title().get_text()
