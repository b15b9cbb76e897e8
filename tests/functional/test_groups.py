"""Gaps between groups: exact ones are fairlearn's, private ones know their noise, small ones are withheld."""

from __future__ import annotations

import warnings

import numpy as np
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

from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, InputError, Privacy, Release
from torchmetrics_fed.functional import GroupGaps, group_gaps, roc_from_counts
from torchmetrics_fed.reconstruct.uncertainty.thresholds import Counted

NAMES = ("a", "b", "c")


def examples(size: int = 4_000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, 3, (size,), generator=generator)
    target = (torch.rand(size, generator=generator) < 0.3).long()
    logits = torch.randn(size, generator=generator) + 1.5 * target - 0.7 + 0.4 * groups
    return logits.sigmoid(), target, groups


def released(
    data: tuple[Tensor, ...], privacy: Privacy | None = None, names: tuple[str, ...] = NAMES
) -> Release:
    metric = FederatedROC(groups=names, privacy=privacy)
    metric.update(*data)
    return metric.release()


def test_exact_gaps_are_fairlearns() -> None:
    scores, target, groups = examples()
    found = group_gaps(released((scores, target, groups)), threshold=0.5)
    selected, known = (scores >= 0.5).long().numpy(), {"sensitive_features": groups.numpy()}
    functions = {
        "tpr": true_positive_rate,
        "fpr": false_positive_rate,
        "positive_rate": selection_rate,
        "precision": precision_score,
    }
    frame = MetricFrame(metrics=functions, y_true=target.numpy(), y_pred=selected, **known)
    for name in functions:
        assert found.rates[name].value.tolist() == pytest.approx(
            frame.by_group[name].tolist(), abs=1e-12
        )
        assert float(found.largest[name].value) == pytest.approx(
            frame.difference()[name], abs=1e-12
        )
    areas = [roc_auc_score(target[groups == g], scores[groups == g]) for g in range(3)]
    assert found.rates["auroc"].value.tolist() == pytest.approx(areas, abs=1e-3)
    usual = {
        "demographic_parity": demographic_parity_difference,
        "equal_opportunity": equal_opportunity_difference,
        "equalized_odds": equalized_odds_difference,
    }
    for name, function in usual.items():
        assert float(found.scalars[name]) == pytest.approx(
            function(target.numpy(), selected, **known), abs=1e-12
        )


def test_a_difference_is_that_of_its_groups_and_turns_with_them() -> None:
    found = group_gaps(released(examples()), threshold=0.3)
    assert found.threshold == pytest.approx(0.3, abs=1e-3)
    for name, gap in found.between("c", "a").items():
        assert gap.value == found.rates[name].value[2] - found.rates[name].value[0]
        assert gap.low <= gap.value <= gap.high
        back = found.between("a", "c")[name]
        assert torch.allclose(
            torch.stack([-back.high, -back.value, -back.low]),
            torch.stack([gap.low, gap.value, gap.high]),
        )
        largest = found.largest[name]
        assert largest.low <= largest.value <= largest.high
        assert largest.value >= gap.value.abs() - 1e-12


def test_without_noise_a_rate_has_wilsons_interval() -> None:
    scores, target, groups = examples()
    place = int((released((scores, target, groups)).spec.grid.edges - 0.5).abs().argmin())
    counted = Counted.of(list(released((scores, target, groups)).by_group.values()), place)
    low, high = (end[1, 0] for end in counted.rates(0.975)["tpr"][1:])
    mine = scores[(target == 1) & (groups == 1)]
    n, p, z = len(mine), float((mine >= 0.5).double().mean()), 1.959963984540054
    centre, reach = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert (low, high) == pytest.approx(
        ((centre - reach) / (1 + z**2 / n), (centre + reach) / (1 + z**2 / n)), abs=1e-12
    )


@pytest.mark.slow
def test_intervals_of_private_gaps_hold_those_of_the_population() -> None:
    """60 runs: 95% intervals that miss more than 14 times in one of five rates have a chance of 1e-6 each."""
    everybody = examples(200_000, seed=1)
    truth = group_gaps(released(everybody), 0.5).between("a", "c")
    missed, narrow = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    generator = torch.Generator().manual_seed(2)
    for _ in range(60):
        drawn = torch.randint(0, 200_000, (6_000,), generator=generator)
        sample = tuple(each[drawn] for each in everybody)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = group_gaps(released(sample, CentralDP(1.0)), 0.5).between("a", "c")
        for name, (value, low, high) in found.items():
            true = truth[name].value
            missed[name] += not low <= true <= high
            third = (high - low) / 6  # power: intervals of a third of the width must fail
            narrow[name] += not value - third <= true <= value + third
    assert max(missed.values()) <= 14
    assert min(narrow.values()) > 14


