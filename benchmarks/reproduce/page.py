"""Text between two markers of a document, replaced by a command's output."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BEGIN", "END", "paste"]

BEGIN = "<!-- begin: written by benchmarks.reproduce -->"
END = "<!-- end: written by benchmarks.reproduce -->"


def paste(path: Path, text: str, writer: str = "benchmarks.reproduce") -> None:
    """Replace the text between the markers of ``writer``, a module, in ``path``."""
    begin = BEGIN.replace("benchmarks.reproduce", writer)
    end = END.replace("benchmarks.reproduce", writer)
    before, opening, rest = path.read_text().partition(begin)
    _, closing, after = rest.partition(end)
    if not opening or not closing:
        raise ValueError(
            f"Expected the markers {begin} and {end} in {path} but they are not there."
        )
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
