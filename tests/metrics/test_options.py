"""A type checker finds mistakes in the arguments of every metric, because none hides in
``**kwargs: Any``."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchmetrics_fed import FederatedMetric
from torchmetrics_fed.metrics.options import MetricOptions, TorchmetricsOptions

ROOT = Path(__file__).parents[2]

MISTAKES = """\
from torchmetrics_fed import (
    FederatedAUROC,
    FederatedAveragePrecision,
    FederatedCalibration,
    FederatedModelComparison,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    federated_collection,
)

FederatedAUROC(quantile=64)  # a misspelt name
FederatedAUROC("binary", grid="uneven")  # no such grid
FederatedAveragePrecision(privacy=1.0)  # a number for a setting
FederatedPrecisionRecallCurve("binry")  # no such task
FederatedCalibration(bins="15")  # a text for a number
FederatedROC(plan="two")  # no such plan
federated_collection(num_clases=3)  # a misspelt name
federated_collection(privacy="LocalDP")  # a text for a setting
FederatedModelComparison(task="binary")  # an argument of other metrics
"""

CORRECT = """\
from torchmetrics_fed import FederatedAUROC, LocalDP, federated_collection

FederatedAUROC("multiclass", num_classes=3, privacy=LocalDP(1.0), confidence=None, data="a")
federated_collection("binary", metrics=["roc"], privacy=LocalDP(1.0), sync_on_compute=True)
"""


def errors(source: str, path: Path) -> dict[int, str]:
    """By line, what mypy says."""
    path.write_text(source)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports=silent"]
    run = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )
    messages = re.findall(rf"{re.escape(path.name)}:(\d+): error: (.*)", run.stdout)
    return {int(line): text for line, text in messages}


@pytest.mark.slow
def test_nine_of_nine_mistakes_are_found(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if "#" in line]
    assert len(lines) == 9
    assert sorted(errors(MISTAKES, tmp_path / "mistakes.py")) == lines
    assert errors(CORRECT, tmp_path / "correct.py") == {}


def test_the_options_are_the_constructors_arguments() -> None:
    parameters = inspect.signature(FederatedMetric.__init__).parameters
    options = MetricOptions.__optional_keys__ - TorchmetricsOptions.__optional_keys__
    assert options == set(parameters) - {"self", "task", "kwargs"}