def warned(release: Release, threshold: float = 0.5) -> tuple[GroupGaps, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = group_gaps(release, threshold)
    return found, [str(each.message) for each in caught]


def test_gaps_of_few_are_withheld_and_those_of_some_come_with_a_word() -> None:
    scores, target, groups = examples(3_000)
    groups = torch.where(torch.arange(3_000) < 30, 2, groups.clamp(max=1))
    found, said = warned(released((scores, target, groups), CentralDP(1.0)))
    assert any(text.startswith("Gaps of c are withheld") for text in said)
    assert found.rates["tpr"].value.isnan().tolist() == [False, False, True]
    assert all(gap.value.isnan() for gap in found.between("a", "c").values())
    assert found.withheld == dict.fromkeys(found.rates, ("c",))
    assert all(value.isnan() for value in found.scalars.values())
    few = tuple(each[:450] for each in examples())
    _, said = warned(released(few, CentralDP(1.0)))
    assert any("are mostly noise" in text for text in said)


def test_a_maximum_that_noise_inflates_says_so() -> None:
    scores, target, _ = examples(8_000)
    _, said = warned(
        released((scores, target, torch.arange(8_000) % 8), CentralDP(0.3), tuple("abcdefgh"))
    )
    assert any("is inflated: noise alone would show about" in text for text in said)
    assert warned(released(examples(20_000), CentralDP(3.0)))[1] == []
    assert warned(released(examples(200)))[1] == []  # exact


def test_several_classes_have_gaps_each() -> None:
    generator = torch.Generator().manual_seed(3)
    target, groups = (torch.randint(0, 3, (3_000,), generator=generator) for _ in range(2))
    scores = (
        torch.randn(3_000, 3, generator=generator) + 2 * torch.nn.functional.one_hot(target, 3)
    ).softmax(1)
    metric = FederatedAUROC("multiclass", num_classes=3, groups=3)
    metric.update(scores, target, groups)
    found = group_gaps(metric.release(), 0.4)
    assert found.rates["tpr"].value.shape == (3, 3)
    assert found.equalized_odds.value.shape == (3,)
    mine = (groups == 1) & (target == 2)
    nearest = found.threshold
    assert float(found.rates["tpr"].value[1, 2]) == pytest.approx(
        float((scores[mine, 2] >= nearest).double().mean())
    )


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
    assert torch.equal(
        roc_from_counts(metric.release().by_group["b"]).tpr, metric.by_group()["b"].tpr
    )


@pytest.mark.filterwarnings("ignore:No positive examples")
def test_a_group_without_a_class_has_no_area_and_no_rate_of_it() -> None:
    scores, target, groups = examples()
    found = group_gaps(released((scores, target.where(groups != 2, 0), groups)))
    assert found.withheld == {"tpr": ("c",), "auroc": ("c",)}
    for name in ("auroc", "tpr"):
        assert found.rates[name].value.isnan().tolist() == [False, False, True]
        assert found.largest[name].value.isnan()
    assert not found.largest["fpr"].value.isnan()
    assert found.equalized_odds.value.isnan()


def apart(third: float, seed: int, size: int = 6_000) -> tuple[Tensor, Tensor, Tensor]:
    """Of 6,000 examples 40 are in a third group; true positive rates are .8, .5 and that of the third."""
    generator = torch.Generator().manual_seed(seed)
    groups = (torch.arange(size) % 2).where(torch.arange(size) >= 40, 2)
    target = (torch.rand(size, generator=generator) < 0.4).long()
    rate = torch.tensor([0.8, 0.5, third])[groups].where(target == 1, 0.2)
    hit = torch.rand(size, generator=generator) < rate
    within = torch.rand(size, generator=generator, dtype=torch.float64)
    return 0.5 * within + 0.5 * hit, target, groups


@pytest.mark.filterwarnings(
    "ignore:Gaps of", "ignore:The largest difference", "ignore:No .*tive examples"
)
def test_no_group_hides_the_largest_gap_by_being_withheld() -> None:
    """The third group is .619 below the first; the two that are shown are .3 apart."""
    found = group_gaps(released(apart(0.181, seed=0), CentralDP(1.0)), 0.5)
    assert found.withheld["tpr"] == ("c",)
    for value, low, high in (found.equal_opportunity, found.equalized_odds):
        assert value.isnan()
        assert 0.2 < low < 0.3  # the other two show that much
        assert high == 1


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Gaps of", "ignore:The largest difference", "ignore:No .*tive examples"
)
@pytest.mark.parametrize("third", [0.181, 0.65], ids=["the furthest", "in between"])
def test_intervals_of_the_largest_gap_hold_it_whoever_is_withheld(third: float) -> None:
    """60 runs: 95% intervals that miss more than 14 times have a chance of 1e-6."""
    rates = (0.8, 0.5, third)
    truth = max(rates) - min(rates)
    missed = 0
    above_shown = 0
    for seed in range(60):
        found = group_gaps(released(apart(third, seed), CentralDP(1.0)), 0.5)
        _, low, high = found.equal_opportunity
        missed += not low <= truth <= high
        shown = found.between("a", "b")["tpr"]
        above_shown += not shown.low <= truth <= shown.high
    assert missed <= 14
    # power: the interval of the two that are shown misses a third that is further away
    assert (above_shown > 14) == (third == 0.181)


def test_the_figure_says_who_is_withheld() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, axes = group_gaps(released(apart(0.181, seed=0), CentralDP(1.0)), 0.5).plot()
    for ax in axes:
        rows = [text.get_position()[1] for text in ax.texts if text.get_text() == "withheld"]
        assert rows == [2]
