"""Gaps between groups: exact ones are fairlearn's, private ones allow for noise."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
    false_positive_rate,
    selection_rate,
    true_positive_rate,
)
from sklearn.metrics import precision_score, roc_auc_score
from torch import Tensor

from tests.functional.scores import rounded
from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, InputError, Privacy, Release
from torchmetrics_fed.functional import GroupGaps, group_gaps, roc_from_counts

NAMES = ("a", "b", "c")


def examples(
    size: int = 4_000,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 3, (size,), generator=generator)
    target = (torch.rand(size, generator=generator) < 0.3).long()
    logits = torch.randn(size, generator=generator) + 1.5 * target - 0.7 + 0.4 * groups
    return logits.sigmoid(), target, groups


def released(
    data: tuple[Tensor, ...],
    privacy: Privacy | None = None,
    names: tuple[str, ...] = NAMES,
) -> Release:
    metric = FederatedROC(groups=names, privacy=privacy)
    metric.update(*data)
    return metric.release()


def test_exact_gaps_are_fairlearns() -> None:
    scores, target, groups = examples()
    gaps = group_gaps(released((scores, target, groups)), threshold=0.5)
    selected = (scores >= 0.5).long().numpy()
    functions = {
        "tpr": true_positive_rate,
        "fpr": false_positive_rate,
        "positive_rate": selection_rate,
        "precision": precision_score,
    }
    frame = MetricFrame(
        metrics=functions,
        y_true=target.numpy(),
        y_pred=selected,
        sensitive_features=groups.numpy(),
    )
    for name in functions:
        rates = frame.by_group[name].tolist()
        largest = frame.difference()[name]
        assert gaps.rates[name].value.tolist() == rounded(rates)
        assert float(gaps.largest[name].value) == rounded(largest)
    areas = [roc_auc_score(target[groups == g], scores[groups == g]) for g in range(3)]
    assert gaps.rates["auroc"].value.tolist() == pytest.approx(areas, abs=1e-3)
    usual = {
        "demographic_parity": demographic_parity_difference,
        "equal_opportunity": equal_opportunity_difference,
        "equalized_odds": equalized_odds_difference,
    }
    for name, function in usual.items():
        expected = function(target.numpy(), selected, sensitive_features=groups.numpy())
        assert float(gaps.scalars[name]) == rounded(expected)


def test_a_difference_is_that_of_its_groups_and_turns_with_them() -> None:
    gaps = group_gaps(released(examples()), threshold=0.3)
    assert gaps.threshold == pytest.approx(0.3, abs=1e-3)
    for name, gap in gaps.between("c", "a").items():
        assert gap.value == gaps.rates[name].value[2] - gaps.rates[name].value[0]
        assert gap.low <= gap.value <= gap.high
        reverse = gaps.between("a", "c")[name]
        assert torch.allclose(-reverse.value, gap.value)
        assert torch.allclose(-reverse.high, gap.low)
        assert torch.allclose(-reverse.low, gap.high)
        largest = gaps.largest[name]
        assert largest.low <= largest.value <= largest.high
        assert largest.value >= gap.value.abs() - 1e-12


def test_without_noise_a_rate_has_wilsons_interval() -> None:
    scores, target, groups = examples()
    gaps = group_gaps(released((scores, target, groups)), threshold=0.5, confidence=0.95)
    positives = scores[(target == 1) & (groups == 1)]
    n = len(positives)
    p = float((positives >= 0.5).double().mean())
    z = 1.959963984540054
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    tpr = gaps.rates["tpr"]
    assert tpr.low[1].item() == rounded(centre - half_width)
    assert tpr.high[1].item() == rounded(centre + half_width)


@pytest.mark.slow
def test_intervals_of_private_gaps_hold_those_of_the_population() -> None:
    """60 runs: 95% intervals miss one of five rates more than 14 times with a chance of 1e-6 each.

    Power: intervals of a third of the width must fail.
    """
    population = examples(200_000, seed=1)
    truth = group_gaps(released(population), 0.5).between("a", "c")
    misses = dict.fromkeys(truth, 0)
    misses_of_narrow = dict.fromkeys(truth, 0)
    generator = torch.Generator().manual_seed(2)
    for _ in range(60):
        drawn = torch.randint(0, 200_000, (6_000,), generator=generator)
        sample = tuple(column[drawn] for column in population)
        gaps, _ = warned(released(sample, CentralDP(1.0)))
        for name, (value, low, high) in gaps.between("a", "c").items():
            gap = truth[name].value
            misses[name] += not low <= gap <= high
            misses_of_narrow[name] += bool((value - gap).abs() > (high - low) / 6)
    assert max(misses.values()) <= 14
    assert min(misses_of_narrow.values()) > 14


def warned(
    release: Release,
    threshold: float = 0.5,
) -> tuple[GroupGaps, list[str]]:
    """Return the gaps, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gaps = group_gaps(release, threshold)
    return gaps, [str(warning.message) for warning in caught]


