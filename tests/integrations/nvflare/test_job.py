"""The example job in NVFlare's simulator: what it leaves is judged, not its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import PrivacyLedger, Release

pytest.importorskip("nvflare")

EXAMPLE = Path(__file__).parents[3] / "examples/nvflare_job"

pytestmark = pytest.mark.integration


def run(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join(
        [str(EXAMPLE), str(EXAMPLE.parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": places, **variables}
    command = [
        sys.executable,
        str(EXAMPLE / "job.py"),
        "--out",
        str(folder),
        "--workspace",
        str(folder / "flare"),
    ]
    return subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=400
    )


def result(folder: Path, *options: str, **variables: str) -> dict[str, Any]:
    process = run(folder, *options, **variables)
    marker = folder / "result.json"
    assert marker.exists(), process.stdout[-4000:] + process.stderr[-4000:]
    summary: dict[str, Any] = json.loads(marker.read_text())
    return summary | {"log": process.stdout + process.stderr}


def releases(folder: Path) -> dict[str, Release]:
    paths = sorted(folder.rglob("torchmetrics_fed/*.release"))
    return {path.stem: Release.load(path) for path in paths}


@pytest.mark.parametrize(
    "options",
    [[], ["--client", "lightning_client.py", "--privacy", "secure"]],
    ids=["torch", "lightning, secure"],
)
def test_the_federated_curve_is_the_pooled_one(options: list[str], tmp_path: Path) -> None:
    summary = result(tmp_path, "--rounds", "2", *options)
    assert summary["federated"] == summary["pooled"]
    assert abs(summary["mean_local"] - summary["pooled"]) > 0.03
    assert summary["shares"] == 4
    assert (tmp_path / "curves.png").stat().st_size > 20_000
    assert str(tmp_path / "curves.png") in summary["log"]
    server = tmp_path / "flare/curves/server/simulate_job"
    curves = releases(server)
    assert list(curves) == ["round-0000", "round-0001"]
    for number, release in enumerate(curves.values()):
        assert release.round.startswith(f"simulate_job/round-{number}")
    assert ("query 1, unmask: 4 of 4 answered in " in summary["log"]) == bool(options)
    check_best_model(server, summary)


def ledgers(folder: Path) -> dict[str, list[str]]:
    """The rounds that each site was charged for."""
    return {
        path.stem: [entry.round for entry in PrivacyLedger(path=path)]
        for path in sorted(folder.glob("*.sqlite"))
    }


def private(folder: Path) -> list[str]:
    """The options of a job with distributed noise, whose sites keep their ledgers in a folder."""
    return ["--privacy", "distributed", "--ledgers", str(folder)]


def check_private(summary: dict[str, Any], release: Release, sites: int) -> None:
    """A release of two queries, near the pooled curve."""
    assert len(release.queries) == 2
    assert release.shares == sites
    assert summary["federated"] != summary["pooled"]
    assert summary["federated"] == pytest.approx(summary["pooled"], abs=0.05)


def test_private_jobs_of_one_name_are_charged_one_by_one(tmp_path: Path) -> None:
    options = ["--rounds", "2", *private(tmp_path / "ledgers")]
    for job in ("first", "second"):
        summary = result(tmp_path / job, *options)
        check_private(summary, releases(tmp_path / job)["round-0001"], 4)
    charged = ledgers(tmp_path / "ledgers")
    assert list(charged) == ["site-1", "site-2", "site-3", "site-4"]
    rounds = charged["site-1"]
    assert all(mine == rounds for mine in charged.values())
    assert len(set(rounds)) == 4
    assert summary["spent"] == [4.0] * 4  # of the budget of 5, over both jobs


@pytest.mark.parametrize("stage", ["mask", "unmask"])
def test_a_site_that_dies_is_named_and_the_others_open_the_sum(stage: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "nvflare_dying.py"
    options = ["--rounds", "1", *private(tmp_path / "ledgers"), "--timeout", "8"]
    options += ["--client", str(script)]
    summary = result(tmp_path, *options, TORCHMETRICS_FED_DIES=f"site-4:{stage}")
    check_private(summary, releases(tmp_path)["round-0000"], 3)
    assert re.search(
        rf"query 1, {stage}: .*(silent for [\d.]+ s|dropped out): site-4\.", summary["log"]
    )
    assert "query 2, unmask: 3 of 3 answered in " in summary["log"]
    # its noise was drawn, so it is charged; nobody is charged twice
    charged = ledgers(tmp_path / "ledgers")
    assert {site: len(rounds) for site, rounds in charged.items()} == dict.fromkeys(charged, 1)
    assert len(charged) == 4


def test_poc_mode_with_certificates(tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path), "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc")}
    options = ["--poc", "--rounds", "1", *private(tmp_path / "ledgers")]
    summary = result(tmp_path, *options, **variables)
    check_private(summary, releases(tmp_path / "poc")["round-0000"], 4)
    (name,) = set(map(tuple, ledgers(tmp_path / "ledgers").values()))
    assert "simulate_job" not in name[0]


def check_best_model(server: Path, summary: dict[str, Any]) -> None:
    """The best model is the model with the best curve: the model that the last round sent out."""
    assert summary["rounds"]["1"] > summary["rounds"]["0"]
    best = torch.load(server / "app_server/best_FL_global_model.pt", weights_only=False)["model"]
    code = (
        "import sys, torch, sites; from torchmetrics_fed import FederatedAUROC\n"
        "weight, bias = torch.load(sys.argv[1])\n"
        "metric = FederatedAUROC(normalization='sigmoid')\n"
        "for site in sites.SITES:\n"
        "    _, _, unseen, truth = sites.data(site)\n"
        "    metric.update((unseen @ weight.T + bias)[:, 0], truth)\n"
        "print(float(metric.compute()))\n"
    )
    saved = server / "best.pt"
    layer = [torch.as_tensor(best[f"layer.{name}"]) for name in ("weight", "bias")]
    torch.save(layer, saved)
    command = [sys.executable, "-c", code, str(saved)]
    printed = subprocess.run(
        command, cwd=EXAMPLE, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    # batches may round a score into the next bin
    assert float(printed) == pytest.approx(summary["rounds"]["1"], abs=1e-4)
