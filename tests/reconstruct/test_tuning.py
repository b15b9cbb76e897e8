"""Tuned constants: each names the benchmark that tunes it, is used, and can be varied by name."""

from __future__ import annotations

import argparse
import ast
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks
import torchmetrics_fed
from benchmarks.plans import Constant, constant_names
from torchmetrics_fed import ScoreGrid
from torchmetrics_fed.comparison import tuning as comparison_tuning
from torchmetrics_fed.exchange.placement import pilot_query
from torchmetrics_fed.reconstruct import tuning
from torchmetrics_fed.reconstruct.uncertainty import tuning as uncertainty_tuning

PACKAGE = Path(torchmetrics_fed.__file__).parent
BENCHMARKS = Path(benchmarks.__file__).parent
READERS = {
    tuning: ("reconstruct", "exchange"),
    comparison_tuning: ("comparison",),
    uncertainty_tuning: ("reconstruct/uncertainty",),
}
"""The packages that read the constants of each module."""


def constants_of(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if name.isupper()]


def docstrings(module: ModuleType) -> dict[str, str]:
    """Return the docstring below each constant."""
    assert module.__file__ is not None
    body = ast.parse(Path(module.__file__).read_text()).body
    result = {}
    for statement, below in pairwise(body):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            result[ast.unparse(target)] = str(below.value.value)
    return result


@pytest.mark.parametrize("module", READERS)
def test_every_constant_names_a_benchmark_that_exists(module: ModuleType) -> None:
    texts = docstrings(module)
    assert set(texts) == set(constants_of(module))
    for text in texts.values():
        names = re.findall(r"``benchmarks\.(\w+)", text)
        assert names
        assert all((BENCHMARKS / f"{name}.py").exists() for name in names)


@pytest.mark.parametrize("module", READERS)
def test_every_constant_is_read_at_the_time_of_a_call(module: ModuleType) -> None:
    code = ""
    for package in READERS[module]:
        for path in (PACKAGE / package).rglob("*.py"):
            code += path.read_text()
    for name in constants_of(module):
        assert re.search(rf"\btuning\.{name}\b", code), f"{name} is not read"


def test_a_benchmark_varies_a_constant_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PILOT_LEAVES", tuning.PILOT_LEAVES)  # restored afterwards
    Constant.parsed("PILOT_LEAVES=32").set()
    assert pilot_query(ScoreGrid.two_sided()).tree.leaves == 32


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
