"""The recipes of the architecture page, followed to the letter in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "developers" / "architecture.md"
BLOCK = re.compile(r"^( *)```(python|diff)\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)


class Recipe(NamedTuple):
    """What a section of the page tells a developer to do."""

    files: dict[str, str]
    """New files, by path."""
    patches: list[str]
    """Changes of files, in the format of ``git diff``."""
    trials: list[str]
    """Programs that must run afterwards."""


def recipes() -> dict[str, Recipe]:
    """The recipes of the page, by what they add."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    by_title = {}
    for section in sections:
        title = section.splitlines()[0]
        if not title.startswith("Add a "):
            continue
        recipe = Recipe({}, [], [])
        for _, language, block in BLOCK.findall(section):
            code = textwrap.dedent(block)
            first_line = code.splitlines()[0]
            if language == "diff":
                recipe.patches.append(code)
            elif first_line == "# try":
                recipe.trials.append(code)
            else:
                recipe.files[first_line.removeprefix("# file: ")] = code.split("\n", 1)[1]
        by_title[title.removeprefix("Add a ")] = recipe
    return by_title


def test_the_page_has_four_recipes() -> None:
    assert sorted(recipes()) == ["metric", "noise", "plan", "transport"]
    assert all(recipe.trials for recipe in recipes().values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metric", "transport", "noise", "plan"])
def test_a_recipe_works_as_it_is_written(name: str, tmp_path: Path) -> None:
    recipe = recipes()[name]
    shutil.copytree(ROOT / "torchmetrics_fed", tmp_path / "torchmetrics_fed")
    for path, content in recipe.files.items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(content)
    for patch in recipe.patches:
        command = ["git", "apply", "-C1", "-"]
        subprocess.run(command, input=patch, text=True, cwd=tmp_path, check=True)
    for trial in recipe.trials:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", trial],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
