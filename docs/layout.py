"""Write house.md, the map of the repository, from the first line of every file's docstring: `python docs/house.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "torchmetrics_fed": "the package",
    "examples": "one idea per file; each runs offline in under a minute, and a test runs it",
    "benchmarks": "what prints the figures of the docs",
    "docs": "this site",
}
OTHERS = """\
| path | what it is |
|---|---|
| `tests/` | mirrors the package |
| `tests/attacks/` | one file per threat |
| `tests/laws/` | what holds of the whole: any split gives the same counts, memory, layers, docstrings |
| `tests/statistical/` | samplers against their laws, with the power of each test |
| `tests/fixtures/` | old payloads that must stay readable |
| `Makefile` | every command, each with its own set-up |
| `constraints.txt` | the versions that figures were measured with |
| `.ci/run`, `.ci/wheel` | what a change has to pass; the wheel in fresh environments |
"""


def first_line(path: Path) -> str:
    """The first line of a file's docstring, in Markdown."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return line.replace(":math:", "").replace("``", "`").replace("|", r"\|")


def drawn() -> str:
    """The whole page."""
    parts = [
        "# The house",
        "",
        "Every file in one line: the first of its docstring. Made by `python docs/house.py`.",
        "",
    ]
    for folder, meaning in FOLDERS.items():
        parts += [f"## {folder}", "", f"{meaning[0].upper()}{meaning[1:]}.", "", "| file | what it is |", "|---|---|"]
        for path in sorted((ROOT / folder).rglob("*.py"), key=lambda path: (path.parent, path.name)):
            told = first_line(path)
            if told and not path.name.startswith("."):
                name = path.relative_to(ROOT / folder).as_posix()
                parts.append(
                    f"| `{name.replace('__init__.py', '')}` | {told} |" if "/" in name else f"| `{name}` | {told} |"
                )
        parts.append("")
    return "\n".join([*parts, "## Everything else", "", OTHERS])


if __name__ == "__main__":
    (ROOT / "docs" / "house.md").write_text(drawn())
