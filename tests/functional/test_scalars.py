"""Every result with ``.scalars`` gives the numbers of its functional twin, for each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.grids import even
from torchmetrics_fed import Release, ScoreGrid, Spec, functional
from torchmetrics_fed.functional import (
    SCORE_NAMES,
    DETCurve,
    Drift,
    Histograms,
    area_under_gain,
    auroc_from_counts,
    average_precision_from_counts,
    best_f1,
    brier_score,
    calibration_error,
    calibration_from_counts,
    calibration_line,
    confusion_at,
    cumulative_gains,
    det_from_counts,
    net_benefit,
    population_stability_index,
    precision_recall_from_counts,
    precision_recall_gain_from_counts,
    predictive_values,
    recalibrate,
    roc_from_counts,
    score_at_threshold,
)
from torchmetrics_fed.functional.confusion import ScoreName

Twin = Callable[[Tensor], Tensor]


def crossing(leaf: Tensor) -> Tensor:
    """Where fpr and fnr meet, by interpolation at a million places between the points."""
    curves: DETCurve = det_from_counts(even(leaf))
    points = curves.fpr.shape[-1]
    at = np.linspace(0, points - 1, 1_000_001)
    rates = []
    for fpr, fnr in zip(
        curves.fpr.reshape(-1, points),
        curves.fnr.reshape(-1, points),
        strict=True,
    ):
        fine_fpr = np.interp(at, np.arange(points), fpr.numpy())
        fine_fnr = np.interp(at, np.arange(points), fnr.numpy())
        rates.append(fine_fpr[np.abs(fine_fpr - fine_fnr).argmin()])
    return torch.tensor(rates).reshape(leaf.shape[:-2])


def mean_advantage(leaf: Tensor) -> Tensor:
    """At the default thresholds, one by one."""
    advantages = []
    for t in range(1, 100):
        benefit = net_benefit(even(leaf), [t / 100])
        advantages.append((benefit.model - benefit.treat_all.clamp(min=0))[..., 0])
    return torch.stack(advantages).mean(0)


def released(leaf: Tensor) -> Release:
    """An exact release with these counts."""
    if leaf.dim() == 2:
        return Release.exact(Spec("binary", 1, ScoreGrid.even(16)), leaf[None])
    return Release.exact(Spec("multilabel", len(leaf), ScoreGrid.even(16)), leaf)


def largest_change(leaf: Tensor) -> Tensor:
    """The largest distance of a score and its calibrated probability, by the module itself."""
    module = recalibrate(released(leaf), "logistic")
    scores = torch.linspace(0, 1, 1025, dtype=torch.float64)
    if module.classes:
        scores = scores[:, None].expand(-1, len(leaf))
    change: Tensor = (module(scores) - scores).abs().amax(0)
    return change


def drift(leaf: Tensor) -> Drift:
    """The drift from these counts to their mirror image."""
    return population_stability_index(released(leaf), released(leaf.flip(-1)))


def field(make: Callable[[Tensor], Any], name: str) -> Twin:
    return lambda leaf: torch.as_tensor(getattr(make(leaf), name))


def on_even(function: Callable[[Histograms], Any]) -> Callable[[Tensor], Any]:
    """The function of leaf counts on even leaves."""
    return lambda leaf: function(even(leaf))


def score(name: ScoreName) -> Twin:
    return lambda leaf: score_at_threshold(even(leaf), name, 0.25)


RESULTS: dict[str, tuple[Callable[[Tensor], Any], dict[str, Twin]]] = {
    "ROCCurve": (on_even(roc_from_counts), {"auroc": on_even(auroc_from_counts)}),
    "PrecisionRecallCurve": (
        on_even(precision_recall_from_counts),
        {"average_precision": on_even(average_precision_from_counts)},
    ),
    "DETCurve": (on_even(det_from_counts), {"equal_error_rate": crossing}),
    "PrecisionRecallGainCurve": (
        on_even(precision_recall_gain_from_counts),
        {"area_under_gain": on_even(area_under_gain)},
    ),
    "Calibration": (
        on_even(calibration_from_counts),
        {
            "expected_calibration_error": on_even(calibration_error),
            "brier_score": on_even(brier_score),
        },
    ),
    "NetBenefit": (on_even(net_benefit), {"mean_advantage": mean_advantage}),
    "CumulativeGains": (
        on_even(cumulative_gains),
        {
            "recall_top_decile": lambda leaf: cumulative_gains(even(leaf), [0.1]).recall[..., 0],
            "lift_top_decile": lambda leaf: cumulative_gains(even(leaf), [0.1]).lift[..., 0],
        },
    ),
    "PredictiveValues": (
        lambda leaf: predictive_values(even(leaf), 0.5),
        {
            "positive_predictive_value": lambda leaf: (
                leaf[..., 1, 32:].sum(-1) / leaf[..., 32:].sum((-1, -2))
            ),
            "negative_predictive_value": lambda leaf: (
                leaf[..., 0, :32].sum(-1) / leaf[..., :32].sum((-1, -2))
            ),
        },
    ),
    "CalibrationLine": (
        lambda leaf: calibration_line(released(leaf)),
        {
            f"calibration_{name}": field(lambda leaf: calibration_line(released(leaf)), name)
            for name in ("intercept", "slope")
        },
    ),
    "Recalibration": (
        lambda leaf: recalibrate(released(leaf), "logistic"),
        {"largest_change": largest_change},
    ),
    "Drift": (
        drift,
        {
            "population_stability_index": lambda leaf: drift(leaf).value,
            "p_value": lambda leaf: drift(leaf).p_value,
        },
    ),
    "OperatingPoint": (
        on_even(best_f1),
        {name: field(on_even(best_f1), name) for name in ("value", "threshold")},
    ),
    "Confusion": (
        on_even(lambda source: confusion_at(source, 0.25)),
        {name: score(name) for name in SCORE_NAMES if name != "fbeta"},
    ),
}


def test_no_result_is_forgotten() -> None:
    kinds = {name: getattr(functional, name) for name in functional.__all__}
    results = {
        name for name, kind in kinds.items() if isinstance(kind, type) and hasattr(kind, "scalars")
    }
    # test_groups.py and test_trend.py test these
    assert results - set(RESULTS) == {"GroupGaps", "Trend"}


@pytest.mark.parametrize("classes", [(), (3,)], ids=["binary", "classes"])
@pytest.mark.parametrize("name", RESULTS)
def test_scalars_are_the_functional_twins(
    name: str,
    classes: tuple[int, ...],
) -> None:
    leaf = torch.randint(0, 90, (*classes, 2, 64), generator=torch.Generator().manual_seed(5))
    make, twins = RESULTS[name]
    result = make(leaf)
    assert type(result).__name__ == name
    scalars = result.scalars
    assert set(scalars) == set(twins)
    for scalar, twin in twins.items():
        assert scalars[scalar].shape == classes
        torch.testing.assert_close(scalars[scalar].double(), twin(leaf).double(), rtol=0, atol=1e-5)
