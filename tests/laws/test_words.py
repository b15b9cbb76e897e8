"""Words that were replaced, everywhere: one name for one thing, in the field's own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("torchmetrics_fed", "tests", "docs", "examples", "benchmarks", ".ci", ".github")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".html", ".js", ".css", ".c", ""}
REPLACED = {
    r"\btold\b|\btold_|_told_": "named",
    r"\breckon": "compute, or expect",
    r"\bastray\b": "wrong",
    r"\banew\b": "again",
    r"\bsecure[ _]sum": "secure aggregation",
    r"\bnobody may pool\b": "for federated learning",
    r"\b(who|whoever|who ever) (sums|adds up|aggregates)\b": "the aggregator",
    r"\bso many\b": "this many, or enough",
    r"\bto be had\b": "available",
    r"\bspell(s|ed|ing)?\b": "encode, or decode",
    r"\bbooked\b": "charged",
    r"\bcut for\b(?! cut)": "calibrated for",
    r"\bpictures?\b": "figure",
    r"\bsheets?\b": "summary figure",
    r"\bin the house\b|\bhouse rules\b|\brooms of\b": "layout, packages",
    r"\btwo_round\b": "adaptive",
    r"\bone_message\b": "single",
    r"\bshall\b": "must, or will",
    r"\b(data|score)'s way\b": "how data flows",
}


def texts() -> list[Path]:
    named = [
        path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in SUFFIXES
    ]
    top = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    return [path for path in (*named, *top) if path.is_file() and path != Path(__file__)]


@pytest.mark.parametrize("word", REPLACED)
def test_replaced_words_are_gone(word: str) -> None:
    pattern = re.compile(word, flags=re.IGNORECASE)
    places = []
    for path in texts():
        lines = enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1)
        places += [
            f"{path.relative_to(ROOT)}:{number}" for number, line in lines if pattern.search(line)
        ]
    assert not places, f"Write {REPLACED[word]!r} in {places}"


def test_the_patterns_find_what_they_are_for() -> None:
    text = "told reckoned astray anew secure_sum nobody may pool whoever sums so many to be had "
    text += "spelled booked cut for it "
    text += "pictures sheet in the house two_round one_message shall data's way"
    assert all(re.search(word, text) for word in REPLACED)
