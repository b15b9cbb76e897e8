#!/usr/bin/env python3
"""Is this tree ready to be released? `make release-check`; PYTHON .ci/release.py [FOLDER] keeps
wheel and sdist there.

PYTHON needs the extra `wheel`. Nothing is published, and nothing needs a network.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
ASSETS = {f"torchmetrics_fed/report/assets/report.{end}" for end in ("html", "css", "js")}
IN_WHEEL = {"torchmetrics_fed/py.typed", *ASSETS} | {
    f"torchmetrics_fed/report/assets/{name}" for name in ("numbers.json", "statement.txt")
}
IN_SDIST = {
    *(
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
    ),
    *(".ci/wheel", ".github/workflows/ci.yml", "docs/index.md", "pyproject.toml", "tests/ranks.py"),
    "tests/data/stored_releases.npz",
}
HEADING = re.compile(
    r"^## (\S+) - (unreleased|\d{4}-\d{2}-\d{2})\n(.*?)(?=^## |\Z)", flags=re.MULTILINE | re.DOTALL
)
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)[^)\s]*\)|<img[^>]+src=\"(?![a-z]+:)")


def expect(condition: object, problem: str) -> None:
    """Stop with a message that says what is wrong."""
    if not condition:
        sys.exit(f"not ready for a release: {problem}")


def git(*words: str) -> str:
    """What git prints; nothing outside a repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def field(text: str, name: str) -> str:
    """A top-level value of CITATION.cff; the law tests parse all of it."""
    found = re.search(rf"^{name}: *[\"']?([^\"'\s]+)", text, flags=re.MULTILINE)
    return found[1] if found else ""


def check_version() -> str:
    """The version, which version.py, CHANGELOG.md, CITATION.cff and the tag agree on."""
    version = str(
        re.findall(
            r'^VERSION = "(.*)"$', (ROOT / "torchmetrics_fed/version.py").read_text(), re.MULTILINE
        )[0]
    )
    try:
        normal = str(Version(version))
    except InvalidVersion:
        normal = ""
    expect(normal == version, f"{version!r} in version.py is not a normal PEP 440 version")

    newest = HEADING.search((ROOT / "CHANGELOG.md").read_text())
    if newest is None:
        sys.exit(
            "not ready for a release: CHANGELOG.md has no heading `## VERSION - DATE` or `## "
            "VERSION - unreleased`"
        )
    heading, date, entries = newest.groups()
    expect(heading == version, f"CHANGELOG.md begins with {heading}, version.py has {version}")
    expect(
        re.search(r"^- ", entries, flags=re.MULTILINE), f"CHANGELOG.md says nothing about {version}"
    )

    citation = (ROOT / "CITATION.cff").read_text()
    expect(
        field(citation, "version") == version, f"CITATION.cff has another version than {version}"
    )
    released = field(citation, "date-released") or "unreleased"
    expect(
        released == date,
        f"CHANGELOG.md says {date}, CITATION.cff says {released} (its `date-released`)",
    )

    tagged = git("rev-list", "-n", "1", f"refs/tags/v{version}", "--")
    expect(
        tagged in ("", git("rev-parse", "HEAD")),
        f"v{version} is the tag of another commit: raise the version",
    )
    expect(
        not tagged or date != "unreleased",
        f"v{version} is tagged, and CHANGELOG.md still says unreleased",
    )
    return version


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"the build failed\n{done.stdout}{done.stderr}")
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    expect(
        len(wheels) == len(sdists) == 1,
        f"expected one wheel and one sdist in {folder}: empty it first",
    )
    return wheels[0], sdists[0]


def check_contents(wheel: Path, sdist: Path) -> None:
    """The wheel holds the package and nothing else; the sdist holds what it takes to test and
    release it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expect(names >= IN_WHEEL, f"the wheel lacks {sorted(IN_WHEEL - names)}")
    strangers = sorted(
        name for name in names if not re.match(r"torchmetrics_fed(/|-[^/]+\.dist-info/)", name)
    )
    expect(not strangers, f"the wheel holds {strangers}")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    expect(names >= IN_SDIST, f"the sdist lacks {sorted(IN_SDIST - names)}")


def check_metadata(wheel: Path, version: str) -> None:
    """An index accepts the metadata and can show the description."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        raw = archive.read(name)
    try:
        metadata = Metadata.from_email(raw, validate=True)  # with the checks that an index makes
    except Exception as error:
        sys.exit(
            "not ready for a release: an index refuses the metadata: "
            f"{getattr(error, 'exceptions', error)}"
        )
    expect(
        str(metadata.version) == version,
        f"the wheel's version is {metadata.version}, version.py has {version}",
    )
    expect(metadata.summary, "the metadata has no summary")
    expect(
        metadata.license_expression == "Apache-2.0", f"the license is {metadata.license_expression}"
    )
    expect(metadata.license_files == ["LICENSE"], f"the license files are {metadata.license_files}")
    expect(metadata.requires_python is not None, "the metadata has no Requires-Python")
    kind = metadata.description_content_type or "nothing"
    expect(
        kind.startswith("text/markdown"),
        f"the description's type is {kind}, expected text/markdown",
    )
    text = metadata.description or ""
    expect(len(text) > 1000, "the description is not README.md")
    relative = [found[0] for found in RELATIVE.finditer(text)]
    expect(not relative, f"links of the description lead nowhere on an index: {relative}")


def main(folder: Path) -> None:
    """All checks, the quick ones first."""
    version = check_version()
    wheel, sdist = build(folder)
    check_contents(wheel, sdist)
    check_metadata(wheel, version)
    print(f"{version} is ready: {wheel.name}, {sdist.name}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
