"""Progress: how much is done so far, on one line of stderr that is written over a few times a second."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_EVERY, _BAR = 0.2, 24  # seconds, letters


class Progress:
    """Counts what is taken from an iterable.

    Args:
        shown: whether to write; if not given, where stderr is a terminal, which a notebook is not.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown

    def __call__(
        self,
        items: Iterable[Item],
        done: str,
        size: Callable[[Item], int] = lambda _: 1,
        total: int | None = None,
    ) -> Iterator[Item]:
        """Give the items one by one; ``done`` has a place for their number, and with ``total`` there is a bar."""
        start = last = time.monotonic()
        number = 0
        for item in items:
            yield item
            number += size(item)
            if self._shown and (now := time.monotonic()) - last > _EVERY:
                last = now
                self._write(done, number, now - start, total, "")
        if self._shown:
            self._write(done, number, time.monotonic() - start, total, "\n")

    def _write(self, done: str, number: int, seconds: float, total: int | None, end: str) -> None:
        bar = (
            ""
            if not total
            else f"[{'#' * (number * _BAR // total):<{_BAR}}] {number / total:4.0%} "
        )
        sys.stderr.write(f"\r{bar}{done.format(f'{number:,}')} in {seconds:.1f} s{end}")
        sys.stderr.flush()
