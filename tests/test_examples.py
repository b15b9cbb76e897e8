"""Each example runs as its reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_demo_shows_that_the_federated_curve_is_the_pooled_one(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--out", str(picture)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    mean, federated, pooled = (
        float(re.search(f"{name} +([0-9.]+)", said)[1])  # type: ignore[index]
        for name in ("mean of local AUROCs", "federated AUROC", "pooled exact AUROC")
    )
    assert federated == pytest.approx(pooled, abs=2e-4)
    assert abs(mean - pooled) > 0.1
    assert str(picture) in said
    assert picture.stat().st_size > 20_000
