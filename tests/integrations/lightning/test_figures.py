"""Metrics with a confidence in the callback: figures have bands, and scalars are always logged."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integrations.lightning import figures_program
from tests.integrations.lightning.figures_program import Evaluated, Figures, validated
from tests.integrations.lightning_scores import QUIET
from torchmetrics_fed import FederatedModelComparison
from torchmetrics_fed.functional import ROCCurve

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:About", "ignore:Too few")]

SCALARS = {
    "val_auroc",
    "val_roc_auroc",
    "val_average_precision",
    "val_precision_recall_curve_average_precision",
}
SCALARS |= {f"val_{name}" for name in FederatedModelComparison.definition.scalars}
RELEASES = 2
"""One release of the collection, and one of the comparison."""
FIGURES = {"val_roc", "val_precision_recall_curve", "val_comparison"}


def logged(folder: Path) -> set[str]:
    """Return the scalars of the only row that the CSV logger has written."""
    with (folder / "csv" / "version_0" / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    return {name for name, value in row.items() if value and name.startswith("val_")}


@pytest.mark.parametrize("private", [False, True], ids=["exact", "private"])
def test_curves_areas_and_comparisons_are_logged_and_drawn(private: bool, tmp_path: Path) -> None:
    module = Evaluated(private)
    figures = Figures()
    trainer = validated(tmp_path, module, figures)
    assert set(trainer.callback_metrics) >= SCALARS
    assert logged(tmp_path) >= SCALARS
    releases = 0
    origin = "exact"
    if private:
        releases = RELEASES
        origin = "epsilon = 5"
    assert len(module.ledger) == releases
    assert set(figures.captions) == FIGURES
    for name, caption in figures.captions.items():
        assert origin in caption
        assert ("90% band" in caption) == (name != "val_comparison")  # which has an interval


def test_tensorboard_has_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLogger(tmp_path, name="board", version="0")
    validated(tmp_path, Evaluated(private=True), board)
    board.finalize("success")
    path = str(tmp_path / "board" / "0")
    events = EventAccumulator(path, {"scalars": 0, "images": 0}).Reload()
    assert set(events.Tags()["images"]) == FIGURES
    assert set(events.Tags()["scalars"]) >= SCALARS


def test_a_figure_that_fails_costs_no_scalar(tmp_path: Path) -> None:
    module = Evaluated(private=True)
    with pytest.warns(UserWarning, match="was not logged: OSError: the disk is full"):
        trainer = validated(tmp_path, module, Figures(fails=True))
    assert set(trainer.callback_metrics) >= SCALARS
    assert logged(tmp_path) >= SCALARS
    assert len(module.ledger) == RELEASES
    # the metrics are reset all the same
    assert not any(metric.update_called for metric in module.curves.values())


def test_loggers_without_figures_have_none_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ROCCurve, "plot", None)  # a call would be a warning, which fails the test
    trainer = validated(tmp_path, Evaluated(private=True))
    assert set(trainer.callback_metrics) >= SCALARS


def test_two_ranks_log_one_release_and_rank_zero_draws(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, figures_program.__file__, str(tmp_path), "2"]
    subprocess.run(
        command,
        env=environment,
        check=True,
        timeout=120,
        capture_output=True,
    )
    first = torch.load(tmp_path / "rank0.pt")
    second = torch.load(tmp_path / "rank1.pt")
    assert set(first["metrics"]) >= SCALARS
    assert logged(tmp_path) >= SCALARS
    assert first["releases"] == RELEASES
    assert second["releases"] == RELEASES
    assert set(first["captions"]) == FIGURES
    assert second["captions"] == {}
