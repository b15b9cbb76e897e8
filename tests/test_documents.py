"""Every Python block of README and docs runs, each document as one program, and no link leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:python|\{code-cell\} python)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", path.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec.*")
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if BLOCK.search(path.read_text())], ids=name)
def test_code_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(BLOCK.findall(path.read_text()))
    for module in re.findall(r"^# needs: (\w+)$", code, flags=re.MULTILINE):
        pytest.importorskip(module)
    exec(compile(code, path.name, "exec"), {"__name__": "document"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", path.read_text())):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_and_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^    |`)make ([a-z]+)", text, flags=re.MULTILINE)) <= set(targets)
    for file in re.findall(r"[` ]((?:benchmarks|examples|tests|docs|\.ci)/[\w./]+)", text):
        assert (ROOT / file.rstrip(".")).exists(), file
    for module in re.findall(r"python -m ((?:benchmarks|torchmetrics_fed)[\w.]*)", text):
        places = [ROOT / f"{module.replace('.', '/')}{end}" for end in (".py", "/__main__.py")]
        assert any(place.exists() for place in places), module


def test_links_and_anchors_are_read_as_meant(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What adds, what spends\n\n```\n# not a heading\n```\n\n## One score's way\n")
    assert anchors(page) == {"what-adds-what-spends", "one-scores-way"}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 550


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=name)
def test_the_first_sentence_says_what_it_is_for(path: Path) -> None:
    text = re.sub(r"^#.*$", "", path.read_text(), count=1, flags=re.MULTILINE)
    assert "federated learning" in text.split(". ")[0]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_nobody_is_sent_to_an_index_that_does_not_have_the_package(path: Path) -> None:
    assert not re.search(r"pip install [\"']?torchmetrics-fed", path.read_text())


@pytest.mark.parametrize("script", ["docs/layout.py", "docs/images/data_way.py"])
def test_what_scripts_wrote_is_what_they_would_write(script: str) -> None:
    """Run the script and commit what it wrote where this fails: a file came, went, or got another first line."""
    path = ROOT / script
    written = path.with_suffix(".md" if path.stem == "layout" else ".svg")
    before = written.read_text()
    try:
        subprocess.run([sys.executable, str(path)], check=True)
        assert written.read_text() == before, f"run python {script}"
    finally:
        written.write_text(before)
