"""The files of the project itself: they parse, they name what exists, and they agree with each
other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_documents import FENCED, anchors
from torchmetrics_fed import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SETTINGS = [
    *WORKFLOWS,
    *(ROOT / name for name in (".pre-commit-config.yaml", ".readthedocs.yaml", "CITATION.cff")),
]
PAGES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("path", SETTINGS, ids=name)
def test_settings_parse(path: Path) -> None:
    assert parsed(path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=name
)
def test_issue_templates_have_a_name_and_point_to_private_reports(path: Path) -> None:
    head, text = path.read_text().split("---\n")[1:]
    assert set(yaml.safe_load(head)) == {"name", "about", "labels"}
    assert "SECURITY.md" in text or path.stem == "feature"


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflows_run_targets_that_exist_with_few_rights(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    called: set[str] = set()
    for job in workflow["jobs"].values():
        assert not job.get("permissions")
        for step in job["steps"]:
            words = re.findall(r"^make (.+)$", step.get("run", ""), flags=re.MULTILINE)
            if words == ["${{ matrix.target }}"]:
                words = job["strategy"]["matrix"]["target"]
            called |= {target for word in words for target in word.split()}
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v0"))
    assert called
    assert called <= targets()


def test_ci_runs_what_every_change_has_to_pass() -> None:
    every_change = set(
        re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    )
    jobs = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert every_change == {"check", "test", *jobs["more"]["strategy"]["matrix"]["target"]}


def test_the_citation_is_complete_and_of_this_version() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert set(citation) >= {"cff-version", "message", "title", "authors", "version", "license"}
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    paper = citation["preferred-citation"]
    assert set(paper) >= {"type", "title", "authors", "year"}
    assert all(
        "name" in author or {"family-names", "given-names"} <= set(author)
        for author in paper["authors"]
    )
    eprint = re.search(r"eprint = \{(.+)\}", (ROOT / "README.md").read_text())
    assert eprint is not None
    assert paper["url"].endswith(eprint[1])


def test_hooks_are_the_tools_of_the_environment() -> None:
    """So that their versions are those of constraints.txt, with nothing to keep in step."""
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    tools = [hook["entry"].split()[0] for hook in repository["hooks"]]
    assert tools == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/mypy"]
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(re.search(rf"^{Path(tool).name}==", pinned, flags=re.MULTILINE) for tool in tools)


def test_the_index_page_has_no_link_that_leads_nowhere() -> None:
    """With no address relative links go; with one, as the comment in pyproject.toml says, they
    become absolute."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (image, image_there), (link, link_there) = (
        (rule["pattern"], rule["replacement"]) for rule in hook["substitutions"]
    )
    written = [
        (image_there, link_there),
        (r"![\1](https://here/raw/main/\2)", r"[\1](https://here/blob/main/\2)"),
    ]
    for image_there, link_there in written:
        text = (
            ROOT / "README.md"
        ).read_text() + "\n![a b](c.png)\n[d\ne](f.md#g) [h](https://i) [j](#k)\n"
        text = re.sub(link, link_there, re.sub(image, image_there, text))
        assert not re.search(r"\]\((?!https://|#)[^)\s]+\)", text)
        assert "[h](https://i) [j](#k)" in text


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_and_commands_of_pages_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
        file, _, anchor = link.partition("#")
        if "://" not in link:
            assert (ROOT / file).exists(), link
            assert not anchor or anchor in anchors(ROOT / file), link
    called = re.findall(r"(?:^    |`)make ([a-z -]+)", text, flags=re.MULTILINE)
    assert {target for words in called for target in words.split()} <= targets()


def test_the_site_shows_the_changelog_with_its_links() -> None:
    page = (ROOT / "docs" / "changelog.md").read_text()
    assert "{include} ../CHANGELOG.md" in page
    links = re.findall(r"\]\((?!https:)([^)\s]+)\)", (ROOT / "CHANGELOG.md").read_text())
    assert all(link.startswith("docs/") for link in links)  # what `relative-docs` rewrites
