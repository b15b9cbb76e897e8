"""Each example runs as its reader would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, figure: Path) -> str:
    """Run an example, check that it writes a figure and prints its path, and return its output."""
    command = [sys.executable, str(EXAMPLES / name), "--out", str(figure)]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=180
    )
    assert str(figure) in process.stdout
    assert figure.stat().st_size > 20_000
    return process.stdout


def number(output: str, name: str) -> float:
    """Return the number that is printed after a name."""
    match = re.search(f"^{name} +([0-9.]+)", output, flags=re.MULTILINE)
    assert match, output
    return float(match[1])


@pytest.mark.slow
def test_demo_shows_that_the_federated_curve_is_the_pooled_one(tmp_path: Path) -> None:
    output = run("demo.py", tmp_path / "demo.png")
    pooled = number(output, "pooled exact AUROC")
    assert number(output, "federated AUROC") == pytest.approx(pooled, abs=2e-4)
    assert abs(number(output, "mean of local AUROCs") - pooled) > 0.1


@pytest.mark.slow
def test_simulated_clients_have_the_pooled_curve(tmp_path: Path) -> None:
    output = run("simulate_clients.py", tmp_path / "simulated.png")
    pooled = number(output, "pooled AUROC")
    assert "identical True" in output  # to the bit
    assert number(output, "federated AUROC") == pooled
    assert abs(number(output, "mean of local AUROCs") - pooled) > 0.03
    private = number(output, "federated, epsilon 0.3")
    assert private == pytest.approx(pooled, abs=0.03)  # eight standard deviations
    assert "1 release" in output


@pytest.mark.audit
def test_ranks_of_a_trainer_have_the_pooled_curve(tmp_path: Path) -> None:
    output = run("lightning_ddp.py", tmp_path / "ddp.png")
    pooled = number(output, "pooled AUROC")
    assert "identical True" in output  # to the bit
    assert "on 2 ranks" in output
    assert number(output, "federated AUROC") == pooled
    assert abs(number(output, "mean of the ranks' AUROCs") - pooled) > 0.03


@pytest.mark.audit
def test_hospitals_that_share_a_folder_have_nearly_the_pooled_curve(tmp_path: Path) -> None:
    output = run("shared_folder.py", tmp_path / "folder.png")
    pooled = number(output, "pooled AUROC")
    assert "released, with ann, ben, cem" in output
    assert number(output, "ann's ledger") == 1.0  # one release, two queries
    assert number(output, "federated, epsilon 1") == pytest.approx(pooled, abs=0.02)
    assert abs(number(output, "mean of local AUROCs") - pooled) > 0.03


def test_the_table_of_examples_lists_all_of_them() -> None:
    table = (EXAMPLES / "README.md").read_text()
    linked = re.findall(r"^\| \[([\w.]+)\]\(\1\)", table, flags=re.MULTILINE)
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert sorted(linked) == sorted(names)
    for command in re.findall(r"`python (examples/[\w./]+)", table):
        assert (EXAMPLES.parent / command).is_file()


@pytest.mark.slow
def test_a_transport_over_http_survives_restarts_and_a_late_reply(tmp_path: Path) -> None:
    """Private, with two queries and secure aggregation."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "rest_transport.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its server and sites, too
    assert process.returncode == 0, output
    assert "dia: the reply came too late" in output
    assert re.search(r"shares of the queries: \[4, [34]\]", output)
    pooled = number(output, "pooled AUROC")
    assert number(output, "federated AUROC") == pytest.approx(pooled, abs=0.03)
    assert output.count("Spent(epsilon=1.0") == 4
