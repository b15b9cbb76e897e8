"""A real Trainer, in one process and with strategy="ddp" in two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.integrations.lightning import training_program
from tests.integrations.lightning_scores import QUIET
from torchmetrics_fed.functional import roc

pytestmark = QUIET


def check_curve(record: dict[str, Any]) -> None:
    """Check that a rank's curve is the curve of all examples under that epoch's model."""
    layer = torch.nn.Linear(4, 1)
    layer.load_state_dict(record["layer"])
    features, target = training_program.dataset().tensors
    with torch.no_grad():
        expected = roc(layer(features)[:, 0], target, normalization="sigmoid")
    for actual_part, expected_part in zip(record["curve"], expected, strict=True):
        assert torch.allclose(actual_part, expected_part, rtol=0, atol=1e-12)


def test_one_process(tmp_path: Path) -> None:
    trainer = training_program.run(tmp_path, devices=1)
    for epoch in (0, 1):
        record = torch.load(tmp_path / f"epoch{epoch}_rank0.pt")
        assert record["local"] == training_program.EXAMPLES
        check_curve(record)
    assert trainer.callback_metrics["auroc"] > 0.8


def test_two_processes(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, training_program.__file__, str(tmp_path), "2"]
    subprocess.run(
        command,
        env=environment,
        check=True,
        timeout=120,
        capture_output=True,
    )
    for epoch in (0, 1):
        first = torch.load(tmp_path / f"epoch{epoch}_rank0.pt")
        second = torch.load(tmp_path / f"epoch{epoch}_rank1.pt")
        assert all(map(torch.equal, first["curve"], second["curve"]))
        assert first["local"] == 501
        assert second["local"] == 500
        check_curve(first)
