"""A report with groups: each group has the numbers of its own release, in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    EvaluationReport,
    FederatedROC,
    Privacy,
    Release,
    evaluation_report,
)
from torchmetrics_fed import functional as F


def release_of_groups(privacy: Privacy | None) -> Release:
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(0, 2, (6_000,), generator=generator)
    target = torch.randint(0, 2, (6_000,), generator=generator)
    logits = torch.randn(6_000, generator=generator) + target * (1 + groups)
    metric = FederatedROC(groups=("north", "south"), privacy=privacy, quantiles=64)
    metric.update(logits.sigmoid(), target, groups)
    return metric.release()


def saved(report: EvaluationReport, path: Path) -> str:
    """The text of a report's file."""
    report.save(path)
    return path.read_text()


@pytest.fixture(params=[None, CentralDP(3.0)], ids=str)
def release(request: pytest.FixtureRequest) -> Release:
    return release_of_groups(request.param)


def test_groups_and_gaps_are_those_of_their_functions(release: Release) -> None:
    report = evaluation_report(release)
    assert torch.equal(report.auroc, F.auroc_from_counts(release))
    for name, part in release.by_group.items():
        auroc = F.auroc_from_counts(part)
        assert torch.equal(report.groups[name].auroc, auroc)
        assert f"{float(auroc):.4f}" in str(report)
    assert report.gaps is not None
    for name, value in F.group_gaps(release).scalars.items():
        assert torch.equal(report.gaps.scalars[name], value)
    assert report.statement is not None
    assert "each with histograms of its own" in str(report.statement)


def test_groups_are_in_json_and_in_markdown(release: Release, tmp_path: Path) -> None:
    report = evaluation_report(release)
    fields = json.loads(saved(report, tmp_path / "report.json"))
    assert list(fields["groups"]) == ["north", "south"]
    assert report.gaps is not None
    largest = fields["gaps"]["largest"]["tpr"]["high"]
    assert largest == float(report.gaps.equal_opportunity.high)
    assert fields["gaps"]["withheld"] == {}
    assert "equalized odds" in saved(report, tmp_path / "report.md")


def test_a_page_shows_groups_beside_everybody(release: Release, tmp_path: Path) -> None:
    report = evaluation_report(release)
    page = saved(report, tmp_path / "report.html")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    aurocs = {content["name"]: content["numbers"]["auroc"]["value"] for content in data["classes"]}
    assert aurocs == {
        "everybody": float(report.auroc),
        "north": float(report.groups["north"].auroc),
        "south": float(report.groups["south"].auroc),
    }


def test_classes_of_groups_have_both_names(tmp_path: Path) -> None:
    metric = FederatedROC("multiclass", num_classes=3, groups=2, quantiles=64)
    target = torch.arange(600) % 3
    groups = torch.arange(600) % 2
    logits = torch.randn(600, 3) + 2 * torch.nn.functional.one_hot(target, 3)
    metric.update(logits.softmax(1), target, groups)
    report = evaluation_report(metric.release(), labels=["a", "b", "c"])
    assert '"name":"1, c"' in saved(report, tmp_path / "report.html")


@pytest.mark.filterwarnings("ignore:Gaps of", "ignore:The largest difference")
def test_a_report_names_the_group_that_leaves_the_largest_gap_unknown(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (6_000,), generator=generator)
    groups = torch.arange(6_000) % 2
    groups[:20] = 2  # the isle is too small
    logits = torch.randn(6_000, generator=generator) + target * (1 + groups)
    metric = FederatedROC(
        groups=("north", "south", "isle"),
        privacy=CentralDP(1.0),
        quantiles=64,
    )
    metric.update(logits.sigmoid(), target, groups)
    report = evaluation_report(metric.release())
    assert report.gaps is not None
    low = float(report.gaps.equal_opportunity.low)
    assert f"unknown, at least {low:.4f} (withheld: isle)" in str(report)
    assert "(withheld: isle)" in saved(report, tmp_path / "report.md")
    gaps = json.loads(saved(report, tmp_path / "report.json"))["gaps"]
    assert gaps["withheld"]["tpr"] == ["isle"]
    assert gaps["largest"]["tpr"] == {"value": None, "low": low, "high": 1.0}
