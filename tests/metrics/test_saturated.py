"""Scores as networks give them: saturated, near zero, as logits or as probabilities. And ties
that the bins make."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedAUROC, FederatedROC, ScoreGrid, evaluation_report
from torchmetrics_fed.functional import auroc

# Scale and shift of logits that are normal in each class, one apart.
SATURATED = {"confident": (2.0, 12.0), "both ends": (10.0, 0.0), "rare": (2.0, -9.0)}


def drawn(scale: float, shift: float, examples: int = 100_000) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(0, 2, (examples,), generator=generator)
    return (
        torch.randn(examples, generator=generator, dtype=torch.float64) + target
    ) * scale + shift, target


@pytest.mark.parametrize("name", SATURATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_area_of_saturated_scores_is_right(name: str, dtype: torch.dtype) -> None:
    logits, target = drawn(*SATURATED[name])
    for scores, options in (
        (logits.to(dtype), {"normalization": "sigmoid"}),
        (logits.to(dtype).sigmoid(), {}),
    ):
        metric: Any = FederatedAUROC(**options)  # type: ignore[arg-type]
        for preds, labels in zip(scores.split(30_000), target.split(30_000), strict=True):
            metric.update(preds, labels)
        truth = roc_auc_score(target.numpy(), scores.double().numpy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # float32 probabilities of 1 are tied
            assert metric.compute().item() == pytest.approx(truth, abs=0.001)


def test_even_bins_lose_what_two_sided_ones_keep() -> None:
    logits, target = drawn(*SATURATED["confident"])
    truth = roc_auc_score(target.numpy(), logits.numpy())
    with pytest.warns(UserWarning, match="share a bin"):
        even = auroc(logits, target, normalization="sigmoid", grid="even")
    assert abs(even.item() - truth) > 0.2
    assert auroc(logits, target, normalization="sigmoid").item() == pytest.approx(truth, abs=0.001)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_areas_of_a_confident_softmax_are_right(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(6)
    target = torch.randint(0, 10, (20_000,), generator=generator)
    logits = torch.randn(20_000, 10, generator=generator, dtype=torch.float64)
    logits[torch.arange(20_000), target] += 1.5
    logits *= 8
    metric = FederatedAUROC("multiclass", num_classes=10, average=None, normalization="softmax")
    metric.update(logits.to(dtype), target)
    # the order of p / (1 - p), which float64 keeps where p itself is 1
    rest = torch.stack(
        [logits[:, [k for k in range(10) if k != label]].logsumexp(1) for label in range(10)], 1
    )
    truth = [
        roc_auc_score((target == label).numpy(), (logits - rest)[:, label].numpy())
        for label in range(10)
    ]
    assert np.abs(metric.compute().numpy() - truth).max() < 0.001


@pytest.mark.parametrize("name", SATURATED)
def test_a_private_release_of_saturated_scores_is_of_use(name: str) -> None:
    logits, target = drawn(*SATURATED[name], examples=50_000)
    metric = FederatedAUROC(normalization="sigmoid", privacy=CentralDP(1.0))
    metric.update(logits, target)
    truth = roc_auc_score(target.numpy(), logits.numpy())
    assert metric.compute().item() == pytest.approx(truth, abs=0.02)


def warned(metric: FederatedROC) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.compute()
    return [str(warning.message) for warning in caught if "share a bin" in str(warning.message)]


def test_ties_that_the_bins_make_are_named_once() -> None:
    logits, target = drawn(*SATURATED["rare"])
    metric = FederatedROC(grid="even")
    metric.update(logits.sigmoid(), target)
    (message,) = warned(metric)
    counts = metric.counts[0].double()
    tied = float((counts[0] * counts[1]).sum() / (counts[0].sum() * counts[1].sum()))
    assert f"{tied:.1%}" in message
    assert f"{tied / 2:.3f}" in message
    for word in ('grid="two_sided"', "quantiles", "constant classifier", "nearest neighbours"):
        assert word in message
    assert warned(metric) == []


def test_real_ties_are_named_and_fine_scores_are_not() -> None:
    constant = FederatedROC()
    constant.update(torch.full((100,), 0.25), torch.arange(100) % 2)
    assert "100.0%" in warned(constant)[0]
    for scale, shift in (*SATURATED.values(), (1.0, 0.0), (1.0, -9.0)):
        logits, target = drawn(scale, shift)
        metric = FederatedROC(normalization="sigmoid")
        metric.update(logits, target)
        assert warned(metric) == []


def test_the_user_who_chose_the_bins_and_the_private_release_hear_nothing() -> None:
    scores = torch.full((100,), 0.25)
    target = torch.arange(100) % 2
    for options in ({"grid": ScoreGrid.from_edges([0, 0.5, 1])}, {"privacy": CentralDP(1.0)}):
        metric = FederatedROC(**options)
        metric.update(scores, target)
        assert warned(metric) == []


def test_functions_and_reports_warn_as_well() -> None:
    scores = torch.full((100,), 0.25)
    target = torch.arange(100) % 2
    with pytest.warns(UserWarning, match="share a bin"):
        auroc(scores, target)
    metric = FederatedROC()
    metric.update(scores, target)
    with pytest.warns(UserWarning, match="share a bin"):
        evaluation_report(metric.release())


def test_scores_of_exactly_0_and_1_are_true_ties_and_no_reason_to_warn() -> None:
    generator = torch.Generator().manual_seed(7)
    target = torch.randint(0, 2, (4_000,), generator=generator)
    scores = torch.rand(4_000, generator=generator)
    chance = torch.rand(4_000, generator=generator)
    scores[chance < 0.4] = 0.0
    scores[chance > 0.8] = 1.0
    metric = FederatedROC()
    metric.update(scores, target)
    assert warned(metric) == []
    truth = roc_auc_score(target.numpy(), scores.numpy())
    assert auroc(scores, target).item() == pytest.approx(truth, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_hard_labels_have_the_exact_corner_and_area(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    target = torch.randint(0, 2, (1_000,), generator=generator)
    called = (torch.rand(1_000, generator=generator) + 0.3 * target > 0.6).to(dtype)
    metric = FederatedROC()
    metric.update(called, target)
    curve = metric.compute()
    truth = roc_curve(target.numpy(), called.float().numpy())
    corners = torch.stack(curve[:2], -1).unique(dim=0)
    assert np.allclose(corners.numpy(), np.stack(truth[:2], -1), rtol=0, atol=1e-15)
    assert auroc(called, target).item() == pytest.approx(
        roc_auc_score(target.numpy(), called.float().numpy()), abs=1e-12
    )
    at_one = curve.thresholds == 1.0
    assert curve.tpr[at_one].item() == pytest.approx(truth[1][1], abs=1e-15)
    assert curve.thresholds[0] > 1.0
