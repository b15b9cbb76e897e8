"""Progress: the number of items so far, on one line of stderr that is updated in place."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_UPDATE_SECONDS = 0.2
"""Seconds between two updates of the line."""

_BAR_WIDTH = 24
"""Characters of the bar."""


class Progress:
    """Counts the items that are taken from an iterable.

    Args:
        visible: whether to write; by default where stderr is a terminal, which a notebook is not.
    """

    def __init__(self, visible: bool | None = None) -> None:
        if visible is None:
            visible = sys.stderr.isatty()
        self._visible = visible

    def __call__(
        self,
        items: Iterable[Item],
        done: str,
        size: Callable[[Item], int] = lambda _: 1,
        total: int | None = None,
    ) -> Iterator[Item]:
        """Yield the items one by one.

        Args:
            items: the items.
            done: the text of the line, with a place for the number.
            size: the number that an item counts as.
            total: the number of all items, for a bar.
        """
        start = time.monotonic()
        last_update = start
        number = 0
        for item in items:
            yield item
            number += size(item)
            now = time.monotonic()
            if self._visible and now - last_update > _UPDATE_SECONDS:
                last_update = now
                _write(done, number, now - start, total)
        if self._visible:
            _write(done, number, time.monotonic() - start, total)
            sys.stderr.write("\n")
            sys.stderr.flush()


def _write(done: str, number: int, seconds: float, total: int | None) -> None:
    bar = ""
    if total:
        marks = "#" * (number * _BAR_WIDTH // total)
        bar = f"[{marks:<{_BAR_WIDTH}}] {number / total:4.0%} "
    sys.stderr.write(f"\r{bar}{done.format(f'{number:,}')} in {seconds:.1f} s")
    sys.stderr.flush()
