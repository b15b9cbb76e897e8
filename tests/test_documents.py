"""Every Python block of README and docs runs, each document as one program, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_code_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    for module in re.findall(r"^# needs: (\w+)$", code, flags=re.MULTILINE):
        pytest.importorskip(module)
    exec(compile(code, path.name, "exec"), {"__name__": "document"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert "://" in link or (path.parent / link).exists(), link
