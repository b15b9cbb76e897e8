"""DurableFile: a file that processes append to one at a time, each byte on disk before the append returns."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torchmetrics_fed.errors import LedgerFileError

__all__ = ["DurableFile"]

_LOCK_SECONDS = 60.0


class DurableFile:
    """The file at ``path``. It only grows: bytes that were read once must be there at every later read.

    Args:
        path: the file. Its directory must exist, on a file system with ``flock``.
        create: whether to make a missing file (mode 0600), rather than to raise.
    """

    def __init__(self, path: str, create: bool) -> None:
        self.path = path
        self.content = b""
        self._create = create
        self._fd: int | None = None
        self._directory_synced = False
        self._failed_sync = False

    @contextmanager
    def locked(self, exclusive: bool) -> Iterator[None]:
        """Hold the file's lock, `content` read anew. Threads of one process must take turns by other means."""
        fd = self._open(exclusive)
        try:
            self._lock(fd, exclusive)
            self._check_in_place(fd)
            self._fd = fd
            self._read()
            self._create = False
            yield
        finally:
            self._fd = None
            self._unlock(fd)

    def append(self, data: bytes) -> None:
        """Write ``data`` at the end and return once the whole file is on disk, what others wrote included."""
        assert self._fd is not None, "the lock is not held"
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise self.error(f"to take a line but got: {error.strerror}", "Make room; nothing was spent.") from error
        try:
            os.fsync(self._fd)
            if not self._directory_synced:
                _sync_directory(os.path.dirname(self.path))
                self._directory_synced = True
        except OSError as error:
            # A second fsync could succeed without having written what the first one lost: this object is done.
            self._failed_sync = True
            raise self.error(f"to reach the disk but got: {error.strerror}", "Check the disk.") from error
        self._read()

    def error(self, what: str, remedy: str) -> LedgerFileError:
        """The error that this file was expected ``what``."""
        return LedgerFileError(f"Expected the ledger file {self.path!r} {what}. {remedy}")

    def _open(self, exclusive: bool) -> int:
        if self._failed_sync:
            raise self.error("to be on disk but an earlier fsync failed", "Check the disk, then open the ledger anew.")
        flags = os.O_RDWR | os.O_APPEND if exclusive else os.O_RDONLY
        try:
            return os.open(self.path, flags | os.O_CREAT if exclusive and self._create else flags, 0o600)
        except FileNotFoundError as error:
            raise self.error(
                "or its directory to exist but it does not",
                "Make the directory, or put the file back: without it nobody knows what was spent.",
            ) from error
        except OSError as error:
            raise self.error(f"to open but got: {error.strerror}", "Check the path and its permissions.") from error

    def _lock(self, fd: int, exclusive: bool) -> None:
        try:
            import fcntl
        except ModuleNotFoundError as error:
            raise self.error(
                "on a platform with fcntl locks but there are none here", "Use a ledger without `path`, in one process."
            ) from error
        how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(fd, how | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise self.error(
                        f"to be free within {_LOCK_SECONDS:g} s but another process holds its lock",
                        "End the process that hangs; its lock goes with it.",
                    ) from error
            except OSError as error:
                raise self.error(
                    f"on a file system with flock but got: {error.strerror}", "Put the ledger on a local disk."
                ) from error
            time.sleep(0.002)

    def _unlock(self, fd: int) -> None:
        try:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile holds the file open too
        except (ModuleNotFoundError, OSError):
            pass
        finally:
            os.close(fd)

    def _check_in_place(self, fd: int) -> None:
        here = os.fstat(fd)
        if not stat.S_ISREG(here.st_mode):
            raise self.error("to be a regular file but it is not", "Give the ledger a path of its own.")
        if not (os.path.exists(self.path) and os.path.samestat(here, os.stat(self.path))):
            raise self.error("to stay in place but it was replaced", "Put the old file back, then open it anew.")

    def _read(self) -> None:
        assert self._fd is not None, "the lock is not held"
        os.lseek(self._fd, 0, os.SEEK_SET)
        with open(self._fd, "rb", buffering=0, closefd=False) as file:
            content = file.readall()
        if not content.startswith(self.content):
            raise self.error(
                "to only ever grow but what was read before is gone", "Put the old file back, then open it anew."
            )
        self.content = content


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
