"""The reproduction of the paper's experiments: its baseline, its bookkeeping, and a short run."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.reproduce import features as data_sets
from benchmarks.reproduce.cells import EXPERIMENTS, NO_NOISE, Cell, cells
from benchmarks.reproduce.errors import MEASURES
from benchmarks.reproduce.page import BEGIN, END, paste
from benchmarks.reproduce.range_query import noisy_ranges, range_curves
from benchmarks.reproduce.results import Means, Row, Runs
from benchmarks.reproduce.smoothing import Norm, smooth
from benchmarks.reproduce.trend import slopes
from benchmarks.reproduce.work import Portion, portions

ROOT = Path(__file__).parents[1]


def rough(size: int, seed: int) -> Any:
    """Return a rising sequence with noise."""
    generator = np.random.default_rng(seed)
    return np.linspace(0, 1, size) + generator.normal(0, 0.3, size)


@pytest.mark.parametrize("size", [2, 7, 30])
def test_l1_smoothing_is_as_near_as_the_linear_program_says(size: int) -> None:
    values = rough(size, size)
    unit = np.eye(size)
    descents = (np.eye(size) - np.eye(size, k=1))[:-1]
    constraints = np.block(
        [
            [unit, -unit],
            [-unit, -unit],
            [descents, np.zeros_like(descents)],
        ]
    )
    limits = np.concatenate([values, -values, np.zeros(size - 1)])
    cost = np.concatenate([np.zeros(size), np.ones(size)])
    bounds = [(0, 1)] * size + [(0, None)] * size
    program = linprog(cost, constraints, limits, bounds=bounds)
    assert abs(values - smooth(values, "l1")).sum() == pytest.approx(program.fun, abs=1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_monotone_sequence_is_nearer(norm: Norm) -> None:
    values = rough(20, 3)
    best = smooth(values, norm)
    assert (np.diff(best) >= 0).all()
    assert best.min() >= 0
    assert best.max() <= 1
    power = {"l1": 1, "l2": 2}[norm]
    least_distance = (abs(values - best) ** power).sum()
    generator = np.random.default_rng(0)
    for _ in range(200):
        candidate = np.sort((best + generator.normal(0, 0.02, 20)).clip(0, 1))
        assert least_distance <= (abs(values - candidate) ** power).sum() + 1e-12


def test_noise_of_ranges_has_the_variance_of_its_levels() -> None:
    """Five levels of Laplace noise, each of variance 2 (5 / epsilon)^2."""
    counts = np.zeros((2, 16), dtype=np.int64)
    draws = np.stack([noisy_ranges(counts, 2.0) for _ in range(3000)])
    assert draws.var() == pytest.approx(5 * 2 * (5 / 2.0) ** 2, rel=0.15)


def test_ranges_without_noise_are_the_curve_at_their_thresholds() -> None:
    counts = np.array([[5, 3, 1, 1], [1, 1, 3, 5]])
    roc = range_curves(noisy_ranges(counts, 1e12), "l2").roc
    assert roc is not None
    assert np.interp([0.1, 0.2, 0.5], roc.fpr, roc.tpr) == pytest.approx([0.5, 0.8, 0.9], abs=1e-9)


def test_slope_of_a_power_law_is_found() -> None:
    means = {}
    for ratio in ("0.01", "0.1"):
        for quantiles in (4, 16, 64):
            cell = Cell("adult", "LogisticRegression", ratio, "SA", NO_NOISE, quantiles, "pchip")
            error = 3 * quantiles**-0.7 * float(ratio) ** -0.7
            means[cell] = Means(np.full(len(MEASURES), error), np.zeros(len(MEASURES)), 1)
    for slope in slopes(means):
        for value, _ in (slope.joint, slope.quantiles, slope.ratio):
            assert value == pytest.approx(0.7)


def test_a_stopped_run_is_continued(tmp_path: Path) -> None:
    all_cells = list(cells(["adult"], EXPERIMENTS, [16]))
    path = tmp_path / "runs.csv"
    errors = (0.5,) * len(MEASURES)
    Runs(path).add([Row(all_cells[0], 0, errors)])
    with open(path, "a") as file:
        file.write("adult,XGBClassifier,,SA,in")  # the beginning of a row
    continued = Runs(path)
    assert continued.rows == {(all_cells[0], 0): errors}
    missing = readings_in(portions(all_cells, 2, continued.rows.keys()))
    assert missing == readings_in(portions(all_cells, 2, set())) - 1


def readings_in(work: list[Portion]) -> int:
    return sum(len(readings) for portion in work for readings in portion.draws.values())


def test_missing_data_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(**_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(data_sets, "fetch_openml", offline)
    with pytest.raises(
        data_sets.DataMissingError, match=r"bank-full\.csv\.gz in the folder that --data names"
    ):
        data_sets.features("bank", tmp_path)


def test_pasting_keeps_the_text_around_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    paste(page, "new\n")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="markers"):
        paste(page, "new")


@pytest.mark.audit
def test_quick_reproduction_agrees_with_the_published_code(
    shared_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "benchmarks.reproduce", "--quick"]
    command += ["--classifiers", "LogisticRegression", "--processes", "1"]
    command += ["--data", str(shared_folder / "data"), "--out", str(tmp_path)]
    output = run(command)
    assert "power of 1 / (Q r)" in output
    assert len(list((tmp_path / "figures").glob("*.png"))) == 10
    exact = []
    noisy = []
    with open(tmp_path / "anchors.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["setting"] == "SA":
                exact += [float(row["ratio_roc"]), float(row["ratio_pr"])]
            if row["method"] == "paper-independent-noise":
                noisy.append(float(row["ratio_roc"]))
    assert exact == pytest.approx([1.0] * 12, abs=0.005)
    assert 0.6 < np.exp(np.log(noisy).mean()) < 1.6
    before = (tmp_path / "runs.csv").read_text()
    run([*command, "--experiments", "epsilon"])
    assert (tmp_path / "runs.csv").read_text() == before


def run(command: list[str]) -> str:
    """Run a command from the root of the repository, and return its output."""
    process = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300
    )
    return process.stdout
