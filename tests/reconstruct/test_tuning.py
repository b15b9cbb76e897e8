"""Tuned constants: each names the benchmark that tunes it, is used, and can be varied by name."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.plans import Constant, constant_names
from tests.tuned_constants import check_benchmarks, check_read, constants_of
from torchmetrics_fed import CentralDP, Spec
from torchmetrics_fed.exchange.placement import pilot_query
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.uncertainty import tuning as uncertainty_tuning

SPEC = Spec.build("binary", privacy=CentralDP(1.0))


def test_every_constant_names_a_benchmark_that_exists() -> None:
    check_benchmarks(tuning)
    check_benchmarks(uncertainty_tuning)


def test_every_constant_is_read_at_the_time_of_a_call() -> None:
    check_read(tuning, ("reconstruct", "exchange"))
    check_read(uncertainty_tuning, ("reconstruct/uncertainty",))


def test_a_benchmark_varies_a_constant_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PILOT_LEAVES", tuning.PILOT_LEAVES)  # restored afterwards
    Constant.parsed("PILOT_LEAVES=32").set()
    assert pilot_query(SPEC).tree.leaves == 32


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("PILOT_LEAVES=32", 32),
        ("PILOT_FRACTION=5/64", 5 / 64),
        ("LEAVES_PER_ROOT=0.3", 0.3),
        ("SINGLE_WEIGHTS=(6, 1, 1)", (6, 1, 1)),
    ],
)
def test_a_value_has_the_type_of_its_constant(assignment: str, value: object) -> None:
    parsed = Constant.parsed(assignment).value
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "assignment", ["NONE=1", "ast=1", "PILOT_LEAVES", "PILOT_LEAVES=1.5", "SINGLE_WEIGHTS=4"]
)
def test_other_names_and_values_are_refused(assignment: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        Constant.parsed(assignment)


def test_all_constants_can_be_named() -> None:
    assert constant_names() == constants_of(tuning)
