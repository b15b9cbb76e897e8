"""The example app in Flower itself: the simulation, and a SuperLink with SuperNodes on loopback."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from torchmetrics_fed import FederatedAUROC, PrivacyLedger, Release
from torchmetrics_fed.exchange.node import _Note

pytest.importorskip("ray")
pytestmark = pytest.mark.integration

RUN = Path(__file__).parents[3] / "examples" / "flower_app" / "run.py"
KILLED = 1
STALLED = 3


def run(**options: Any) -> dict[str, Any]:
    module = importlib.util.spec_from_file_location("run", RUN)
    assert module is not None
    assert module.loader is not None
    program = importlib.util.module_from_spec(module)
    module.loader.exec_module(program)
    summary: dict[str, Any] = program.run(**options)
    return summary


def spent(out: Path, client: int) -> tuple[int, float]:
    ledger = PrivacyLedger(path=out / "home" / "torchmetrics-fed" / str(client) / "ledger")
    return len(ledger), ledger.spent().epsilon


def test_a_simulated_federation_of_lightning_clients_has_the_curve_of_those_who_do_not_fail_to_the_bit(
    tmp_path: Path,
) -> None:
    rounds = {"num-server-rounds": 2}
    summary = run(
        deployment=False,
        out=tmp_path,
        clients=5,
        trainer="lightning",
        failing=2,
        absent="2",
        **rounds,
    )
    assert summary["equal"]
    assert summary["federated"] == summary["pooled"]
    assert abs(summary["averaged"] - summary["pooled"]) > 0.01
    assert (summary["shares"], summary["curves"]) == (4, 2)
    assert (tmp_path / "flower_app.png").stat().st_size > 10_000
    log = (tmp_path / "run.log").read_text()
    assert re.search(
        r"query 1, (?:mask|share): dropped out: \d+\. .*This client's disk is broken today\.", log
    )


def test_an_evaluation_only_federation_with_noise_talks_twice_and_charges_epsilon_once(
    tmp_path: Path,
) -> None:
    once = {"num-server-rounds": 1, "fraction-train": 0.0}
    summary = run(deployment=False, out=tmp_path, epsilon=4.0, **once)
    assert (summary["shares"], summary["queries"]) == (8, 2)
    assert abs(summary["federated"] - summary["pooled"]) < 0.02
    assert abs(summary["averaged"] - summary["pooled"]) > 0.05
    assert [spent(tmp_path, client) for client in range(8)] == [(1, 4.0)] * 8


def test_a_run_after_the_budget_is_spent_still_saves_the_model(tmp_path: Path) -> None:
    """The second of two runs on the same nodes has no curves, says why, and loses nothing else."""
    options: dict[str, Any] = {"clients": 3, "epsilon": 4.0, "budget": 4.0, "num-server-rounds": 1}
    model = tmp_path / "final_model.pt"
    first = run(deployment=False, out=tmp_path, **options)
    assert first["curves"] == 1
    assert model.stat().st_size > 10_000
    model.unlink()
    second = run(deployment=False, out=tmp_path, keep_ledgers=True, **options)
    assert second == {"curves": 0}
    assert model.stat().st_size > 10_000
    log = (tmp_path / "run.log").read_text()
    assert re.search(r"dropped out: .* is left", log)
    assert [spent(tmp_path, client) for client in range(3)] == [(1, 4.0)] * 3


def once(true: Callable[[], bool], seconds: float = 300) -> None:
    """Return as soon as something is so."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def test_a_private_deployment_goes_on_without_a_killed_and_a_stalled_node(tmp_path: Path) -> None:
    """SIGKILL when a node is charged for query 1, SIGSTOP when a node has begun query 2."""

    def notes_of(client: int) -> list[bytes]:
        """A node's notes; a note is empty while the node draws."""
        path = tmp_path / "home" / "torchmetrics-fed" / str(client) / "notes"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as tables:
            return [content for (content,) in tables.execute("SELECT content FROM notes")]

    def has_begun_second_query(client: int) -> bool:
        contents = [content for content in notes_of(client) if content]
        return any(len(_Note.from_bytes(content).begun_aggregations) == 2 for content in contents)

    def is_charged(client: int) -> bool:
        return bool(notes_of(client)) and spent(tmp_path, client)[0] == 1

    def strike(groups: dict[int, int]) -> None:
        once(lambda: is_charged(KILLED))
        os.killpg(groups[KILLED], signal.SIGKILL)
        once(lambda: has_begun_second_query(STALLED))
        os.killpg(groups[STALLED], signal.SIGSTOP)

    summary = run(
        deployment=True,
        out=tmp_path,
        clients=5,
        during=strike,
        epsilon=8.0,
        timeout=45,
        absent=f"{KILLED} {STALLED}",
        **{"num-server-rounds": 1, "fraction-train": 0.0},
    )
    assert (summary["shares"], summary["queries"]) == (3, 2)
    assert abs(summary["federated"] - summary["pooled"]) < 0.03
    release = Release.load(tmp_path / "last.release")
    assert float(FederatedAUROC.from_release(release).compute()) == pytest.approx(
        summary["federated"]
    )
    assert [spent(tmp_path, client) for client in range(5)] == [(1, 8.0)] * 5
    log = re.sub(r"\x1b\[\d+m", "", (tmp_path / "run.log").read_text())
    silent = re.findall(r"query (\d), (\w+): .*; silent for (\d+\.\d) s: ([\d, ]+)\.", log)
    gone = re.findall(r"query (\d), (\w+): dropped out: (\d+)\. Error: Node Unavailable", log)
    assert {query for query, *_ in [*silent, *gone]} == {"1", "2"}
    assert all(float(seconds) > 40 for _, _, seconds, _ in silent)
    nodes = {node for *_, names in silent for node in names.split(", ")} | {
        node for *_, node in gone
    }
    assert len(nodes) == 2
    assert "1" not in nodes  # which is the SuperLink
    assert re.search(r"query 2, mask: 3 of \d answered|query 2, unmask: 3 of 3 answered", log)
