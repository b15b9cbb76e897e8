"""Every public name has a docstring with an example, and is on a page of the API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "api"
TRAINERS = {
    "flower": "flwr",
    "nvflare": "nvflare",
    "nvflare.lightning": "nvflare",
    "lightning": "lightning",
    "declearn": "declearn",
    "pfl": "pfl",
}
PUBLIC = [
    "torchmetrics_fed",
    "torchmetrics_fed.errors",
    "torchmetrics_fed.functional",
    "torchmetrics_fed.counting",
    "torchmetrics_fed.privacy",
    "torchmetrics_fed.release",
    "torchmetrics_fed.aggregation.secure",
    "torchmetrics_fed.exchange",
    "torchmetrics_fed.report",
    "torchmetrics_fed.planning",
    "torchmetrics_fed.paper",
    "torchmetrics_fed.comparison",
    "torchmetrics_fed.audit",
    "torchmetrics_fed.simulate",
    "torchmetrics_fed.app.folder",
    "torchmetrics_fed.app.tables",
    *(f"torchmetrics_fed.integrations.{name}" for name in TRAINERS),
]


def module(name: str) -> ModuleType:
    trainer = TRAINERS.get(name.removeprefix("torchmetrics_fed.integrations."))
    if trainer is not None and find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    return import_module(name)


def names(public: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in public.__all__:
        value = getattr(public, name)
        # not modules, constants, or names of types
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    lacking = [
        public for public, value in names(module(name)) if ">>>" not in (value.__doc__ or "")
    ]
    # an error's text is its example; those at the top of the package have one all the same
    assert not lacking or name == "torchmetrics_fed.errors"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_on_a_page(name: str) -> None:
    written = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    directives = r"(?:autoclass|autofunction|autoexception|autodata):: ([\w.]+)"
    documented = {path.rpartition(".")[2] for path in re.findall(directives, written)}
    assert {public for public, _ in names(module(name))} <= documented
