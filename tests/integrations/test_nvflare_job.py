"""The example job in NVFlare's simulator: what it leaves is judged, not its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchmetrics_fed import Release

pytest.importorskip("nvflare")

EXAMPLE = Path(__file__).parents[2] / "examples/nvflare_job"

pytestmark = pytest.mark.integration


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE / "job.py"), "--out", str(folder), "--workspace", str(folder / "flare")]
    return subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=400)


def result(folder: Path, *options: str) -> dict[str, Any]:
    said = run(folder, *options)
    marker = folder / "result.json"
    assert marker.exists(), said.stdout[-4000:] + said.stderr[-4000:]
    found: dict[str, Any] = json.loads(marker.read_text())
    return found


@pytest.mark.parametrize("clients", [[], ["--lightning"]], ids=["torch", "lightning"])
def test_the_federated_curve_is_the_pooled_one(clients: list[str], tmp_path: Path) -> None:
    found = result(tmp_path, "--rounds", "2", *clients)
    assert found["federated"] == found["pooled"]
    assert abs(found["mean_local"] - found["pooled"]) > 0.03
    assert found["shares"] == 4
    assert found["name"] == "simulate_job/round-1"
    assert (tmp_path / "curves.png").stat().st_size > 20_000
    server = tmp_path / "flare/curves/server/simulate_job"
    releases = {path.stem: Release.load(path) for path in (server / "torchmetrics_fed").glob("*.release")}
    assert {name: release.round for name, release in releases.items()} == {
        f"round-000{number}": f"simulate_job/round-{number}" for number in (0, 1)
    }
    check_best_model(server, found)


def check_best_model(server: Path, found: dict[str, Any]) -> None:
    """The model saved as the best is the one whose curve was: that of the last round, as it was sent out."""
    assert found["rounds"]["1"] > found["rounds"]["0"]
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
    torch.save([torch.as_tensor(best[f"layer.{name}"]) for name in ("weight", "bias")], saved)
    command = [sys.executable, "-c", code, str(saved)]
    said = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=True, timeout=120).stdout
    assert float(said) == pytest.approx(found["rounds"]["1"], abs=1e-4)  # batches may round a score into the next bin


def test_with_noise_it_is_near(tmp_path: Path) -> None:
    found = result(tmp_path, "--rounds", "2", "--privacy", "trusted")
    assert found["federated"] != found["pooled"]
    assert found["federated"] == pytest.approx(found["pooled"], abs=0.05)
    assert sorted(found["rounds"]) == ["0", "1"]


def test_shares_that_must_stay_hidden_start_no_job(tmp_path: Path) -> None:
    said = run(tmp_path, "--privacy", "hidden")
    assert "NVFlare hands it each client's payload" in said.stderr
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "flare").exists()
