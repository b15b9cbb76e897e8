"""Recalibration against scikit-learn's regressions, and what its module promises."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.decisions import brier, logits, recalibrated
from tests.functional.scores import Scored
from torchmetrics_fed import CentralDP, FederatedROC, InputError, Release, ScoreGrid
from torchmetrics_fed.functional import Recalibration, calibration_line, recalibrate
from torchmetrics_fed.functional.recalibration import RecalibrationMethod

METHODS: tuple[RecalibrationMethod, ...] = ("isotonic", "logistic")


def drawn(
    examples: int,
    power: float = 1.0,
    seed: int = 3,
) -> tuple[Tensor, Tensor]:
    """Scores, and targets that are positive with probability score ** power."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(examples, generator=generator, dtype=torch.float64)
    return scores, torch.bernoulli(scores**power, generator=generator).long()


def released(
    preds: Tensor,
    target: Tensor,
    epsilon: float | None = None,
    grid: ScoreGrid | None = None,
) -> Release:
    privacy = None
    if epsilon is not None:
        privacy = CentralDP(epsilon)
    metric = FederatedROC(privacy=privacy, grid=grid or "two_sided")
    metric.update(preds, target)
    return metric.release()


def test_the_line_is_scikit_learns(
    scored: Scored,
    grid: ScoreGrid,
    binned: Tensor,
) -> None:
    """Tolerance 1e-4, a hundredth of its standard error: the ridge moves the line by less."""
    line = calibration_line(released(*scored, grid=grid))
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(logits(binned.numpy())[:, None], scored[1])
    assert line.intercept.item() == pytest.approx(model.intercept_[0], abs=1e-4)
    assert line.slope.item() == pytest.approx(model.coef_[0, 0], abs=1e-4)


def test_its_sampling_error_is_that_of_the_likelihood(scored: Scored) -> None:
    line = calibration_line(released(*scored), 0.95)
    assert line.intervals is not None
    x = np.stack([np.ones(len(scored[0])), logits(scored[0].numpy())])
    rate = 1 / (1 + np.exp(-(line.intercept.item() + line.slope.item() * x[1])))
    deviation = np.sqrt(np.diag(np.linalg.inv((x * rate * (1 - rate)) @ x.T)))
    widths = [float(high - low) for low, high in line.intervals]
    assert widths == pytest.approx(2 * 1.96 * deviation, rel=0.1)


def test_separated_classes_have_a_finite_line() -> None:
    scores = torch.cat([torch.linspace(0.1, 0.4, 200), torch.linspace(0.6, 0.9, 200)])
    line = calibration_line(released(scores, (torch.arange(400) >= 200).long()))
    assert 1 < line.slope.item() < 1e3


@pytest.mark.slow
def test_the_curve_is_near_scikit_learns_isotonic_regression() -> None:
    """0.01 on average: the standard error of the regression with 20,000 examples."""
    scores, target = drawn(20_000, 2.0)
    model = IsotonicRegression(out_of_bounds="clip").fit(scores, target)
    at = torch.linspace(0.02, 0.98, 400, dtype=torch.float64)
    ours = recalibrate(released(scores, target))(at)
    assert (ours - torch.from_numpy(model.predict(at.numpy()))).abs().mean() < 0.01
    assert (ours - at**2).abs().max() < np.abs(model.predict(at.numpy()) - at.numpy() ** 2).max()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_calibrated_scores_stay_and_others_are_mended(
    epsilon: float | None,
    method: RecalibrationMethod,
) -> None:
    for power, largest_ratio in ((1.0, 1.01), (2.0, 0.9)):
        fitted_scores, fitted_target = drawn(8_000, power, seed=3)
        scores, target = drawn(8_000, power, seed=4)
        after = recalibrated(
            (fitted_target.numpy(), fitted_scores.numpy()),
            (target.numpy(), scores.numpy()),
            epsilon,
            method,
        )
        assert after < largest_ratio * brier(target.numpy(), scores)


