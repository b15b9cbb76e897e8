"""Every number of a report, in the object and in its JSON, is that of its function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, Release, evaluation_report
from torchmetrics_fed import functional as F
from torchmetrics_fed.typing import IntervalOf

NEAR: dict[str, Any] = {"rtol": 0, "atol": 1e-9}


def expected_numbers(release: Release) -> dict[str, Tensor]:
    """The numbers that the functions give, under the names of the report's numbers."""
    total = F.read(release).tails.total
    f1 = F.best_f1(release)
    youden = F.youden(release)
    calibration = F.calibration_from_counts(release)
    return {
        "negatives": total[..., 0],
        "positives": total[..., 1],
        "prevalence": total[..., 1] / total.sum(-1),
        "auroc": F.auroc_from_counts(release),
        "average_precision": F.average_precision_from_counts(release),
        "area_under_gain": F.area_under_gain(release),
        "kolmogorov_smirnov": F.kolmogorov_smirnov(release),
        "mann_whitney_u": F.mann_whitney_u(release),
        "best_f1": f1.value,
        "best_f1_threshold": f1.threshold,
        "youden": youden.value,
        "youden_threshold": youden.threshold,
        "lift_top_decile": F.cumulative_gains(release).scalars["lift_top_decile"],
        "expected_calibration_error": calibration.expected_calibration_error,
        "brier_score": calibration.brier_score,
        **F.calibration_line(release).scalars,
        "mean_advantage": F.net_benefit(release).scalars["mean_advantage"],
    }


def test_numbers_are_those_of_their_functions(
    release: Release, report: EvaluationReport, tmp_path: Path
) -> None:
    report.save(tmp_path / "report.json")
    classes = json.loads((tmp_path / "report.json").read_text())["classes"]
    expected = expected_numbers(release)
    assert report.numbers.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(report.numbers[name].value, value, **NEAR)
        written = [content["numbers"][name]["value"] for content in classes]
        written_value = torch.tensor(written, dtype=torch.float64)
        torch.testing.assert_close(written_value, value.double().reshape(-1), **NEAR)


def test_the_examples_of_exact_counts_have_neither_intervals_nor_bands() -> None:
    report = evaluation_report(release_of("exact multiclass"), of="examples")
    assert not report.intervals
    assert not report.bands


@pytest.mark.parametrize("of", ["population", "examples"])
@pytest.mark.parametrize("kind", ["private binary", "private multiclass", "private multilabel"])
def test_intervals_and_bands_are_those_of_their_functions(kind: str, of: IntervalOf) -> None:
    release = release_of(kind)
    confidence = 0.9
    report = evaluation_report(release, confidence=confidence, of=of)
    line = F.calibration_line(release, confidence, of)
    assert line.intervals is not None
    expected: dict[str, Any] = {
        "auroc": F.auroc_interval(release, confidence, of),
        "average_precision": F.average_precision_interval(release, confidence, of),
        **dict(zip(line.scalars, line.intervals, strict=True)),
    }
    curves: dict[str, Any] = {
        "net_benefit": F.net_benefit(release, confidence=confidence, of=of),
        "cumulative_gains": F.cumulative_gains(release, confidence=confidence, of=of),
    }
    for name, curve in curves.items():
        expected[name] = F.Interval(curve.low, curve.high)
        torch.testing.assert_close(getattr(report, name), curve, **NEAR)
    if of == "population":
        numbers = (F.calibration_from_counts, F.net_benefit, F.cumulative_gains)
        for function in (*numbers, F.precision_recall_gain_from_counts):
            expected |= F.intervals(release, function, confidence)
        for name in ("youden", "best_f1"):
            expected[name] = F.intervals(release, getattr(F, name), confidence)["value"]
        for name in ("kolmogorov_smirnov", "prevalence"):
            expected[name] = report.intervals[name]
    assert report.intervals.keys() == expected.keys()
    torch.testing.assert_close(report.intervals, expected, **NEAR)
    bands = {
        "roc": F.roc_band(release, confidence, of),
        "precision_recall": F.precision_recall_band(release, confidence, of),
    }
    torch.testing.assert_close(report.bands, bands, **NEAR)


def test_exact_counts_have_intervals_for_sampling() -> None:
    release = release_of("exact binary", examples=500)
    report = evaluation_report(release, confidence=0.9)
    interval = report.intervals["auroc"]
    torch.testing.assert_close(interval, F.auroc_interval(release, 0.9), **NEAR)
    assert interval.low < report.auroc < interval.high
    assert "(" in str(report)