def test_gaps_of_small_groups_are_withheld() -> None:
    scores, target, groups = examples(3_000)
    groups = torch.where(torch.arange(3_000) < 30, 2, groups.clamp(max=1))
    gaps, texts = warned(released((scores, target, groups), CentralDP(1.0)))
    assert any(text.startswith("Gaps of c are withheld") for text in texts)
    assert gaps.rates["tpr"].value.isnan().tolist() == [False, False, True]
    assert all(gap.value.isnan() for gap in gaps.between("a", "c").values())
    assert gaps.withheld == dict.fromkeys(gaps.rates, ("c",))
    assert all(value.isnan() for value in gaps.scalars.values())


def test_gaps_that_are_mostly_noise_are_warned_of() -> None:
    sample = tuple(column[:450] for column in examples())
    _, texts = warned(released(sample, CentralDP(1.0)))
    assert any("are mostly noise" in text for text in texts)


def test_a_maximum_that_noise_inflates_is_warned_of() -> None:
    scores, target, _ = examples(8_000)
    data = (scores, target, torch.arange(8_000) % 8)
    _, texts = warned(released(data, CentralDP(0.3), tuple("abcdefgh")))
    assert any("is inflated: noise alone would show about" in text for text in texts)
    assert warned(released(examples(20_000), CentralDP(3.0)))[1] == []
    assert warned(released(examples(200)))[1] == []  # exact


def test_several_classes_have_gaps_each() -> None:
    generator = torch.Generator().manual_seed(3)
    target = torch.randint(0, 3, (3_000,), generator=generator)
    groups = torch.randint(0, 3, (3_000,), generator=generator)
    noise = torch.randn(3_000, 3, generator=generator)
    scores = (noise + 2 * torch.nn.functional.one_hot(target, 3)).softmax(1)
    metric = FederatedAUROC("multiclass", num_classes=3, groups=3)
    metric.update(scores, target, groups)
    gaps = group_gaps(metric.release(), 0.4)
    assert gaps.rates["tpr"].value.shape == (3, 3)
    assert gaps.equalized_odds.value.shape == (3,)
    positives = (groups == 1) & (target == 2)
    tpr = float((scores[positives, 2] >= gaps.threshold).double().mean())
    assert float(gaps.rates["tpr"].value[1, 2]) == pytest.approx(tpr)


def test_the_figure_has_a_panel_for_each_rate() -> None:
    _, axes = group_gaps(released(examples())).plot()
    assert [ax.get_xlabel() for ax in axes] == [
        "True positive rate",
        "False positive rate",
        "Positive rate",
        "Precision",
        "AUROC",
    ]
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list(NAMES)


def test_keywords_of_matplotlib_reach_the_intervals() -> None:
    _, axes = group_gaps(released(examples())).plot(color="black", markersize=9)
    for ax in axes:
        assert {bar.lines[0].get_color() for bar in ax.containers} == {"black"}
        assert {bar.lines[0].get_markersize() for bar in ax.containers} == {9}


