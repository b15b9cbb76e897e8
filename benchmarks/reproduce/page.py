"""Text between two markers of a document, replaced by a command's output."""

from __future__ import annotations

from pathlib import Path

__all__ = ["BEGIN", "END", "paste"]

BEGIN = "<!-- begin: written by benchmarks.reproduce -->"
END = "<!-- end: written by benchmarks.reproduce -->"


def paste(path: Path, text: str) -> None:
    """Replace what stands between the markers in ``path``."""
    page = path.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"Expected the markers {BEGIN} and {END} in {path} but they are not there.")
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")
