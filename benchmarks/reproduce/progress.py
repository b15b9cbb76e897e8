"""A line that says how far a long command is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["progress"]

_Item = TypeVar("_Item")
_WIDTH = 30


def progress(items: Iterable[_Item], total: int, name: str) -> Iterator[_Item]:
    """Yield ``items`` while a bar on the error stream fills; nothing is drawn where there is no terminal."""
    began = time.monotonic()
    drawn = sys.stderr.isatty()
    for done, item in enumerate(items, 1):
        yield item
        if drawn:
            spent = time.monotonic() - began
            bar = "#" * (_WIDTH * done // total)
            left = spent / done * (total - done)
            print(
                f"\r{name} [{bar:<{_WIDTH}}] {done}/{total}, {left:.0f} s left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    if drawn and total:
        print(file=sys.stderr)