def test_where_no_line_fits_it_is_the_one_of_least_brier_score() -> None:
    """Its score is lower than that of the likeliest line, and than that of the scores."""
    generator = torch.Generator().manual_seed(4)
    x = 2.5 * torch.randn(50_000, generator=generator, dtype=torch.float64) - 2.5
    bent = torch.sigmoid(x + x.sin() + 0.8 * (x < -1))
    target = torch.bernoulli(0.05 + 0.5 * torch.sigmoid(3 * x), generator=generator).long()
    release = released(bent, target)
    line = calibration_line(release)
    by_likeliest_line = torch.sigmoid(line.intercept + line.slope * torch.logit(bent))
    before = brier(target.numpy(), bent)
    likeliest = brier(target.numpy(), by_likeliest_line)
    after = brier(target.numpy(), recalibrate(release, "logistic")(bent))
    assert after < min(before, likeliest) - 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_it_rises_and_leaves_dtype_and_shape(method: RecalibrationMethod) -> None:
    module = recalibrate(released(*drawn(2_000, 2.0), epsilon=1.0), method)
    assert not list(module.parameters())
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        result = module(torch.linspace(0, 1, 60, dtype=dtype).reshape(3, 20))
        assert result.dtype == dtype
        assert result.shape == (3, 20)
        assert (result.flatten().diff() >= 0).all()
        assert ((result >= 0) & (result <= 1)).all()
    assert module(torch.tensor([-0.1, 1.1, torch.nan])).isnan().all()


@pytest.mark.parametrize("method", METHODS)
def test_it_is_saved_as_any_module(method: RecalibrationMethod) -> None:
    module = recalibrate(released(*drawn(2_000, 2.0)), method)
    at = torch.rand(9)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    pickled = pickle.loads(pickle.dumps(module))
    with_state = Recalibration(torch.zeros_like(module.knots))
    with_state.load_state_dict(module.state_dict())
    for copy in (loaded, pickled, with_state):
        assert torch.equal(copy(at), module(at))
    assert torch.equal(torch.nn.Sequential(torch.nn.Sigmoid(), module)(at), module(at.sigmoid()))


def test_exclusive_classes_add_up_to_one_and_labels_need_not() -> None:
    target = torch.arange(3_000) % 3
    preds = (torch.randn(3_000, 3) + 2 * torch.eye(3)[target]).softmax(1)
    metric = FederatedROC("multiclass", num_classes=3, privacy=CentralDP(3.0))
    metric.update(preds, target)
    for method in METHODS:
        result = recalibrate(metric.release(), method)(preds)
        assert torch.allclose(result.sum(1), torch.ones(3_000), atol=1e-6)
        assert (result.argmax(1) == target).double().mean() > 0.7
    assert calibration_line(metric.release(), 0.95).slope.shape == (3,)
    labels = FederatedROC("multilabel", num_labels=3)
    labels.update(preds, torch.nn.functional.one_hot(target, 3))
    assert recalibrate(labels.release())(preds.reshape(1_000, 3, 3)).shape == (1_000, 3, 3)


def test_a_class_lost_in_the_noise_changes_nothing() -> None:
    metric = FederatedROC(privacy=CentralDP(0.01), plan="single")
    metric.update(*drawn(100))
    at = torch.rand(50, dtype=torch.float64)
    for method in METHODS:
        assert torch.allclose(recalibrate(metric.release(), method)(at), at, atol=1e-5)


def test_what_cannot_be_recalibrated_is_refused() -> None:
    release = released(*drawn(100))
    with pytest.raises(InputError, match="method"):
        recalibrate(release, "platt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="preds"):
        recalibrate(release)(torch.tensor([0, 1]))
    with pytest.raises(InputError, match="Release"):
        calibration_line(torch.ones(2, 2))  # type: ignore[arg-type]
    logit = FederatedROC(grid=ScoreGrid.even(16, (-4.0, 4.0)))
    logit.update(torch.zeros(4), torch.arange(4) % 2)
    with pytest.raises(InputError, match="probabilities"):
        recalibrate(logit.release())
