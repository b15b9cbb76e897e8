"""Decision curves against the published formula on the scores themselves, and against the package `dcurves`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.decisions import exact_net_benefit
from torchmetrics_fed import CentralDP, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional import net_benefit
from torchmetrics_fed.functional.curve import count


def test_at_edges_it_is_vickers_and_elkins_formula(
    scored: tuple[Tensor, Tensor], grid: ScoreGrid
) -> None:
    """Tolerance 1e-12: at an edge nothing is interpolated."""
    at = grid.edges[grid.edges < 1]
    result = net_benefit(count(*scored, grid=grid), at)
    expected = exact_net_benefit((scored[1].numpy(), scored[0].numpy()), at.numpy())
    assert np.abs(result.model.numpy() - expected).max() < 1e-12
    share = scored[1].double().mean()
    assert torch.allclose(result.treat_all, share - (1 - share) * at / (1 - at), rtol=0, atol=1e-12)


@pytest.mark.integration
def test_it_is_dcurves(scored: tuple[Tensor, Tensor], grid: ScoreGrid) -> None:
    """Tolerance 1e-12. `dcurves` needs pandas below 3, so that it has an environment of its own."""
    dcurves = pytest.importorskip("dcurves")
    pandas = pytest.importorskip("pandas")
    at = grid.edges[(grid.edges > 0) & (grid.edges < 1)]
    table = pandas.DataFrame({"model": scored[0].numpy(), "outcome": scored[1].numpy()})
    expected = dcurves.dca(
        data=table, outcome="outcome", modelnames=["model"], thresholds=at.numpy()
    )
    result = net_benefit(count(*scored, grid=grid), at)
    for name, values in (("model", result.model), ("all", result.treat_all)):
        assert (
            np.abs(expected[expected.model == name].net_benefit.to_numpy() - values.numpy()).max()
            < 1e-12
        )


def test_bounds_hold_the_curve_without_noise_and_are_wider_with_sampling_and_noise(
    scored: tuple[Tensor, Tensor],
) -> None:
    exact, private = FederatedROC(), FederatedROC(privacy=CentralDP(1.0), plan="single")
    for metric in (exact, private):
        metric.update(*scored)
    expected = exact_net_benefit(
        (scored[1].numpy(), scored[0].numpy()), np.linspace(0.01, 0.99, 99)
    )
    results = [
        net_benefit(exact.release(), confidence=0.95),
        net_benefit(exact.release(), confidence=0.95, population=True),
        net_benefit(private.release(), confidence=0.95),
        net_benefit(private.release(), confidence=0.95, population=True),
    ]
    widths = []
    for result in results:
        assert result.low is not None
        assert result.high is not None
        assert bool(((result.low <= result.model) & (result.model <= result.high)).all())
        widths.append(float((result.high - result.low).mean()))
    assert results[0].low is not None
    assert results[0].high is not None
    assert bool(
        (
            (results[0].low.numpy() <= expected + 1e-12)
            & (expected - 1e-12 <= results[0].high.numpy())
        ).all()
    )
    assert widths[0] < widths[1] < widths[3]
    assert widths[0] < widths[2] < widths[3]


@pytest.mark.parametrize("plan", ["adaptive", "single", "carry_over"])
def test_classes_and_plans(plan: PlanName) -> None:
    target = torch.arange(3_000) % 3
    preds = (
        torch.randn(3_000, 3, generator=torch.Generator().manual_seed(1)) + 2 * torch.eye(3)[target]
    ).softmax(1)
    metric = FederatedROC("multiclass", num_classes=3, privacy=CentralDP(3.0), plan=plan)
    metric.update(preds, target)
    result = net_benefit(metric.release(), [0.2, 0.5], confidence=0.9)
    assert result.low is not None
    assert result.model.shape == result.low.shape == (3, 2)
    assert result.scalars["mean_advantage"].shape == (3,)


def test_a_single_threshold_is_known_better_than_all_at_once(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=CentralDP(0.3))
    metric.update(*scored)
    one, every = (net_benefit(metric.release(), at, 0.95) for at in ([0.2], None))
    assert one.low is not None
    assert one.high is not None
    assert every.low is not None
    assert every.high is not None
    assert one.model[0] == pytest.approx(every.model[19].item(), abs=1e-12)
    assert one.high[0] - one.low[0] < every.high[19] - every.low[19]


def test_what_has_no_answer_is_refused() -> None:
    leaf = torch.tensor([[3, 1], [1, 3]])
    for wrong in ([], [1.0], [-0.1], [float("nan")]):
        with pytest.raises(InputError, match="thresholds"):
            net_benefit(leaf, wrong)
    with pytest.raises(InputError, match="Release"):
        net_benefit(leaf, confidence=0.95)
    metric = FederatedROC(grid=ScoreGrid.even(16, (-4.0, 4.0)))
    metric.update(torch.randn(50).clamp(-3.9, 3.9), torch.arange(50) % 2)
    with pytest.raises(InputError, match="probabilities"):
        net_benefit(metric.release())


def test_nobody_at_all_has_no_benefit() -> None:
    assert net_benefit(torch.zeros(2, 4)).model.abs().max() == 0
