"""Laws of modules that hold tuned constants, whatever their package."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import benchmarks
import torchmetrics_fed

PACKAGE = Path(torchmetrics_fed.__file__).parent
BENCHMARKS = Path(benchmarks.__file__).parent


def constants_of(module: ModuleType) -> list[str]:
    """Return the names of the constants of a module."""
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


def check_benchmarks(module: ModuleType) -> None:
    """Raise unless every constant names a benchmark that exists."""
    texts = docstrings(module)
    assert set(texts) == set(constants_of(module))
    for text in texts.values():
        names = re.findall(r"``benchmarks\.(\w+)", text)
        assert names
        assert all((BENCHMARKS / f"{name}.py").exists() for name in names)


def check_read(module: ModuleType, packages: tuple[str, ...]) -> None:
    """Raise unless one of these packages reads every constant as ``tuning.NAME``."""
    code = ""
    for package in packages:
        for path in (PACKAGE / package).rglob("*.py"):
            code += path.read_text()
    for name in constants_of(module):
        assert re.search(rf"\btuning\.{name}\b", code), f"{name} is not read"
