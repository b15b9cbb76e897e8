"""A progress bar for long commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["progress"]

_Item = TypeVar("_Item")
_WIDTH = 30
"""The width of a full bar, in characters."""


def progress(items: Iterable[_Item], total: int, name: str) -> Iterator[_Item]:
    """Yield ``items`` while a bar on the error stream fills, if that is a terminal."""
    start = time.monotonic()
    is_drawn = sys.stderr.isatty()
    for done, item in enumerate(items, 1):
        yield item
        if is_drawn:
            elapsed = time.monotonic() - start
            bar = "#" * (_WIDTH * done // total)
            remaining = elapsed / done * (total - done)
            print(
                f"\r{name} [{bar:<{_WIDTH}}] {done}/{total}, {remaining:.0f} s left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    if is_drawn and total:
        print(file=sys.stderr)
