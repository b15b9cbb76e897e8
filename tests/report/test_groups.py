"""A report of a release with groups: each group's numbers are those of its own release, in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchmetrics_fed import (
    CentralDP,
    FederatedROC,
    Privacy,
    Release,
    evaluation_report,
)
from torchmetrics_fed.functional import auroc_from_counts, group_gaps


def released(privacy: Privacy | None) -> Release:
    generator = torch.Generator().manual_seed(0)
    groups, target = (torch.randint(0, 2, (6_000,), generator=generator) for _ in range(2))
    metric = FederatedROC(groups=("north", "south"), privacy=privacy, quantiles=64)
    metric.update(
        (torch.randn(6_000, generator=generator) + target * (1 + groups)).sigmoid(), target, groups
    )
    return metric.release()


@pytest.mark.parametrize("privacy", [None, CentralDP(3.0)], ids=str)
def test_groups_are_in_text_json_and_page(privacy: Privacy | None, tmp_path: Path) -> None:
    release = released(privacy)
    report = evaluation_report(release)
    gaps = group_gaps(release)
    assert report.gaps is not None
    for name, value in gaps.scalars.items():
        assert torch.equal(report.gaps.scalars[name], value)
    for name, part in release.by_group.items():
        assert torch.equal(report.groups[name].auroc, auroc_from_counts(part))
        assert f"{float(auroc_from_counts(part)):.4f}" in str(report)
    assert torch.equal(report.auroc, auroc_from_counts(release))
    for suffix in ("json", "md", "html"):
        report.save(tmp_path / f"report.{suffix}")
    read = json.loads((tmp_path / "report.json").read_text())
    assert list(read["groups"]) == ["north", "south"]
    assert read["gaps"]["largest"]["tpr"]["high"] == float(report.gaps.equal_opportunity.high)
    assert read["gaps"]["withheld"] == {}
    page = (tmp_path / "report.html").read_text()
    shown = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [one["name"] for one in shown["classes"]] == ["everybody", "north", "south"]
    values = [one["numbers"]["auroc"]["value"] for one in shown["classes"]]
    assert values == [float(each.auroc) for each in (report, *report.groups.values())]
    assert "equalized odds" in (tmp_path / "report.md").read_text()
    assert report.statement is not None
    assert "each with histograms of its own" in str(report.statement)


def test_classes_of_groups_have_both_names(tmp_path: Path) -> None:
    metric = FederatedROC("multiclass", num_classes=3, groups=2, quantiles=64)
    target, groups = torch.arange(600) % 3, torch.arange(600) % 2
    metric.update(
        (torch.randn(600, 3) + 2 * torch.nn.functional.one_hot(target, 3)).softmax(1),
        target,
        groups,
    )
    report = evaluation_report(metric.release(), labels=["a", "b", "c"])
    report.save(tmp_path / "report.html")
    assert '"name":"1, c"' in (tmp_path / "report.html").read_text()


@pytest.mark.filterwarnings("ignore:Gaps of", "ignore:The largest difference")
def test_a_report_says_which_group_leaves_the_largest_gap_unknown(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, 2, (6_000,), generator=generator)
    groups = (torch.arange(6_000) % 2).where(torch.arange(6_000) >= 20, 2)
    scores = (torch.randn(6_000, generator=generator) + target * (1 + groups)).sigmoid()
    metric = FederatedROC(groups=("north", "south", "isle"), privacy=CentralDP(1.0), quantiles=64)
    metric.update(scores, target, groups)
    report = evaluation_report(metric.release())
    assert report.gaps is not None
    low = float(report.gaps.equal_opportunity.low)
    assert f"unknown, at least {low:.4f} (withheld: isle)" in str(report)
    for suffix in ("json", "md", "html"):
        report.save(tmp_path / f"report.{suffix}")
    assert "(withheld: isle)" in (tmp_path / "report.md").read_text()
    gaps = json.loads((tmp_path / "report.json").read_text())["gaps"]
    assert gaps["withheld"]["tpr"] == ["isle"]
    assert gaps["largest"]["tpr"] == {"value": None, "low": low, "high": 1.0}
