"""The document of a report: plain numbers for programs, in every form that JSON can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.grids import even
from tests.report.conftest import release_of
from torchmetrics_fed import (
    CentralDP,
    EvaluationReport,
    FederatedROC,
    Release,
    evaluation_report,
)
from torchmetrics_fed import functional as F
from torchmetrics_fed.paper import Quantiles
from torchmetrics_fed.report.document import document


def test_an_absent_class_is_in_json_as_well() -> None:
    counts = torch.zeros(2, 2, 8, dtype=torch.long)
    counts[0, 0, :4] = 3
    counts[0, 1, 4:] = 5
    counts[1, 0] = 4
    with pytest.warns(UserWarning, match="No positive"):
        report = evaluation_report(even(counts), labels=["a", "b|c"])
    present, absent = json.loads(json.dumps(document(report), allow_nan=False))["classes"]
    assert present["name"] == "a"
    assert present["numbers"]["auroc"]["value"] == 1.0
    assert absent["name"] == "b|c"
    assert absent["numbers"]["positives"]["value"] == 0.0


def test_scores_that_are_no_probabilities_have_no_calibration() -> None:
    counts = torch.tensor([[3, 1, 0, 0], [1, 3, 2, 0]])
    edges = torch.tensor([-4.0, -1.0, 0.0, 2.0, 4.0], dtype=torch.float64)
    (content,) = document(evaluation_report(counts, edges, Quantiles(8)))["classes"]
    assert content["calibration"] is None
    assert content["net_benefit"] is None


def test_json_holds_no_counts_of_single_leaves() -> None:
    """The release has them, and gives the report again."""
    assert "counts" not in document(evaluation_report(release_of("private binary")))


def test_every_field_is_documented() -> None:
    fields = document(evaluation_report(release_of("private multiclass")))
    content = fields["classes"][0]
    objects = [
        fields,
        fields["statement"],
        content,
        content["points"],
        content["histogram"],
        content["calibration"],
        content["net_benefit"],
        content["cumulative_gains"],
        content["numbers"],
        content["numbers"]["auroc"],
        content["bands"]["roc"],
    ]
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    for names in objects:
        for name in names:
            assert f"`{name}`" in page


def test_points_are_the_confusion_at_their_thresholds(
    release: Release, report: EvaluationReport
) -> None:
    for index, content in enumerate(document(report)["classes"]):
        points = content["points"]
        assert points["threshold"] == sorted(points["threshold"])
        for number in range(0, len(points["threshold"]), 17):
            confusion = F.confusion_at(release, points["threshold"][number])
            matrix = confusion.matrix.double().reshape(-1, 2, 2)[index]
            fp = points["false_positives"][number]
            tp = points["true_positives"][number]
            assert fp == pytest.approx(float(matrix[0, 1]), abs=1e-6, rel=1e-9)
            assert tp == pytest.approx(float(matrix[1, 1]), abs=1e-6, rel=1e-9)
        for name in ("youden_threshold", "best_f1_threshold"):
            assert content["numbers"][name]["value"] in points["threshold"]


def test_a_thinned_band_holds_the_band() -> None:
    metric = FederatedROC(privacy=CentralDP(1.0), plan="single")
    metric.update(torch.rand(5_000), torch.arange(5_000) % 2)
    release = metric.release()
    band = F.roc_band(release, of="examples")
    report = evaluation_report(release, of="examples")
    content = document(report)["classes"][0]["bands"]["roc"]
    thinned = F.Band(
        x=torch.tensor(content["x"], dtype=torch.float64),
        low=torch.tensor(content["low"], dtype=torch.float64),
        high=torch.tensor(content["high"], dtype=torch.float64),
    )
    assert len(thinned.x) < len(band.x) / 4
    assert bool(thinned.contains(band.x, band.low).all())
    assert bool(thinned.contains(band.x, band.high).all())
    assert float((thinned.high - thinned.low).mean()) < 1.5 * float((band.high - band.low).mean())
