"""The example app in Flower itself: the simulation, and a SuperLink with SuperNodes on loopback."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from torchmetrics_fed import PrivacyLedger

pytest.importorskip("ray")
pytestmark = pytest.mark.integration

RUN = Path(__file__).parents[2] / "examples" / "flower_app" / "run.py"


def run(**options: Any) -> dict[str, Any]:
    module = importlib.util.spec_from_file_location("run", RUN)
    assert module is not None
    assert module.loader is not None
    program = importlib.util.module_from_spec(module)
    module.loader.exec_module(program)
    found: dict[str, Any] = program.run(**options)
    return found


def test_a_simulated_federation_of_lightning_clients_has_the_pooled_curve_to_the_bit(tmp_path: Path) -> None:
    found = run(deployment=False, out=tmp_path, trainer="lightning")
    assert found["equal"]
    assert found["federated"] == found["pooled"]
    assert abs(found["averaged"] - found["pooled"]) > 0.01
    assert (found["shares"], found["curves"]) == (8, 3)
    assert (tmp_path / "flower_app.png").stat().st_size > 10_000


def test_an_evaluation_only_federation_with_noise_talks_twice_and_books_epsilon_once(tmp_path: Path) -> None:
    found = run(deployment=False, out=tmp_path, epsilon=1.0, plan="adaptive", rounds=1, train=False)
    assert found["shares"] == 8
    assert found["leaves"] < 4096
    assert abs(found["federated"] - found["pooled"]) < 0.02
    for hospital in range(8):
        assert PrivacyLedger(path=str(tmp_path / f"ledger-{hospital}.sqlite")).spent().epsilon == 1.0


def test_a_deployment_sums_those_who_are_left_when_a_client_fails_amid_the_round(tmp_path: Path) -> None:
    found = run(deployment=True, out=tmp_path, hospitals=4, rounds=1, failing=2, timeout=90)
    assert found["equal"]
    assert found["federated"] == found["pooled"]
    assert found["shares"] == 3
    assert "has dropped out of the aggregation" in (tmp_path / "run.log").read_text()
