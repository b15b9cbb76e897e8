"""Every number of a report, in the object and in its JSON, is that of its function, within 1e-9."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.report.conftest import release_of
from torchmetrics_fed import EvaluationReport, Release, evaluation_report
from torchmetrics_fed import functional as F
from torchmetrics_fed.functional import cumulative_gains, net_benefit
from torchmetrics_fed.report.document import document

NEAR: dict[str, Any] = {"rtol": 0, "atol": 1e-9}


def twins(release: Release) -> dict[str, Tensor]:
    """What the functions say of the release, under the names of the report's numbers."""
    f1, j, total = F.best_f1(release), F.youden(release), F.read(release).tails.total
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
        "youden": j.value,
        "youden_threshold": j.threshold,
        "lift_top_decile": cumulative_gains(release).scalars["lift_top_decile"],
        "expected_calibration_error": calibration.expected_calibration_error,
        "brier_score": calibration.brier_score,
        **F.calibration_line(release).scalars,
        "mean_advantage": net_benefit(release).scalars["mean_advantage"],
    }


def test_numbers_are_those_of_their_functions(
    release: Release, report: EvaluationReport, tmp_path: Path
) -> None:
    report.save(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    expected = twins(release)
    assert report.numbers.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(report.numbers[name].value, value, **NEAR)
        saved = torch.tensor(
            [one["numbers"][name]["value"] for one in written["classes"]], dtype=torch.float64
        )
        torch.testing.assert_close(saved, value.double().reshape(-1), **NEAR)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_and_bands_are_those_of_their_functions(
    release: Release, confidence: float
) -> None:
    report = evaluation_report(release, confidence=confidence)
    if not release.spec.privacy.charges:
        assert not report.intervals
        assert not report.bands
        return
    expected: dict[str, Any] = {
        "auroc": F.auroc_interval(release, confidence),
        "average_precision": F.average_precision_interval(release, confidence),
    }
    line = F.calibration_line(release, confidence)
    assert line.intervals is not None
    expected |= zip(line.scalars, line.intervals, strict=True)
    for name, function in (("net_benefit", net_benefit), ("cumulative_gains", cumulative_gains)):
        curve = function(release, confidence=confidence)
        assert curve.low is not None
        assert curve.high is not None
        expected[name] = F.Interval(curve.low, curve.high)
        torch.testing.assert_close(getattr(report, name), curve, **NEAR)
    assert report.intervals.keys() == expected.keys()
    torch.testing.assert_close(report.intervals, expected, **NEAR)
    torch.testing.assert_close(report.bands["roc"], F.roc_band(release, confidence), **NEAR)
    torch.testing.assert_close(
        report.bands["precision_recall"], F.precision_recall_band(release, confidence), **NEAR
    )


def test_exact_counts_have_intervals_for_sampling(scored: tuple[Tensor, Tensor]) -> None:
    counts = release_of("exact binary", examples=500)
    report = evaluation_report(counts, confidence=0.9, population=True)
    torch.testing.assert_close(
        report.intervals["auroc"], F.auroc_interval(counts, 0.9, True), **NEAR
    )
    assert report.intervals["auroc"].low < report.auroc < report.intervals["auroc"].high
    assert "(" in str(report)


def test_points_are_the_confusion_at_their_thresholds(
    release: Release, report: EvaluationReport
) -> None:
    for index, one in enumerate(document(report)["classes"]):
        points = one["points"]
        assert points["threshold"] == sorted(points["threshold"])
        for number in range(0, len(points["threshold"]), 17):
            threshold = points["threshold"][number]
            matrix = F.confusion_at(release, threshold).matrix.double().reshape(-1, 2, 2)[index]
            found = points["false_positives"][number], points["true_positives"][number]
            assert found == pytest.approx(
                (float(matrix[0, 1]), float(matrix[1, 1])), abs=1e-6, rel=1e-9
            )
        for name in ("youden_threshold", "best_f1_threshold"):
            assert one["numbers"][name]["value"] in points["threshold"]


def test_a_thinned_band_holds_the_band() -> None:
    release = release_of("exact binary")
    band = F.roc_band(release, population=True)
    report = evaluation_report(release, population=True)
    kept = document(report)["classes"][0]["bands"]["roc"]
    thin = F.Band(*(torch.tensor(kept[name], dtype=torch.float64) for name in ("x", "low", "high")))
    assert len(thin.x) < len(band.x) / 4
    assert bool(thin.contains(band.x, band.low).all())
    assert bool(thin.contains(band.x, band.high).all())
    assert float((thin.high - thin.low).mean()) < 1.5 * float((band.high - band.low).mean())


def test_one_versus_one_has_numbers_and_no_intervals() -> None:
    from torchmetrics_fed import CentralDP, FederatedROC

    metric = FederatedROC(
        task="multiclass", num_classes=3, multi_class="ovo", privacy=CentralDP(3.0), quantiles=64
    )
    generator = torch.Generator().manual_seed(1)
    metric.update(
        torch.rand(900, 3, generator=generator).softmax(-1),
        torch.randint(0, 3, (900,), generator=generator),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = evaluation_report(metric.release())
    assert not report.intervals
    assert document(report)["classes"][0]["numbers"].keys() == report.numbers.keys()
