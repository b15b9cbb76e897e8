"""Write layout.md: every file with the first line of its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "torchmetrics_fed": "the package",
    "examples": "one idea per file; each runs offline in under a minute, and a test runs it",
    "benchmarks": "what prints the figures of the docs",
    "docs": "the site, the scripts that draw its figures, and this map",
}
OTHERS = """\
| path | what it is |
|---|---|
| `tests/` | mirrors the package |
| `tests/transports/` | one law for every transport: the same release, the same charge, whatever a client does |
| `tests/attacks/` | one file per threat |
| `tests/laws/` | what holds of the whole: any split gives the same counts, memory, layers, docstrings, project files |
| `tests/statistical/` | samplers against their distributions, with the power of each test |
| `Makefile` | every command, each with its own set-up |
| `constraints.txt` | the versions that figures were measured with |
| `constraints-oldest.txt` | the oldest versions that are supported, for `make oldest` |
| `.ci/run` | what a change has to pass |
| `.ci/release.py`, `.ci/wheel` | whether the tree is ready for a release; the wheel in fresh environments |
| `.github/` | the same commands in CI; templates for issues and pull requests |
"""


def first_line(path: Path) -> str:
    """The first line of a file's docstring, in Markdown."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return line.replace(":math:", "").replace("``", "`").replace("|", r"\|")


def page() -> str:
    """The whole page."""
    parts = [
        "# Layout",
        "",
        "Find a file by what it does: the first line of its docstring. Written by `python "
        "docs/developers/layout.py`.",
        "",
    ]
    for folder, meaning in FOLDERS.items():
        parts += [
            f"## {folder}",
            "",
            f"{meaning[0].upper()}{meaning[1:]}.",
            "",
            "| file | what it is |",
            "|---|---|",
        ]
        for path in sorted(
            (ROOT / folder).rglob("*.py"), key=lambda path: (path.parent, path.name)
        ):
            summary = first_line(path)
            if summary and not path.name.startswith("."):
                name = path.relative_to(ROOT / folder).as_posix()
                if "/" in name:
                    name = name.replace("__init__.py", "")
                parts.append(f"| `{name}` | {summary} |")
        parts.append("")
    return "\n".join([*parts, "## Everything else", "", OTHERS])


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page())
