"""A folder with the tables of three sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.command_line import SITES, table_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study and three tables, in which commands run."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(SITES):
        lines = ["id,score,label"]
        for number, (score, label) in enumerate(table_rows(seed)):
            lines.append(f"{number},{score},{label}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    (tmp_path / "study.toml").write_text("clients = 3\n")
    return tmp_path
