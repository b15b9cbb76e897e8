"""Journal: an append-only file of checked JSON lines that outlives a crash.

The file is a header line, then one line per record. The last field of a line, ``sum``, is a SHA-256 over the line and
the ``sum`` of the record before it: a line that was changed, dropped, doubled or moved is found and refused. (It finds
accidents. Who may write the file can also forge it, and whole lines cut off its end leave no trace.)

**A crash never loses what was committed.** `commit` returns after ``fsync`` of all bytes up to the end of its line, and
bytes are only ever appended, so a committed line is whole from then on. A line that is not whole is therefore one whose
`commit` never returned: its caller drew no noise, and leaving it out of the sum forgets nothing. Such a line can only
be the last one, for writers hold a lock; the next writer keeps it and ends it with ``#torn``. A line that is whole
counts, even if the crash came before its `commit` returned. So what is wrong is too much, never too little.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from torchmetrics_fed.privacy.durable import DurableFile

__all__ = ["Journal"]

T = TypeVar("T")

_HEADER = b'{"format":"torchmetrics-fed ledger","version":1}\n'
_SUM, _END, _DIGITS = b',"sum":"', b'"}', 16
_TORN = b"#torn"


class _Content(NamedTuple):
    raw: bytes | None
    records: tuple[Any, ...]
    torn: int
    last: bytes  # the last line, which the next one's sum covers
    repair: bytes  # what to write before the next line


class Journal(Generic[T]):
    """The records in the file at ``path``.

    Args:
        path: the file. Its directory must exist, on a file system with ``flock``.
        decode: makes a record of a line's JSON object; raises TypeError or ValueError if it is none.
        create: whether a missing file is a new journal (mode 0600) or an error.
    """

    def __init__(self, path: str, decode: Callable[[dict[str, Any]], T], create: bool = True) -> None:
        self._decode = decode
        self._content = _Content(None, (), 0, b"", b"")
        create = create and not os.path.exists(path)
        self._file = DurableFile(path, create)
        with self.locked(exclusive=create):
            if create:
                self._append(self._content.repair)

    @property
    def records(self) -> tuple[T, ...]:
        """All records, as of the last time the lock was held."""
        return self._content.records

    @property
    def torn(self) -> int:
        """Number of lines that a crash cut short; none of them was committed."""
        return self._content.torn

    @contextmanager
    def locked(self, exclusive: bool) -> Iterator[None]:
        """Hold the lock of the file, with `records` read anew. Threads must take turns by other means."""
        with self._file.locked(exclusive):
            self._refresh()
            yield

    def commit(self, record: dict[str, Any] | None) -> None:
        """Append ``record`` and return once the whole file is on disk. None appends nothing and only waits for that.

        The wait matters: another process may have written a line and crashed before its ``fsync``.
        """
        self._append(b"" if record is None else self._content.repair + _line(record, self._content.last) + b"\n")

    def _append(self, data: bytes) -> None:
        self._file.append(data)
        self._refresh()

    def _refresh(self) -> None:
        if self._file.content != self._content.raw:
            self._content = self._parse(self._file.content)

    def _parse(self, raw: bytes) -> _Content:
        if _HEADER.startswith(raw):  # new, or a crash while it was made
            return _Content(raw, (), 0, _HEADER, _HEADER[len(raw) :])
        if not raw.startswith(_HEADER):
            raise self._file.error(
                f"to begin with the line {_HEADER.decode().strip()} but it does not",
                "Give the path of a ledger whose version this package reads, or of a new file.",
            )
        records: list[T] = []
        torn, last, repair = 0, _HEADER, b""
        lines = raw[len(_HEADER) :].split(b"\n")
        for number, line in enumerate(lines, start=2):
            unended = number == len(lines) + 1
            record = self._record(line, last, number)
            if record is not None:
                records.append(record)
                last, repair = line, b"\n" if unended else b""
            elif unended and not line:
                repair = b""
            elif (unended or line.endswith(_TORN)) and not _begins_whole(line, last):
                torn, repair = torn + 1, _TORN + b"\n" if unended else b""
            else:
                raise self._file.error(
                    f"to be as it was written but line {number} is damaged, or a line before it is missing",
                    "Put back a copy from before the damage and enter what was spent since; do not delete the line.",
                )
        return _Content(raw, tuple(records), torn, last, repair)

    def _record(self, line: bytes, last: bytes, number: int) -> T | None:
        if not _is_whole(line, last):
            return None
        try:
            return self._decode(json.loads(_unseal(line)))
        except (TypeError, ValueError) as error:
            raise self._file.error(
                f"to hold entries that this version can read but line {number} is another", "Update torchmetrics-fed."
            ) from error


def _line(record: dict[str, Any], last: bytes) -> bytes:
    return _seal(json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii"), last)


def _seal(body: bytes, last: bytes) -> bytes:
    """``body`` with its sum, which covers the end of the ``last`` line, and by it all lines before."""
    digest = hashlib.sha256(last[-_DIGITS - len(_END) :] + body).hexdigest()[:_DIGITS].encode()
    return body[:-1] + _SUM + digest + _END


def _unseal(line: bytes) -> bytes:
    return line[: -len(_SUM) - _DIGITS - len(_END)] + b"}"


def _is_whole(line: bytes, last: bytes) -> bool:
    return _seal(_unseal(line), last) == line


def _begins_whole(line: bytes, last: bytes) -> bool:
    """Whether ``line`` is a whole one and something after it, which no crash can leave."""
    return _is_whole(line[: line.rfind(_END) + len(_END)], last)
