"""The layout: each layer imports only what is below it, and nobody imports another module's
underscore names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchmetrics_fed

PACKAGE = Path(torchmetrics_fed.__file__).parent
# from the top down; a module may import its own layer's package and everything below
LAYERS = [
    {"__init__", "__main__"},
    {"app"},
    {"integrations", "simulate", "audit"},
    {"report", "planning"},
    {"comparison"},
    {"metrics"},
    {"exchange"},
    {"functional"},
    {"paper"},
    {"aggregation", "reconstruct"},
    {"release"},
    {"privacy"},
    {"counting"},
    {"errors", "markup", "typing", "version"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "torchmetrics_fed"
        ):
            for alias in node.names:
                inside = (
                    f"{node.module}.{alias.name}"
                    if node.module == "torchmetrics_fed"
                    else node.module or ""
                )
                yield inside, alias.name
        elif isinstance(node, ast.Import):
            yield from (
                (alias.name, alias.name)
                for alias in node.names
                if alias.name.startswith("torchmetrics_fed")
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_layers_point_one_way(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module, name in imports(path):
        imported = layer_of(module)
        assert imported == layer or RANK[imported] > RANK[layer], f"{layer} may not import {module}"
        assert not name.startswith("_"), f"{name} is private to {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_has_a_name_that_says_nothing(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


def test_the_top_of_the_package_is_short() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8
    metrics = [
        name
        for name, home in torchmetrics_fed._HOMES.items()
        if name.startswith("Federated") and home in ("metrics", "comparison")
    ]
    assert len(torchmetrics_fed.__all__) - len(metrics) <= 25  # metrics have torchmetrics' names


def test_every_public_name_has_a_home() -> None:
    assert set(torchmetrics_fed.__all__) == {*torchmetrics_fed._HOMES, "functional", "paper"}
    assert all(hasattr(torchmetrics_fed, name) for name in torchmetrics_fed.__all__)
    assert set(dir(torchmetrics_fed)) == {*torchmetrics_fed.__all__, "__version__"}
