"""Decision curves against the published formula and `dcurves`, gains against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve
from torch import Tensor

from benchmarks.decisions import exact_gains, exact_net_benefit
from tests.functional.scores import Scored
from tests.grids import even
from torchmetrics_fed import CentralDP, FederatedROC, InputError, Release, ScoreGrid
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import CumulativeGains, NetBenefit, cumulative_gains, net_benefit
from torchmetrics_fed.functional.curve import count
from torchmetrics_fed.typing import Floats


def mean_width(result: NetBenefit) -> float:
    """Return the mean distance of the bounds, which hold the curve."""
    assert result.low is not None
    assert result.high is not None
    assert ((result.low <= result.model) & (result.model <= result.high)).all()
    return float((result.high - result.low).mean())


def holds(
    result: NetBenefit | CumulativeGains,
    curve: Floats,
    rounding: float,
) -> bool:
    """Return whether a curve is within the bounds."""
    assert result.low is not None
    assert result.high is not None
    is_above = result.low.numpy() <= curve + rounding
    is_below = curve - rounding <= result.high.numpy()
    return bool((is_above & is_below).all())


def width_at(result: NetBenefit | CumulativeGains, place: int) -> float:
    assert result.low is not None
    assert result.high is not None
    return float(result.high[place] - result.low[place])


def released(scored: Scored, epsilon: float | None = None) -> Release:
    metric = FederatedROC()
    if epsilon is not None:
        metric = FederatedROC(privacy=CentralDP(epsilon), plan="single")
    metric.update(*scored)
    return metric.release()


def test_net_benefit_at_edges_is_vickers_and_elkins_formula(
    scored: Scored,
    grid: ScoreGrid,
) -> None:
    """Tolerance 1e-12: at an edge nothing is interpolated."""
    at = grid.edges[grid.edges < 1]
    result = net_benefit(count(*scored, grid=grid), at)
    expected = exact_net_benefit((scored[1].numpy(), scored[0].numpy()), at.numpy())
    assert np.abs(result.model.numpy() - expected).max() < 1e-12
    share = scored[1].double().mean()
    treat_all = share - (1 - share) * at / (1 - at)
    assert torch.allclose(result.treat_all, treat_all, rtol=0, atol=1e-12)


@pytest.mark.integration
def test_net_benefit_is_that_of_dcurves(
    scored: Scored,
    grid: ScoreGrid,
) -> None:
    """Tolerance 1e-12. `dcurves` needs pandas below 3, so it has an environment of its own."""
    dcurves = pytest.importorskip("dcurves")
    pandas = pytest.importorskip("pandas")
    at = grid.edges[(grid.edges > 0) & (grid.edges < 1)]
    table = pandas.DataFrame({"model": scored[0].numpy(), "outcome": scored[1].numpy()})
    expected = dcurves.dca(
        data=table,
        outcome="outcome",
        modelnames=["model"],
        thresholds=at.numpy(),
    )
    result = net_benefit(count(*scored, grid=grid), at)
    for name, values in (("model", result.model), ("all", result.treat_all)):
        theirs = expected[expected.model == name].net_benefit.to_numpy()
        assert np.abs(theirs - values.numpy()).max() < 1e-12


def test_bounds_of_net_benefit_hold_the_exact_curve(scored: Scored) -> None:
    scores = (scored[1].numpy(), scored[0].numpy())
    expected = exact_net_benefit(scores, np.linspace(0.01, 0.99, 99))
    result = net_benefit(released(scored), confidence=0.95, of="examples")
    assert holds(result, expected, rounding=1e-12)


def test_bounds_of_net_benefit_are_wider_with_sampling_and_with_noise(
    scored: Scored,
) -> None:
    exact = released(scored)
    private = released(scored, epsilon=1.0)
    width = mean_width(net_benefit(exact, confidence=0.95, of="examples"))
    with_sampling = mean_width(net_benefit(exact, confidence=0.95))
    with_noise = mean_width(net_benefit(private, confidence=0.95, of="examples"))
    noisier = released(scored, epsilon=0.1)
    with_both = mean_width(net_benefit(noisier, confidence=0.95))
    assert width < with_sampling < with_both
    assert width < with_noise


@pytest.mark.parametrize("plan", ["adaptive", "single", "carry_over"])
def test_every_class_has_a_decision_curve_with_every_plan(plan: PlanName) -> None:
    target = torch.arange(3_000) % 3
    noise = torch.randn(3_000, 3, generator=torch.Generator().manual_seed(1))
    metric = FederatedROC("multiclass", num_classes=3, privacy=CentralDP(3.0), plan=plan)
    metric.update((noise + 2 * torch.eye(3)[target]).softmax(1), target)
    result = net_benefit(metric.release(), [0.2, 0.5], confidence=0.9)
    assert result.low is not None
    assert result.model.shape == result.low.shape == (3, 2)
    assert result.scalars["mean_advantage"].shape == (3,)


def test_a_single_threshold_is_known_better_than_all_at_once(scored: Scored) -> None:
    metric = FederatedROC(privacy=CentralDP(0.3))
    metric.update(*scored)
    single = net_benefit(metric.release(), [0.2], 0.95)
    at_once = net_benefit(metric.release(), None, 0.95)
    assert single.model[0] == pytest.approx(at_once.model[19].item(), abs=1e-12)
    assert width_at(single, 0) < width_at(at_once, 19)


def test_net_benefit_refuses_thresholds_and_scores_that_are_no_probabilities() -> None:
    leaf = torch.tensor([[3, 1], [1, 3]])
    for wrong in ([], [1.0], [-0.1], [float("nan")]):
        with pytest.raises(InputError, match="thresholds"):
            net_benefit(even(leaf), wrong)
    with pytest.raises(InputError, match="Release"):
        net_benefit(even(leaf), confidence=0.95)
    metric = FederatedROC(grid=ScoreGrid.even(16, (-4.0, 4.0)))
    metric.update(torch.randn(50).clamp(-3.9, 3.9), torch.arange(50) % 2)
    with pytest.raises(InputError, match="probabilities"):
        net_benefit(metric.release())


def test_no_examples_have_no_benefit() -> None:
    assert net_benefit(even(torch.zeros(2, 4))).model.abs().max() == 0


def test_gains_are_scikit_learns(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    """Against the ROC curve, whose points are selected fractions and recalls.

    Tolerance 1e-12: of scores in one bin as many are taken, at random, as there is room for.
    """
    target = scored[1].numpy()
    fpr, tpr, _ = roc_curve(target, binned.numpy(), drop_intermediate=False)
    share = target.mean()
    q = np.linspace(0.01, 1, 100)
    result = cumulative_gains(count(*scored, grid=grid))
    expected = np.interp(q, share * tpr + (1 - share) * fpr, tpr)
    assert np.abs(result.recall.numpy() - expected).max() < 1e-12
    assert np.abs(result.lift.numpy() - expected / q).max() < 1e-10
    assert result.scalars["recall_top_decile"].item() == result.recall[9]
    assert result.scalars["lift_top_decile"].item() == result.lift[9]


def test_bounds_of_gains_hold_the_sorted_scores(scored: Scored) -> None:
    q = np.linspace(0.01, 1, 100)
    expected = exact_gains((scored[1].numpy(), scored[0].numpy()), q)
    release = released(scored)
    exact = cumulative_gains(release, confidence=0.95, of="examples")
    sampled = cumulative_gains(release, confidence=0.95)
    assert holds(exact, expected, rounding=1e-9)
    # given the sizes of the classes, recall at a fraction of all examples varies like a binomial
    assert 0.005 < width_at(sampled, 49) < 0.1
    assert width_at(sampled, 49) > width_at(exact, 49)


def test_every_class_has_gains() -> None:
    metric = FederatedROC("multilabel", num_labels=2, privacy=CentralDP(3.0))
    target = torch.stack([torch.arange(4_000) % 2, torch.arange(4_000) % 4 == 0], 1).long()
    metric.update((0.5 * torch.rand(4_000, 2) + 0.4 * target), target)
    result = cumulative_gains(metric.release(), [0.25, 0.5], 0.95)
    assert result.low is not None
    assert result.recall.shape == result.low.shape == (2, 2)
    assert result.recall[0, 1] > 0.8
    assert result.recall[1, 0] > 0.6


@pytest.mark.parametrize("fractions", [[], [0.0], [1.1]])
def test_fractions_are_fractions(fractions: list[float]) -> None:
    with pytest.raises(InputError, match="fractions"):
        cumulative_gains(even(torch.ones(2, 2)), fractions)