def test_what_has_no_groups_has_no_gaps() -> None:
    metric = FederatedROC()
    metric.update(*examples(10)[:2])
    with pytest.raises(InputError, match="Expected a release with groups"):
        group_gaps(metric.release())
    with pytest.raises(InputError, match="Expected a Release but got list"):
        group_gaps([])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one of the groups"):
        group_gaps(released(examples(100))).between("a", "z")


def test_curves_of_groups_are_drawn_on_one_figure() -> None:
    metric = FederatedROC(groups=NAMES)
    metric.update(*examples(500))
    ax = None
    for name, curve in metric.by_group().items():
        _, ax = curve.plot(ax=ax, label=name)
    assert ax is not None
    assert len(ax.get_lines()) == 4
    curve = roc_from_counts(metric.release().by_group["b"])
    assert torch.equal(curve.tpr, metric.by_group()["b"].tpr)


@pytest.mark.filterwarnings("ignore:No positive examples")
def test_a_group_without_a_class_has_no_area_and_no_rate_of_it() -> None:
    scores, target, groups = examples()
    gaps = group_gaps(released((scores, target.where(groups != 2, 0), groups)))
    assert gaps.withheld == {"tpr": ("c",), "auroc": ("c",)}
    for name in ("auroc", "tpr"):
        assert gaps.rates[name].value.isnan().tolist() == [False, False, True]
        assert gaps.largest[name].value.isnan()
    assert not gaps.largest["fpr"].value.isnan()
    assert gaps.equalized_odds.value.isnan()


def apart(
    third: float,
    seed: int,
    size: int = 6_000,
) -> tuple[Tensor, Tensor, Tensor]:
    """40 of 6,000 examples are in a third group; tpr are .8, .5 and that of the third."""
    generator = torch.Generator().manual_seed(seed)
    groups = (torch.arange(size) % 2).where(torch.arange(size) >= 40, 2)
    target = (torch.rand(size, generator=generator) < 0.4).long()
    rate = torch.tensor([0.8, 0.5, third])[groups].where(target == 1, 0.2)
    hit = torch.rand(size, generator=generator) < rate
    within = torch.rand(size, generator=generator, dtype=torch.float64)
    return 0.5 * within + 0.5 * hit, target, groups


@pytest.mark.filterwarnings(
    "ignore:Gaps of",
    "ignore:The largest difference",
    "ignore:No .*tive examples",
)
def test_no_group_hides_the_largest_gap_by_being_withheld() -> None:
    """The third group is .619 below the first; the first two are .3 apart."""
    gaps = group_gaps(released(apart(0.181, seed=0), CentralDP(1.0)), 0.5)
    assert gaps.withheld["tpr"] == ("c",)
    for value, low, high in (gaps.equal_opportunity, gaps.equalized_odds):
        assert value.isnan()
        assert 0.2 < low < 0.3  # the first two differ by that much
        assert high == 1


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Gaps of",
    "ignore:The largest difference",
    "ignore:No .*tive examples",
)
@pytest.mark.parametrize("third", [0.181, 0.65], ids=["the furthest", "in between"])
def test_intervals_of_the_largest_gap_hold_it_if_a_group_is_withheld(third: float) -> None:
    """60 runs: 95% intervals miss more than 14 times with a chance of 1e-6.

    Power: the interval of the other two groups misses a third that is further away.
    """
    rates = (0.8, 0.5, third)
    truth = max(rates) - min(rates)
    misses = 0
    misses_of_two = 0
    for seed in range(60):
        gaps = group_gaps(released(apart(third, seed), CentralDP(1.0)), 0.5)
        _, low, high = gaps.equal_opportunity
        misses += not low <= truth <= high
        _, low, high = gaps.between("a", "b")["tpr"]
        misses_of_two += not low <= truth <= high
    assert misses <= 14
    assert (misses_of_two > 14) == (third == 0.181)


def test_the_figure_names_withheld_groups() -> None:
    gaps, _ = warned(released(apart(0.181, seed=0), CentralDP(1.0)))
    _, axes = gaps.plot()
    for ax in axes:
        rows = [text.get_position()[1] for text in ax.texts if text.get_text() == "withheld"]
        assert rows == [2]
