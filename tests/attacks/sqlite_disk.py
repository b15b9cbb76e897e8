"""SQLite's calls to the operating system, watched, and a disk that can lose power.

The library is the real one: its table of calls to the operating system (the VFS) is wrapped, as
SQLite's own crash tests do.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest


class Step(NamedTuple):
    """One call of SQLite that changes a file."""

    kind: str
    """``"write"``, ``"truncate"``, ``"sync"`` or ``"delete"``."""
    name: str
    """The name of the file."""
    number: int = 0
    """The offset of a write, the size after a truncation, whether a deletion syncs the folder."""
    data: bytes = b""
    """The bytes of a write."""


class Methods(ctypes.Structure):
    """``sqlite3_io_methods``, of version 3."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    ]


class Vfs(ctypes.Structure):
    """The beginning of ``sqlite3_vfs``."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("delete", ctypes.c_void_p),
    ]


_INT = ctypes.c_int
_LONG = ctypes.c_int64
_POINTER = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_DELETE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT)
_WRITE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_SYNC = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)

SQLITE_IOERR_FSYNC = 1034
"""The code that a call returns that is made to fail."""


class Watch:
    """The wrapped calls of SQLite. Each call is shown before it is done.

    Args:
        vfs: SQLite's table of calls.
        allow: takes a step, and returns False if the call must fail instead.
    """

    def __init__(self, vfs: Vfs, allow: Callable[[Step], bool]) -> None:
        self._vfs = vfs
        self._allow = allow
        self._real_open = _OPEN(vfs.open)
        self._real_delete = _DELETE(vfs.delete)
        # The name of each open file and its real methods: they differ between file and journal.
        self._files: dict[int, tuple[str, Methods]] = {}
        self._wrappers: dict[int, Methods] = {}
        # Callbacks must be referred to as long as SQLite can call them.
        self._open = _OPEN(self._on_open)
        self._delete = _DELETE(self._on_delete)
        self._calls: dict[str, Any] = {
            "write": _WRITE(self._on_write),
            "truncate": _TRUNCATE(self._on_truncate),
            "sync": _SYNC(self._on_sync),
        }

    def begin(self) -> None:
        self._vfs.open = ctypes.cast(self._open, _POINTER)
        self._vfs.delete = ctypes.cast(self._delete, _POINTER)

    def end(self) -> None:
        self._vfs.open = ctypes.cast(self._real_open, _POINTER)
        self._vfs.delete = ctypes.cast(self._real_delete, _POINTER)

    def _on_open(self, vfs: int, path: int | None, file: int, flags: int, out: int) -> int:
        code = int(self._real_open(vfs, path, file, flags, out))
        if code == 0 and path:
            place = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(Methods)))
            methods = place[0].contents
            self._files[file] = (_name_of(path), methods)
            place[0] = ctypes.pointer(self._wrapper(methods))
        return code

    def _wrapper(self, methods: Methods) -> Methods:
        """Return a table of methods whose changing calls are watched."""
        address = ctypes.addressof(methods)
        if address not in self._wrappers:
            wrapper = Methods.from_buffer_copy(methods)
            for field, call in self._calls.items():
                setattr(wrapper, field, ctypes.cast(call, _POINTER))
            self._wrappers[address] = wrapper
        return self._wrappers[address]

    def _on_delete(self, vfs: int, path: int, syncs_folder: int) -> int:
        if not self._allow(Step("delete", _name_of(path), syncs_folder)):
            return SQLITE_IOERR_FSYNC
        return int(self._real_delete(vfs, path, syncs_folder))

    def _on_write(self, file: int, data: int, size: int, offset: int) -> int:
        name, methods = self._files[file]
        if not self._allow(Step("write", name, offset, ctypes.string_at(data, size))):
            return SQLITE_IOERR_FSYNC
        return int(_WRITE(methods.write)(file, data, size, offset))

    def _on_truncate(self, file: int, size: int) -> int:
        name, methods = self._files[file]
        if not self._allow(Step("truncate", name, size)):
            return SQLITE_IOERR_FSYNC
        return int(_TRUNCATE(methods.truncate)(file, size))

    def _on_sync(self, file: int, flags: int) -> int:
        name, methods = self._files[file]
        if not self._allow(Step("sync", name)):
            return SQLITE_IOERR_FSYNC
        return int(_SYNC(methods.sync)(file, flags))


def _name_of(path: int) -> str:
    return os.path.basename(os.fsdecode(ctypes.string_at(path)))


@contextmanager
def watched(allow: Callable[[Step], bool]) -> Iterator[None]:
    """Show each step of SQLite in this process before it is done. It fails if refused."""
    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
        vfs = library.sqlite3_vfs_find(None).contents
    except (AttributeError, OSError):
        pytest.skip("this Python hides the SQLite that it is linked with")
    watch = Watch(vfs, allow)
    watch.begin()
    try:
        yield
    finally:
        watch.end()


class Disk:
    """Files, and the writes to them that no sync has made safe yet.

    A sync keeps what was written to its file. A deletion is kept once its folder was synced.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self._safe = dict(files)
        self._pending: list[Step] = []

    def do(self, step: Step) -> None:
        if step.kind == "sync" or (step.kind == "delete" and step.number):
            for pending in self._pending:
                if pending.name == step.name:
                    _apply(self._safe, pending)
            _apply(self._safe, step)
            self._pending = [pending for pending in self._pending if pending.name != step.name]
        else:
            self._pending.append(step)

    def after_power_loss(self, generator: random.Random) -> dict[str, bytes]:
        """Return the files with any part of the pending steps, the last write torn."""
        files = dict(self._safe)
        probability = generator.choice([0.0, 0.5, 1.0])
        survivors = [step for step in self._pending if generator.random() < probability]
        for step in survivors[:-1]:
            _apply(files, step)
        for step in survivors[-1:]:
            torn = step.data[: generator.randrange(len(step.data) + 1)]
            _apply(files, step._replace(data=torn))
        return files


def _apply(files: dict[str, bytes], step: Step) -> None:
    content = files.get(step.name, b"")
    before = content[: step.number].ljust(step.number, b"\0")
    if step.kind == "write":
        files[step.name] = before + step.data + content[step.number + len(step.data) :]
    elif step.kind == "truncate":
        files[step.name] = before
    elif step.kind == "delete":
        files.pop(step.name, None)
