"""Tests mirror the package: every module has a test of its name."""

from __future__ import annotations

from pathlib import Path

import torchmetrics_fed

PACKAGE = Path(torchmetrics_fed.__file__).parent
TESTS = Path(__file__).parents[1]
WITHOUT_BEHAVIOUR = {"typing.py", "version.py"}
"""Names of types, and the version, which the laws of the project check."""


def has_test(module: Path) -> bool:
    """Whether there is a test in the same folder of the tests, or for a sub-package above it."""
    name = f"test_{module.name}"
    folder = TESTS / module.parent
    is_in_subpackage = len(module.parts) > 2
    return (folder / name).exists() or (is_in_subpackage and (folder.parent / name).exists())


def test_every_module_has_a_test_of_its_name() -> None:
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    named = [module for module in modules if not module.name.startswith("__")]
    assert len(named) > 100
    missing = [str(module) for module in named if not has_test(module)]
    assert set(missing) <= WITHOUT_BEHAVIOUR
