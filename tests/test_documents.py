"""Every Python block of README and docs runs, each document as one program, twice; no link leads
nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
BLOCK = re.compile(
    r"^```(?:python|\{code-cell\} python)\n(?::.*\n)*(.*?)^```$", flags=re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LONGEST = 98  # characters of code that fit the site's column on a desktop


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them, and those that it names
    itself."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", path.read_text()), flags=re.MULTILINE)
    named = re.findall(r"^\(([\w-]+)\)=$", path.read_text(), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    } | set(named)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec.*")
@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if BLOCK.search(path.read_text())], ids=name
)
def test_code_blocks_run_twice_in_one_folder(
    path: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    code = "\n".join(BLOCK.findall(path.read_text()))
    for module in re.findall(r"^# needs: (\w+)$", code, flags=re.MULTILINE):
        pytest.importorskip(module)
    program = compile(code, path.name, "exec")
    exec(program, {"__name__": "document"})
    if any(tmp_path.iterdir()):  # a page that writes nothing has no second run that could differ
        exec(program, {"__name__": "document"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_code_that_trusts_the_server_says_so(path: Path) -> None:
    """A single share of `DistributedDP` hides next to nothing: a reader who copies a block must
    know whom it trusts."""
    for block in BLOCK.findall(path.read_text()):
        if "trusted_aggregator=True" in block:
            assert re.search(r"#.*trusted server", block), block


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", path.read_text())):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_code_fits_the_column(path: Path) -> None:
    text = path.read_text()
    fenced = [
        body
        for kind, body in FENCED.findall(text)
        if not kind.startswith("{") or "code-cell" in kind
    ]
    indented = re.findall(r"^ {4}(.*)$", FENCED.sub("", text), flags=re.MULTILINE)
    assert [
        line for line in [*"".join(fenced).splitlines(), *indented] if len(line) > LONGEST
    ] == []


def test_every_page_is_in_the_navigation() -> None:
    listed = {ROOT / "docs" / "index.md"}
    for path in PAGES:
        for kind, body in FENCED.findall(path.read_text()):
            if kind == "{toctree}":
                listed |= {
                    path.parent / f"{line}.md"
                    for line in body.split("\n")
                    if line and line[0] != ":"
                }
    assert {name(path) for path in PAGES if "developers" not in path.parts} == {
        name(path) for path in listed
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_and_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)(?=[ `\n])", text, flags=re.MULTILINE)) <= set(
        targets
    )
    for file in re.findall(r"[` ]((?:benchmarks|examples|tests|docs|\.ci)/[\w./]+)", text):
        assert (ROOT / file.rstrip(".")).exists(), file
    for module in re.findall(r"python -m ((?:benchmarks|torchmetrics_fed)[\w.]*)", text):
        places = [ROOT / f"{module.replace('.', '/')}{end}" for end in (".py", "/__main__.py")]
        assert any(place.exists() for place in places), module


def test_links_and_anchors_are_read_as_meant(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# What adds, what spends\n\n```\n# not a heading\n```\n\n(here)=\n## A client's share\n"
    )
    assert anchors(page) == {"what-adds-what-spends", "here", "a-clients-share"}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 600


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=name)
def test_the_first_sentence_says_what_it_is_for(path: Path) -> None:
    text = re.sub(r"^#.*$", "", path.read_text(), count=1, flags=re.MULTILINE)
    assert "federated learning" in text.split(". ")[0]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_nobody_is_sent_to_an_index_that_does_not_have_the_package(path: Path) -> None:
    assert not re.search(r"pip install [\"']?torchmetrics-fed", path.read_text())


SCRIPTS = [
    ROOT / "docs" / script
    for script in ("developers/layout.py", "images/data_flow.py", "images/badges.py")
]


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_what_scripts_wrote_is_what_they_would_write(path: Path) -> None:
    """Run the script and commit what it wrote where this fails: a file came, went, or got
    another first line."""
    written = path.with_suffix(".md" if path.stem == "layout" else ".svg")
    before = written.read_text()
    try:
        subprocess.run([sys.executable, str(path)], check=True)
        assert written.read_text() == before, f"run python {name(path)}"
    finally:
        written.write_text(before)
